"""How a script becomes a worker: joining, the channel to its agent, what workers are compared by, and how they stop."""
