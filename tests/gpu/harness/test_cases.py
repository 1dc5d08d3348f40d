"""The GPU tests, as far as a machine without a GPU can prove them: cases, forcing, comparing, resuming."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.harness.error import error_of
from inductor_plugin.kernels.call import OpKernel, TensorSpec
from inductor_plugin.problem.attention import BACKWARD, FORWARD
from inductor_plugin.registry import default_registry
from inductor_plugin.templates import BUILTIN
from inductor_plugin.tuning.task import CppBuild
from inductor_plugin.worker.jobs import BenchCandidate, CppCompileJob, TritonCompileJob
from tests.gpu.cases import graphs
from tests.gpu.cases import registry as cases
from tests.gpu.cases.kernels import built_slice
from tests.gpu.cases.offers import Offered, all_offered, belongs, built, chosen, offered
from tests.gpu.cases.product import ACCEPTED, Case, Spec, by_columns, by_rows
from tests.gpu.cases.registry import case, case_ids
from tests.gpu.forced.product import FORCED
from tests.gpu.forced.start import run
from tests.gpu.harness.check import checked
from tests.gpu.harness.ways import made

needs_cuda_build = pytest.mark.skipif(
    torch.version.cuda is None, reason="needs a CUDA build of torch"
)

FORCED_MODULE = "tests.gpu.forced.product"
ON_GPU = [
    one
    for one in BUILTIN
    if getattr(one, "device", "cuda") == "cuda" and not {FORWARD, BACKWARD} & set(one.ops)
]
"""Attention has its own: tests/gpu/harness/test_attention.py."""


def first_of_each() -> list[str]:
    """Return one case for each template and operator."""
    found: dict[tuple[str, str], str] = {}
    for identity in case_ids():
        found.setdefault((case(identity).template, case(identity).op), identity)
    return list(found.values())


def test_every_template_has_a_case_for_each_of_its_operators() -> None:
    tested = {(case(one).template, case(one).op) for one in case_ids()}
    assert tested == {(one.name, op) for one in ON_GPU for op in one.ops}


def test_names_are_unique() -> None:
    assert len(case_ids()) == len(cases.cases())


def test_the_ways_of_a_cutlass_kernel_are_asked_for() -> None:
    wanted = " ".join(p for one in cases.cases() if one.template == "cutlass" for p in one.wanted)
    for way in ("pingpong", "cooperative", "stream_k", "_split", "multistage", "swizzle"):
        assert way in wanted


def test_a_shared_batch_and_empty_groups_are_among_the_cases() -> None:
    strides = {spec.stride for one in cases.cases() for spec in one.specs if spec.stride}
    assert any(0 in stride for stride in strides)
    groups = [
        s.given for one in cases.cases() for s in one.specs if one.op == "grouped_mm" and s.given
    ]
    served = any("grouped_mm" in one.ops for one in BUILTIN)
    assert served == any(len(set(given)) < len(given) for given in groups)


def fit(identity: str, tmp_path: Path) -> list[Offered]:
    """Lower a case and return the candidates that have to run."""
    found = offered([identity], str(tmp_path / "inductor"))[identity]
    assert not isinstance(found, str), found
    assert all(belongs(one.name, case(identity).template) for one in found)
    picked = chosen(case(identity), found)
    assert picked
    for one in picked:
        assert isinstance(one.kernel, BenchCandidate)
        assert len(one.kernel.inputs) == len(case(identity).specs)
        if isinstance(one.build, TritonCompileJob):
            assert f"def {one.build.kernel_name}" in one.build.source
        else:
            assert isinstance(one.build, CppBuild)
            assert one.build.source.symbol in one.build.source.source
    return picked


@pytest.fixture
def grad() -> Iterator[None]:
    kept = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(kept)


@needs_cuda_build
@pytest.mark.compat
@pytest.mark.usefixtures("grad", "inductor_cache")
@pytest.mark.parametrize("identity", first_of_each())
def test_a_case_of_each_operator_lowers_without_a_gpu(identity: str, tmp_path: Path) -> None:
    if case(identity).template == "cutlass":
        pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    fit(identity, tmp_path)


@needs_cuda_build
@pytest.mark.slow
@pytest.mark.usefixtures("grad", "inductor_cache")
@pytest.mark.parametrize("template", [one.name for one in ON_GPU])
def test_every_case_lowers_without_a_gpu(template: str, tmp_path: Path) -> None:
    if template == "cutlass":
        pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    mine = [one for one in case_ids() if case(one).template == template]
    names = [one.about for identity in mine for one in fit(identity, tmp_path)]
    assert len(set(names)) >= 2


@needs_cuda_build
@pytest.mark.slow
@pytest.mark.usefixtures("grad", "inductor_cache")
def test_kernels_are_built_once_and_found_again(tmp_path: Path) -> None:
    identity = "triton_decode: mm, 1 row"
    found = all_offered([identity], tmp_path / "inductor", 1)[identity]
    assert not isinstance(found, str), found
    picked = found[:2]
    for _ in range(2):
        results = built(picked, tmp_path / "kernels", 2, 300)
        assert set(results) == {(one.case, one.identity) for one in picked}
        assert not [one for one in results.values() if isinstance(one, str)]
    assert len(list((tmp_path / "kernels").glob("kernels/*/*/entry.json"))) == 2


@needs_cuda_build
@pytest.mark.slow
@pytest.mark.usefixtures("grad", "inductor_cache")
def test_a_slice_has_a_reason_for_each_case_it_cannot_build(tmp_path: Path) -> None:
    good, bad = "triton_decode: mm fp16, 7 rows", "no such case"
    found = built_slice([good, bad], tmp_path, 1)
    assert isinstance(found[good], list), found[good]
    assert len(found[good]) == case(good).first
    assert "KeyError" in found[bad]


def test_a_library_takes_the_place_of_its_stand_in() -> None:
    candidate = product(OpKernel("aten::mm.out", ("symbol@/library", "tn", 1)))
    empty = CppCompileJob((), (), "", 1)
    one = Offered("a case", "an identity", "name", "about", empty, candidate)  # type: ignore[arg-type]
    built_one: Any = one.at("/there/kernel.so", "kernel_1").kernel
    assert built_one.kernel.args == ("kernel_1@/there/kernel.so", "tn", 1)


def test_a_missing_way_is_an_error() -> None:
    given = replace(case("cutlass: mm"), wanted=("no such schedule",))
    with pytest.raises(LookupError, match="no such schedule"):
        chosen(given, [])


def product(kernel: OpKernel, *, rows: int = 48) -> BenchCandidate:
    """Return a product of the case below on a CPU."""
    a = TensorSpec((rows, 64), (64, 1), "float32", "cpu")
    b = TensorSpec((64, 32), (1, 64), "float32", "cpu")
    return BenchCandidate(
        "one", kernel, (a, b), TensorSpec((rows, 32), (32, 1), "float32", "cpu"), 5
    )


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> str:
    """Add a case that needs no GPU."""
    a, b = by_rows(48, 64, torch.float32), by_columns(64, 32, torch.float32)
    given = Case("cpu", "none", "mm", graphs.mm, (a, b), rows=(1, 40))
    case_ids()
    monkeypatch.setitem(cases._index.by_id, "none: cpu", given)
    return "none: cpu"


def test_a_right_kernel_passes(on_a_cpu: str) -> None:
    report = checked(on_a_cpu, product(OpKernel("aten::mm.out")), "cpu")
    assert report.good
    assert report.errors.keys() == {"plain", "rows"}
    assert report.to_dict()["plain"] < 1e-5 / ACCEPTED[torch.float32]


library = torch.library.Library("gpu_cases", "FRAGMENT")


def _define(name: str, run: Any) -> OpKernel:
    library.define(f"{name}(Tensor a, Tensor b, *, Tensor(x!) out) -> Tensor(x!)")
    library.impl(name, run, "CPU")
    return OpKernel(f"gpu_cases::{name}")


def _one_wrong(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    out.copy_(a @ b)
    out[0, 0] += 10
    return out


def _half_written(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    out[: out.shape[0] // 2] = (a @ b)[: out.shape[0] // 2]
    return out


def _too_long(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    out.copy_(a @ b)
    out.as_strided((1,), (1,), out.storage_offset() + out.numel() + 16).fill_(1)
    return out


def _right_for_the_first_size(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    out.copy_((a @ b) * (1 if a.shape[0] == 48 else 2))
    return out


@pytest.mark.parametrize(
    "run",
    [_one_wrong, _half_written, _too_long, _right_for_the_first_size],
    ids=lambda f: f.__name__,
)
def test_a_wrong_kernel_does_not_pass(on_a_cpu: str, run: Any) -> None:
    kernel = _define(run.__name__.strip("_"), run)
    assert not checked(on_a_cpu, product(kernel), "cpu").good


def test_what_is_not_a_number_is_infinitely_wrong() -> None:
    ones = torch.ones(4, 4)
    assert error_of(torch.full((4, 4), math.nan), ones) == math.inf
    assert error_of(torch.ones(4, 2), ones) == math.inf
    assert error_of(ones, ones) == 0


def test_tensors_have_the_strides_of_their_case() -> None:
    specs = [
        one for name in case_ids() for one in case(name).specs if max(one.size, default=1) < 4096
    ]
    for spec, tensor in zip(specs, made(specs, "cpu", seed=1), strict=True):
        assert tuple(tensor.shape) == spec.size
        assert spec.stride is None or tensor.stride() == spec.stride
        assert tensor.dtype == spec.dtype
    first, again, other = (made(specs[:2], "cpu", seed=n) for n in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], other[0])


def test_a_scaled_product_means_what_torch_says() -> None:
    a, b = torch.randn(256, 256), torch.randn(256, 128)
    x, y = torch.rand(256, 2), torch.rand(2, 1)
    wide_x = x.repeat_interleave(128, 1)
    wide_y = y.repeat_interleave(128, 0).expand(256, 128)
    torch.testing.assert_close(graphs.unscaled(a, b, x, y), (a * wide_x) @ (b * wide_y))
    bias = torch.randn(128)
    rows, columns = torch.rand(256, 1), torch.rand(1, 128)
    expected = (a @ b) * rows * columns + bias
    found = graphs.unscaled(a, b, rows, columns, bias)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_a_grouped_product_means_what_torch_says() -> None:
    a, b = torch.randn(6, 4), torch.randn(3, 4, 5)
    found = graphs.ungrouped(a, b, torch.tensor([2, 2, 6]))
    torch.testing.assert_close(found, torch.cat([a[:2] @ b[0], a[2:] @ b[2]]))


@pytest.mark.slow
def test_a_whole_compile_takes_the_forced_candidate(cache_dir: Path, tmp_path: Path) -> None:
    report = run(FORCED_MODULE, "dry_twin", cache_dir, tmp_path)
    assert report.get("failed") is None
    assert report["taken"]
    assert all(one.startswith("dry_twin.mm") for one in report["taken"])
    assert max(report["plain"], report["dynamic"]) < 1.0
    assert report["dynamic_graphs"] == 1
    assert "no such graph" in run(FORCED_MODULE, "no such graph", cache_dir, tmp_path)["failed"]


def test_every_template_is_forced_to_win_once() -> None:
    begun = {name.partition(" ")[0] for name, one in FORCED.items() if one.device == "cuda"}
    assert begun == {one.name for one in ON_GPU}
    assert begun <= set(default_registry().names())


def test_a_spec_of_one_number_has_no_strides() -> None:
    (one,) = made([Spec((), torch.float32, values="scale")], "cpu", seed=1)
    assert one.shape == ()
    assert float(one) >= 0.5
