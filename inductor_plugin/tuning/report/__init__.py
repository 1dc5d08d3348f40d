"""What is said of tuning: progress bar, AUTOTUNE table, log, trace, reasons of misses; for verbs a profile's records, and regret."""
