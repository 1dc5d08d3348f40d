"""Attention operators, chosen in the lowering."""
