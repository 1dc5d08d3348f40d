"""Fusions with a product, decided in the scheduler."""
