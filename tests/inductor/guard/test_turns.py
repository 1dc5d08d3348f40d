"""Two graphs are compared in turns, on a GPU in this process's turn there."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import pytest
import torch

from inductor_plugin.inductor.guard import turns


def graph(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    return [inputs[0] + 1]


@pytest.mark.parametrize("alone", [True, False])
def test_what_was_compared_beside_another_process_is_disturbed(
    monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    held: list[str] = []

    @contextmanager
    def turn(uuid: str) -> Generator[bool]:
        held.append(uuid)
        yield alone

    class Calm:
        disturbed = False

        def synchronize(self) -> None:
            """Nothing runs on a device."""

        def sample(self, call: object, repeats: int, *, cold: bool) -> float:
            return 1.0

    monkeypatch.setattr(turns, "turn", turn)
    monkeypatch.setattr(turns, "timer_for", lambda device: Calm())  # pyright: ignore
    compared = turns.compare(graph, graph, [torch.ones(4)], 0.2)
    assert compared is not None
    assert compared.disturbed is not alone
    assert held == [""]
