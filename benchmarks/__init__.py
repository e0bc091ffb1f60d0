"""Measurements, with peers in the same run: `make bench-NAME` prints a table and writes results/NAME.json here."""
