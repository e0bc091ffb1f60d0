"""Restart mode: scripts that were not written for us, stopped and started again in another number."""
