"""For how long a node that has refused a job is not asked again."""

from __future__ import annotations

import math

from inductor_plugin.worker.farm.refusals import NodeRefusal, NodeRefusals, refused_again


def test_another_compiler_is_an_obstacle_for_ever_and_a_lack_of_memory_for_a_while() -> None:
    assert refused_again(None, 5.0, passing=False).until == math.inf
    once = refused_again(None, 5.0, passing=True)
    assert once == NodeRefusal(65.0, 1)
    assert refused_again(once, 6.0, passing=True) == once  # of a job that was there, too
    assert refused_again(once, 6.0, passing=False).until == math.inf
    assert refused_again(once, 70.0, passing=True) == NodeRefusal(190.0, 2)
    assert refused_again(NodeRefusal(0.0, 10), 0.0, passing=True).until == 900.0
    assert refused_again(NodeRefusal(math.inf, 1), 0.0, passing=True).until == math.inf


def test_nodes_are_asked_again_in_time_and_forgotten_when_they_leave() -> None:
    refusals = NodeRefusals()
    refusals.add(("torch",), "full", 0.0, passing=True)
    refusals.add(("torch",), "old", 0.0, passing=False)
    assert refusals.of(("torch",), 59.0) == {"full", "old"}
    assert refusals.of(("torch",), 60.0) == {"old"}
    assert refusals.of(("other",), 0.0) == set()
    refusals.keep({"full"})
    assert refusals.of(("torch",), 0.0) == {"full"}
