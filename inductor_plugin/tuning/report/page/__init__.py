"""The report page: caches, pins and benchmarks as one HTML file without a network. No torch."""
