"""For the processes of a page's or an example's test: other tests run at the same time, and what they disturb counts."""

from inductor_plugin.tuning import race, validity

# Not infinite: Inductor's cache keeps no graph that is never due (inductor/graph/due.py).
validity.AGAIN_S = 1e9
validity._MOST_PROOFS = 0  # pyright: ignore[reportPrivateUsage]
race.RETAKE_S = 0.0
