"""Which kernel is likely to be fast or cannot fit, before anything runs; what a launch costs. No torch."""
