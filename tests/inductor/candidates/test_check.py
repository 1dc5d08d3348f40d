"""The sizes at which a candidate of dynamic sizes is checked besides the measured ones."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo

from inductor_plugin.inductor.candidates.check import size_ends
from inductor_plugin.inductor.graph import session
from inductor_plugin.tuning.ends import SizeEnd
from tests.support.candidates.fast_templates import rivals_offered
from tests.support.lowering import Lab, library_last


@pytest.mark.parametrize(
    ("bounds", "ends"),
    [
        ({"min": 2, "max": 4096}, [65, 128]),
        ({"min": 2, "max": 100}, [65, 100]),
        ({"min": 68, "max": 80}, [68, 80]),
    ],
    ids=str,
)
def test_a_size_class_ends_where_the_graph_does(
    bounds: dict[str, int], ends: list[int], cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SizeEnd] = []

    def recorded(call: Any) -> tuple[SizeEnd, ...]:
        seen.extend(ends_here := size_ends(call))
        return ends_here

    monkeypatch.setattr(session, "size_ends", recorded)
    # A graph in Inductor's cache is not lowered, and has no ends.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache_dir / "inductor"))
    torch._dynamo.reset()
    a, b = torch.randn(70, 24), torch.randn(24, 40)
    torch._dynamo.mark_dynamic(a, 0, **bounds)
    options: Any = {"cache_dir": str(cache_dir)}
    with rivals_offered(), torch.no_grad(), Lab(library_last, cache_dir).open():
        run = torch.compile(torch.mm, backend="inductor_plugin", options=options)
        torch.testing.assert_close(run(a, b), torch.mm(a, b))
    assert sorted({there for end in seen for here, there in end.sizes if here == 70}) == ends
