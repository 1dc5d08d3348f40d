"""Which kernel is likely to be fast or cannot fit, before anything runs. No torch."""
