"""What verbs write for others than people at a terminal: pages, counters for monitoring, completion for shells."""
