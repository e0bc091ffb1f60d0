"""A job from its file to its end: what was asked for, its events, its state, what its run has written."""
