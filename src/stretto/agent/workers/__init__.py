"""An agent's workers: the fork server that starts them, what is seen and heard of them, and what a death means."""
