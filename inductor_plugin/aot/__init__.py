"""Kernels for a GPU that is not here."""
