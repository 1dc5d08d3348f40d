"""Looking beside the own entry: in a second cache, and among records that are near."""
