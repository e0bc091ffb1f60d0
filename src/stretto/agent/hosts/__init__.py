"""A job on several hosts: its store, who may join it, and how agents are asked from anywhere."""
