"""Which samples a step has, in which order, and the loop over its slices."""
