"""What becomes of the candidates where kernels cannot be generated."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest

from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import target
from inductor_plugin.template import CudaSource
from inductor_plugin.templates.cutlass import gemm, source
from inductor_plugin.templates.cutlass.gemm import CutlassGemm
from inductor_plugin.templates.cutlass.source import why_not_generated


def operand(size: tuple[int, int]) -> Operand:
    return Operand(size, (size[1], 1), "bfloat16", "cuda")


PROBLEM = Problem(
    "mm", (operand((512, 256)), operand((256, 1024))), operand((512, 1024)), target=target("H100")
)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Forget what this process knows of its generator, before and after."""
    cleared: Any = (why_not_generated, source._modules, gemm._text)  # pyright: ignore[reportPrivateUsage]
    for name in cleared:
        name.cache_clear()
    yield
    for name in cleared:
        name.cache_clear()


def not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str, package: str | None = None) -> None:
        assert name == "cutlass_library"

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        assert name == "nvidia-cutlass"
        return "3.9.2.0"

    monkeypatch.setattr(importlib.metadata, "version", version)


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def modules() -> None:
        raise ModuleNotFoundError("No module named 'numpy'")

    monkeypatch.setattr(source, "_modules", modules)


WAYS = {
    not_there: "nvidia-cutlass is not installed: pip install",
    another_version: "nvidia-cutlass 3.9.2.0 is installed, kernels need 4.x: pip install",
    broken: "cannot be imported (ModuleNotFoundError: No module named 'numpy'",
}

needs_cutlass = pytest.mark.skipif(
    importlib.util.find_spec("cutlass_library") is None,
    reason="needs cutlass_library, of the wheel nvidia-cutlass",
)


@needs_cutlass
@pytest.mark.parametrize("way", WAYS, ids=lambda way_: way_.__name__)
def test_candidates_stay_without_a_text_and_the_reason_is_known(
    way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    template = CutlassGemm()
    complete = template.candidates(PROBLEM)
    why_not_generated.cache_clear()
    gemm._text.cache_clear()  # pyright: ignore[reportPrivateUsage]
    source._modules.cache_clear()  # pyright: ignore[reportPrivateUsage]
    way(monkeypatch)
    assert template.reject(PROBLEM) is None
    named = template.candidates(PROBLEM)
    assert WAYS[way] in str(why_not_generated())
    assert [config.name for config in named] == [config.name for config in complete]
    for bare, whole in zip(named, complete, strict=True):
        assert isinstance(bare.kernel, CudaSource)
        assert isinstance(whole.kernel, CudaSource)
        assert (bare.kernel.text, bool(whole.kernel.text)) == ("", True)
        assert (bare.kernel.symbol, bare.kernel.arch) == (whole.kernel.symbol, whole.kernel.arch)


@needs_cutlass
def test_a_generator_that_is_there_has_no_reason() -> None:
    assert why_not_generated() is None


@needs_cutlass
def test_a_library_from_elsewhere_needs_no_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    assert why_not_generated() is None
