"""The list that scripts of `inductor-plugin repro` up to 0.1 append to; new ones call `inductor_plugin.observe`.

It goes with the release after the next one.
"""

from inductor_plugin.inductor.graph.session import OBSERVERS

__all__ = ["OBSERVERS"]
