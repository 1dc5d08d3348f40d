"""A record as a script."""
