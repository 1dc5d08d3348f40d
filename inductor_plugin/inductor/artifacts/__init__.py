"""Records and kernels among the artifacts of ``torch.compiler.save_cache_artifacts``."""
