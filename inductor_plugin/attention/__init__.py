"""Attention: the public operator, every library kernel as one function, references."""
