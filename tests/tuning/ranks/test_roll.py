"""The groups of a process."""

from __future__ import annotations

from inductor_plugin.tuning.ranks.roll import Roll


def test_groups_are_known_by_device_and_added_once() -> None:
    roll = Roll()
    assert [roll.add("cpu", group) for group in ("a", "b", "a")] == [True, True, False]
    assert roll.add("gpu", "a")
    assert roll.has("cpu", "b")
    assert not roll.has("gpu", "b")
    assert [roll.part() for _ in range(3)] == [0, 1, 2]
