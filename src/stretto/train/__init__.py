"""What runs in the user's process: the job, its loaders and steps, the fixed tree, the state and its transfer."""
