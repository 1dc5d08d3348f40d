"""Where else an entry is looked up: a second cache, and the nearest records."""
