"""The database: tables and migrations, events and curves, decisions, tokens."""
