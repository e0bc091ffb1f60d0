"""Who is in the job: the roster protocol (pure), the store that agents agree through, and the elected leader."""
