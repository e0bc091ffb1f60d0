"""What every worker holds alike, and how newcomers get it."""
