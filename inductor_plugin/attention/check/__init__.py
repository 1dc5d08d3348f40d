"""The check of an attention's numbers: sampled rows in float64, planted NaN, large scores."""
