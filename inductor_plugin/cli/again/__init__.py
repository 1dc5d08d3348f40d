"""A recorded call again: as a script, and timed."""
