"""What a compile says of its tuning: progress bar, AUTOTUNE table, trace, log and counters."""
