"""A model's kernels before it runs: tuned on this machine, or compiled for a GPU that is not here."""
