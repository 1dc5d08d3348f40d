"""For the processes of a page's or an example's test: other tests run at the same time, and what they disturb counts."""

import math

from inductor_plugin.tuning import race, validity

validity.AGAIN_S = math.inf
race.RETAKE_S = 0.0
