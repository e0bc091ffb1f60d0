"""Saving at step boundaries and going on from what was saved. What the command line uses of it loads no torch."""
