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
from tests.gpu.harness.ways import drawn

needs_cuda_build = pytest.mark.skipif(
    torch.version.cuda is None, reason="needs a CUDA build of torch"
)

FORCED_MODULE = "tests.gpu.forced.product"
ON_GPU = [
    template
    for template in BUILTIN
    if getattr(template, "device", "cuda") == "cuda" and not {FORWARD, BACKWARD} & set(template.ops)
]
"""Attention has its own: tests/gpu/harness/test_attention.py."""


def first_of_each() -> list[str]:
    """Return one case for each template and operator."""
    result: dict[tuple[str, str], str] = {}
    for identity in case_ids():
        result.setdefault((case(identity).template, case(identity).op), identity)
    return list(result.values())


def test_every_template_has_a_case_for_each_of_its_operators() -> None:
    tested = {(case(identity).template, case(identity).op) for identity in case_ids()}
    assert tested == {(trial.name, op) for trial in ON_GPU for op in trial.ops}


def test_names_are_unique() -> None:
    assert len(case_ids()) == len(cases.cases())


def test_the_ways_of_a_cutlass_kernel_are_asked_for() -> None:
    wanted = " ".join(
        p for trial in cases.cases() if trial.template == "cutlass" for p in trial.wanted
    )
    for way in ("pingpong", "cooperative", "stream_k", "_split", "multistage", "swizzle"):
        assert way in wanted


def test_a_shared_batch_and_empty_groups_are_among_the_cases() -> None:
    strides = {spec.stride for trial in cases.cases() for spec in trial.specs if spec.stride}
    assert any(0 in stride for stride in strides)
    groups = [
        s.contents
        for trial in cases.cases()
        for s in trial.specs
        if trial.op == "grouped_mm" and s.contents
    ]
    served = any("grouped_mm" in template.ops for template in BUILTIN)
    assert served == any(len(set(group)) < len(group) for group in groups)


def fit(identity: str, tmp_path: Path) -> list[Offered]:
    """Lower a case and return the candidates that have to run."""
    offer = offered([identity], str(tmp_path / "inductor"))[identity]
    assert not isinstance(offer, str), offer
    assert all(belongs(kernel.name, case(identity).template) for kernel in offer)
    picked = chosen(case(identity), offer)
    assert picked
    for compiled_kernel in picked:
        assert isinstance(compiled_kernel.kernel, BenchCandidate)
        assert len(compiled_kernel.kernel.inputs) == len(case(identity).specs)
        if isinstance(compiled_kernel.build, TritonCompileJob):
            assert f"def {compiled_kernel.build.kernel_name}" in compiled_kernel.build.source
        else:
            assert isinstance(compiled_kernel.build, CppBuild)
            assert compiled_kernel.build.source.symbol in compiled_kernel.build.source.source
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
@pytest.mark.parametrize("template", [trial.name for trial in ON_GPU])
def test_every_case_lowers_without_a_gpu(template: str, tmp_path: Path) -> None:
    if template == "cutlass":
        pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    mine = [identity for identity in case_ids() if case(identity).template == template]
    names = [offer.about for identity in mine for offer in fit(identity, tmp_path)]
    assert len(set(names)) >= 2


@needs_cuda_build
@pytest.mark.slow
@pytest.mark.usefixtures("grad", "inductor_cache")
def test_kernels_are_built_once_and_found_again(tmp_path: Path) -> None:
    identity = "triton_decode: mm, 1 row"
    offer = all_offered([identity], tmp_path / "inductor", 1)[identity]
    assert not isinstance(offer, str), offer
    picked = offer[:2]
    for _ in range(2):
        results = built(picked, tmp_path / "kernels", 2, 300)
        assert set(results) == {(kernel.case, kernel.identity) for kernel in picked}
        assert not [result for result in results.values() if isinstance(result, str)]
    assert len(list((tmp_path / "kernels").glob("kernels/*/*/entry.json"))) == 2


@needs_cuda_build
@pytest.mark.slow
@pytest.mark.usefixtures("grad", "inductor_cache")
def test_a_slice_has_a_reason_for_each_case_it_cannot_build(tmp_path: Path) -> None:
    good, bad = "triton_decode: mm fp16, 7 rows", "no such case"
    result = built_slice([good, bad], tmp_path, 1)
    assert isinstance(result[good], list), result[good]
    assert len(result[good]) == case(good).first
    assert "KeyError" in result[bad]


def test_a_library_takes_the_place_of_its_stand_in() -> None:
    candidate = product(OpKernel("aten::mm.out", ("symbol@/library", "tn", 1)))
    empty = CppCompileJob((), (), "", 1)
    broken = Offered("a case", "an identity", "name", "about", empty, candidate)  # type: ignore[arg-type]
    built_one: Any = broken.at("/there/kernel.so", "kernel_1").kernel
    assert built_one.kernel.args == ("kernel_1@/there/kernel.so", "tn", 1)


def test_a_missing_way_is_an_error() -> None:
    changed = replace(case("cutlass: mm"), wanted=("no such schedule",))
    with pytest.raises(LookupError, match="no such schedule"):
        chosen(changed, [])


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
    trial = Case("cpu", "none", "mm", graphs.mm, (a, b), rows=(1, 40))
    case_ids()
    monkeypatch.setitem(cases._index.by_id, "none: cpu", trial)
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
        spec_
        for name in case_ids()
        for spec_ in case(name).specs
        if max(spec_.size, default=1) < 4096
    ]
    for spec, tensor in zip(specs, drawn(specs, "cpu", seed=1), strict=True):
        assert tuple(tensor.shape) == spec.size
        assert spec.stride is None or tensor.stride() == spec.stride
        assert tensor.dtype == spec.dtype
    first, again, other = (drawn(specs[:2], "cpu", seed=n) for n in (1, 1, 2))
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
    actual = graphs.unscaled(a, b, rows, columns, bias)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


def test_a_grouped_product_means_what_torch_says() -> None:
    a, b = torch.randn(6, 4), torch.randn(3, 4, 5)
    actual = graphs.ungrouped(a, b, torch.tensor([2, 2, 6]))
    torch.testing.assert_close(actual, torch.cat([a[:2] @ b[0], a[2:] @ b[2]]))


@pytest.mark.slow
def test_a_whole_compile_takes_the_forced_candidate(cache_dir: Path, tmp_path: Path) -> None:
    report = run(FORCED_MODULE, "dry_twin", cache_dir, tmp_path)
    assert report.get("failed") is None
    assert report["taken"]
    assert all(kernel.startswith("dry_twin.mm") for kernel in report["taken"])
    assert max(report["plain"], report["dynamic"]) < 1.0
    assert report["dynamic_graphs"] == 1
    assert "no such graph" in run(FORCED_MODULE, "no such graph", cache_dir, tmp_path)["failed"]


def test_every_template_is_forced_to_win_once() -> None:
    begun = {name.partition(" ")[0] for name, way in FORCED.items() if way.device == "cuda"}
    assert begun == {trial.name for trial in ON_GPU}
    assert begun <= set(default_registry().names())


def test_a_spec_of_one_number_has_no_strides() -> None:
    (scale,) = drawn([Spec((), torch.float32, values="scale")], "cpu", seed=1)
    assert scale.shape == ()
    assert float(scale) >= 0.5
