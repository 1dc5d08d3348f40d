"""Keys of signers, and who vouches for the kernels of a cache."""
