"""CUTLASS fused attention for Hopper."""
