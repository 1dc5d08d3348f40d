"""The remote tier: records, and kernels if asked for, in an object store that many machines share."""
