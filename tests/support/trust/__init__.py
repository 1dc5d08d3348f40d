"""Signers, and what an attacker puts into packs, remotes and caches."""
