"""What ``explain`` takes instead of a key: the misses of the last process, a trace of a profiler."""
