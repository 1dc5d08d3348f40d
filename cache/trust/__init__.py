"""Whose native code may run: keys, signatures of kernels, and the decision about one kernel (docs/trust.md)."""
