"""Compile workers on the nodes of a Ray cluster, with the interface of the local pool. Ray is imported when a farm is used."""
