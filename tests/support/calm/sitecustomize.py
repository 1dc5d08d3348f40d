"""For the processes of a test: other tests run at the same time; what they disturb counts, and no gain has to be proven again."""

from inductor_plugin.tuning import race, validity

# Not infinite: Inductor's cache keeps no graph that is never due (inductor/graph/due.py).
validity.AGAIN_S = 1e9
validity.MOST_PROOFS = 0
race.RETAKE_S = 0.0
