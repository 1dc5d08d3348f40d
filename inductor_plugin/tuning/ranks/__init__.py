"""Ranks of one ``torch.distributed`` job: each problem is tuned by one of them, and all take its decision."""
