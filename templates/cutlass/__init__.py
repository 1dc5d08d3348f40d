"""CUTLASS products, with epilogue visitor trees."""
