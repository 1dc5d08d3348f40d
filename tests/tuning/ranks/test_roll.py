"""The groups of a process."""

from __future__ import annotations

from inductor_plugin.tuning.ranks.roll import Roll


def test_groups_are_numbered_by_device_and_counted_once() -> None:
    roll = Roll()
    assert [roll.add("cpu", group) for group in ("a", "b", "a")] == [0, 1, None]
    assert roll.add("gpu", "a") == 0
    assert roll.has("cpu", "b")
    assert not roll.has("gpu", "b")
