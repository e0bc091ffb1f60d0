"""Experiments on batch size and learning rate: `make experiments` runs them and writes docs/explanation/experiments.md."""
