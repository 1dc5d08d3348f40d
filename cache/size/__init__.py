"""How much a cache holds, and what goes first when that is too much."""
