"""What users see of tuning: progress bar, AUTOTUNE table, log, trace, reasons of misses; for verbs, records from a profile, and regret."""
