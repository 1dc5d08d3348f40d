"""Records and kernels on their way to another cache: archives, packs, wheels."""
