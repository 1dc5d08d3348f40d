"""Pinned decisions: recorded from a compile into a file that is committed, and replayed without measuring. No torch."""
