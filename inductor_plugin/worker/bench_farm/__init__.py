"""Benchmark workers on the nodes of a Ray cluster, with the interface of the local one: each measures on a GPU of its node."""
