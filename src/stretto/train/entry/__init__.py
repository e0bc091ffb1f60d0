"""How a script becomes a worker: joining, the link to its agent, what it is compared by, and how it is told to stop."""
