"""Torch operators that generated code calls: products, copies, checks of outputs."""
