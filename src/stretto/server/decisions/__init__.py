"""Which job gets which slots and why: snapshots, policies, guards, explanations, replays."""
