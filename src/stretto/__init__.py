"""Train PyTorch models on a number of workers that may change at any step."""
