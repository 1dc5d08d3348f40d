"""Compiling candidates: which are compiled together, and taking kernels from and to the cache."""
