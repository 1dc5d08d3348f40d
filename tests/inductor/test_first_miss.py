"""The hooks of the lowering are imported and installed by the first graph that is in no cache."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import select_algorithm

import inductor_plugin
from inductor_plugin.config import Config
from inductor_plugin.inductor import first_miss, lowering_hooks
from inductor_plugin.inductor.graph import stored, unstored
from inductor_plugin.inductor.graph.due import Due
from tests.support.lowering import Arg, Lab, library_first

pytestmark = [
    pytest.mark.usefixtures("fake_gpu"),
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

SHAPES = Arg((256, 128)), Arg((128, 512))


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    inductor_plugin.disable()
    torch._dynamo.reset()
    yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def product(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor]:
    return (a @ b,)


def selector() -> type[Any]:
    return type(select_algorithm.get_algorithm_selector_cache())


def test_options_alone_import_no_lowering(cache_dir: Path) -> None:
    script = f"""
import sys
import inductor_plugin
inductor_plugin.options(cache_dir={str(cache_dir)!r})
inductor_plugin.enable(cache_dir={str(cache_dir)!r})
print(*(name for name in sys.modules if name.startswith("inductor_plugin.")))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    loaded = done.stdout.split()
    assert "inductor_plugin.inductor.hooks" in loaded
    late = ("lowering_hooks", "graph.session", "graph.selector", "attention", "fusion", "guard")
    assert not [name for name in late if f"inductor_plugin.inductor.{name}" in loaded]
    assert "inductor_plugin.tuning.runtime" not in loaded


def test_the_first_graph_installs_them_and_disable_puts_inductors_back(cache_dir: Path) -> None:
    stock, original = selector(), compile_fx_module.fx_codegen_and_compile
    with Lab(library_first, cache_dir).open() as lab:
        inductor_plugin.options()
        assert selector() is stock
        lab.lower(product, *SHAPES)
    assert selector() is not stock
    inductor_plugin.disable()
    assert selector() is stock
    assert compile_fx_module.fx_codegen_and_compile is original


def test_a_graph_outside_the_scope_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first_miss.install()
    monkeypatch.setattr(first_miss, "_lowering_hooks", pytest.fail)
    stock = selector()
    a, b = torch.ones(4, 3), torch.ones(3, 2)
    assert torch.compile(torch.mm)(a, b).equal(a @ b)
    assert selector() is stock


def test_they_are_installed_again_where_they_were_removed(cache_dir: Path) -> None:
    with Lab(library_first, cache_dir).open() as lab:
        lab.lower(product, *SHAPES)
        tuned = selector()
        lowering_hooks.uninstall()
        assert selector() is not tuned
        lab.lower(product, *SHAPES)
    assert selector() is tuned


def test_inductors_function_is_wrapped_once() -> None:
    first_miss.install()
    wrapped: Any = compile_fx_module.fx_codegen_and_compile
    first_miss.install()
    assert compile_fx_module.fx_codegen_and_compile is wrapped
    first_miss.uninstall()
    assert compile_fx_module.fx_codegen_and_compile is wrapped.__wrapped__
    assert not first_miss.installed()


def test_a_compile_that_disable_overtakes_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = selector()
    monkeypatch.setattr(compile_fx_module, "fx_codegen_and_compile", lambda: "stock")
    monkeypatch.setattr(first_miss, "active_config", Config)
    first_miss.install()
    called: Any = compile_fx_module.fx_codegen_and_compile  # as a thread that compiles has it
    first_miss.uninstall()
    assert called() == "stock"
    assert selector() is stock


def test_a_graph_begins_without_what_one_that_was_not_stored_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marks: Any = unstored
    decisions: Any = stored
    stock = lambda: (marks._GRAPH.due, decisions._LAST.decisions)  # noqa: E731
    monkeypatch.setattr(compile_fx_module, "fx_codegen_and_compile", stock)
    first_miss.install()
    unstored.add_due(Due(at=0.0))
    monkeypatch.setattr(decisions._LAST, "decisions", ("of the graph before",), raising=False)
    called: Any = compile_fx_module.fx_codegen_and_compile
    assert called() == (None, ())
    first_miss.uninstall()
