"""A device that torch does not know: memory and kernels of the CPU, as torch's PrivateUse1."""
