"""From the gradients of slices to their sum over the roster, in the order of the fixed tree."""
