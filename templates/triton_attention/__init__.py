"""Triton attention, forward, backward and decode."""
