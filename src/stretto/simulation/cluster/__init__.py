"""The cluster simulator: the real policies on virtual time."""
