"""One graph that is being compiled: its calls, its open decisions, its report."""
