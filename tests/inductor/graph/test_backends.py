"""Backends without the library kernel: it is still asked for, and runs only where nothing else can."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.config import Config
from inductor_plugin.inductor.candidates import template_choice
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.template import Candidate, Failed
from tests.support.lowering import Arg, Lab, library_first

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]


@pytest.fixture
def lab(cache_dir: Path) -> Iterator[Lab]:
    with Lab(library_first, cache_dir).open() as opened:
        yield opened


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Name Inductor's backends as a user may who does not know of the plugin's option."""
    original = Lab._patches

    def patches(self: Lab, options: dict[str, Any]) -> dict[str, Any]:
        return original(self, options) | {"max_autotune_gemm_backends": "TRITON"}

    monkeypatch.setattr(Lab, "_patches", patches)


def scaled(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (torch.addmm(c, a, b, alpha=0.5, beta=2.0),)


ADDMM = (Arg((512,)), Arg((256, 128)), Arg((128, 512)))


def test_the_scalars_of_a_call_are_known_without_the_library_among_the_backends(lab: Lab) -> None:
    code = lab.lower(scaled, *ADDMM, gemm_backends="TRITON")
    (task,) = lab.tasks
    assert dict(task.problem.arguments)["alpha"] == "0.5"
    assert dict(task.problem.arguments)["beta"] in ("2", "2.0")
    # Faster, but not wanted: another one runs, and the library kernel was its reference.
    assert "extern_kernels." not in code
    assert "triton_tem_fused" in code
    assert task.entries[0].library
    assert all(job.library is not None for job in lab.screens)


def test_with_it_among_the_backends_the_faster_library_runs(lab: Lab) -> None:
    assert "extern_kernels." in lab.lower(scaled, *ADDMM, gemm_backends="ATEN,TRITON")


def test_it_is_the_way_out_where_no_other_ran(lab: Lab) -> None:
    lab.status = lambda candidate: "ok" if library_first(candidate) == 1.0 else "wrong"
    assert "extern_kernels." in lab.lower(scaled, *ADDMM, gemm_backends="TRITON")


@pytest.mark.parametrize("policy", ["cached", "build"])
def test_nothing_measured_is_no_error(lab: Lab, policy: str) -> None:
    assert "extern_kernels." in lab.lower(scaled, *ADDMM, gemm_backends="TRITON", policy=policy)


def test_templates_stay_away_where_nobody_tells_the_scalars(
    lab: Lab, without_library: None
) -> None:
    lab.lower(scaled, *ADDMM)
    (task,) = lab.tasks
    assert not any(entry.library for entry in task.entries)
    assert all(entry.name.startswith("triton_") for entry in task.entries)
    rejected = lab.record()["rejected"]
    assert "add ATEN to the backends" in rejected["triton_split_k"]


def test_a_cached_miss_without_any_library_runs_what_there_is(
    lab: Lab, without_library: None
) -> None:
    function = lambda a, b: (torch.mm(a, b),)  # noqa: E731
    code = lab.lower(function, Arg((256, 128)), Arg((128, 512)), policy="cached")
    assert "triton_tem_fused" in code
    assert lab.screens == []


def test_kernels_that_cannot_be_had_are_counted_beside_those_that_can(
    monkeypatch: pytest.MonkeyPatch, cache_dir: Path
) -> None:
    warned: list[bool] = []
    offers = [Candidate("one", name, {}, OpKernel("a::b")) for name in ("first", "second", "third")]
    template = SimpleNamespace(
        name="one", backend="CUTLASS", reject=lambda p: None, candidates=lambda p: offers
    )
    registry: Any = SimpleNamespace(for_op=lambda op: [template])
    output = SimpleNamespace(device="cpu")
    call: Any = SimpleNamespace(problem=SimpleNamespace(op="mm", output=output))
    kept = SimpleNamespace()
    monkeypatch.setattr(
        template_choice,
        "_choice",
        lambda choice, call, config: kept if choice.name == "first" else Failed("no nvcc"),
    )
    monkeypatch.setattr(
        template_choice,
        "warn_without_cutlass",
        lambda config, some=False: warned.append(some),
    )
    config = Config.load({"cache_dir": str(cache_dir)}, environ={})
    choices, rejected = template_choice.template_choices(call, registry, config)
    assert choices == [kept]
    assert rejected == {"one": "2 of its 3 kernels are left out: no nvcc"}
    assert warned == [True]
