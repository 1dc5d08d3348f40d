"""Triton products."""
