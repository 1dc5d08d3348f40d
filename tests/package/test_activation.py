"""Options for stock ``backend="inductor"``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from torch._inductor import config as inductor_config

import inductor_plugin
from inductor_plugin import activation
from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.scope import CARRIER, ConfigCarrier


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    """Take the hooks away that asking for options puts in place."""
    yield
    activation.disable()


def carried(options: dict[str, object]) -> Config:
    carrier = options[CARRIER]
    assert isinstance(carrier, ConfigCarrier)
    return carrier.config


def test_own_options_travel_in_the_carrier_and_inductors_beside_it() -> None:
    options = activation.options(tune_budget_s=60, freezing=True)
    assert carried(options).tune_budget_s == 60.0
    assert options["freezing"] is True
    assert "tune_budget_s" not in options


def test_every_option_is_one_that_inductor_knows() -> None:
    known = inductor_config.get_config_copy()
    assert set(activation.options(gemm_backends="ATEN,TRITON")) <= set(known)


def test_tuning_is_on_unless_the_user_says_otherwise() -> None:
    assert activation.options()["max_autotune"] is True
    assert activation.options(max_autotune=False)["max_autotune"] is False
    assert "max_autotune" not in activation.options(max_autotune_gemm=True)


def test_backends_are_handed_on_to_inductor_unless_the_user_names_them_there() -> None:
    name = "max_autotune_gemm_backends"
    assert name not in activation.options()
    assert activation.options(gemm_backends="ATEN")[name] == "ATEN"
    assert activation.options(gemm_backends="ATEN", **{name: "TRITON"})[name] == "TRITON"


def test_the_users_own_pass_is_kept() -> None:
    def own(_graph: object) -> None:
        return

    carrier = activation.options(**{CARRIER: own})[CARRIER]
    assert isinstance(carrier, ConfigCarrier)
    assert carrier._inner == (own,)  # pyright: ignore[reportPrivateUsage]


def test_an_option_that_neither_knows_is_an_error() -> None:
    with pytest.raises(OptionError, match="tune_bugdet_s"):
        activation.options(tune_bugdet_s=3)
    with pytest.raises(OptionError, match="tune_budget_s"):
        activation.options(tune_budget_s="soon")


def test_where_torch_lacks_the_hooks_inductors_options_come_back_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activation._step_aside.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(compat, "unsupported", lambda: "torch 9.9 has no hooks")
    with pytest.warns(RuntimeWarning, match="no hooks"):
        assert activation.options(tune_budget_s=1, freezing=True) == {"freezing": True}
    assert activation.options(freezing=True) == {"freezing": True}  # warned once


def test_a_bad_option_is_an_error_even_where_torch_lacks_the_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "unsupported", lambda: "torch 9.9 has no hooks")
    with pytest.raises(OptionError, match="policy"):
        activation.options(policy="guess")


class Late:
    """A module that stands for Inductor's, not imported yet, and how often `enable` was called."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.enabled = 0
        self.error: Exception | None = None

    def enable(self) -> None:
        if self.error is not None:
            raise self.error
        self.enabled += 1

    def load(self) -> ModuleType:
        return importlib.import_module(self.file.stem)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Late]:
    found = Late(tmp_path / "late_compile_fx.py")
    found.file.write_text("def compile_fx(graph):\n    return 'stock', graph\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(activation, "_COMPILE_FX", found.file.stem)
    monkeypatch.setattr(activation, "_STOCK", {})
    monkeypatch.setattr(activation, "enable", found.enable)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = list(sys.meta_path)
    yield found
    sys.modules.pop(found.file.stem, None)
    assert sys.meta_path == before


def test_it_is_enabled_once_when_the_module_is_executed(late: Late) -> None:
    activation.enable_deferred()
    activation.enable_deferred()
    assert late.enabled == 0
    assert late.load() is late.load()
    assert late.enabled == 1


def test_looking_for_the_module_does_not_disarm(late: Late) -> None:
    activation.enable_deferred()
    for _ in range(2):
        spec = importlib.util.find_spec(late.file.stem)
        assert spec is not None
        assert spec.origin == str(late.file)
    assert late.enabled == 0
    late.load()
    assert late.enabled == 1


def test_an_import_that_fails_does_not_disarm(late: Late) -> None:
    text = late.file.read_text()
    late.file.write_text("raise ImportError('half installed')")
    activation.enable_deferred()
    with pytest.raises(ImportError, match="half installed"):
        late.load()
    assert late.enabled == 0
    late.file.write_text(text)
    importlib.invalidate_caches()
    late.load()
    assert late.enabled == 1


def test_disabled_before_the_module_is_executed_it_stays_off(late: Late) -> None:
    activation.enable_deferred()
    assert importlib.util.find_spec(late.file.stem) is not None
    activation.disable()
    late.load()
    assert late.enabled == 0


def test_a_bad_option_is_raised_by_every_compile_until_it_is_corrected(late: Late) -> None:
    late.error = OptionError("unknown variable X=1; known are: Y")
    activation.enable_deferred()
    module = late.load()
    for _ in range(2):
        with pytest.raises(OptionError, match="unknown variable X=1; known are: Y"):
            module.compile_fx("graph")
    late.error = None
    assert module.compile_fx("graph") == ("stock", "graph")
    assert late.enabled == 1


def test_a_corrected_option_puts_the_compile_under_the_plugin(
    late: Late, monkeypatch: pytest.MonkeyPatch
) -> None:
    late.error = OptionError("bad")
    activation.enable_deferred()
    module = late.load()

    def enable() -> None:
        module.compile_fx = lambda graph: ("plugin", graph)  # type: ignore[attr-defined]

    monkeypatch.setattr(activation, "enable", enable)
    assert module.compile_fx("graph") == ("plugin", "graph")
    activation.disable()
    assert module.compile_fx("graph") == ("stock", "graph")


def test_disable_takes_the_refusal_away(late: Late) -> None:
    late.error = OptionError("bad")
    activation.enable_deferred()
    module = late.load()
    activation.disable()
    assert module.compile_fx("graph") == ("stock", "graph")


def test_a_module_that_is_there_already_is_enabled_or_refuses(late: Late) -> None:
    module = late.load()
    activation.enable_deferred()
    assert late.enabled == 1
    late.error = OptionError("bad")
    activation.enable_deferred()
    with pytest.raises(OptionError, match="bad"):
        module.compile_fx("graph")
    activation.disable()


def test_any_other_failure_is_a_warning_and_leaves_the_stock_function(late: Late) -> None:
    late.error = RuntimeError("the hook is gone")
    activation.enable_deferred()
    with pytest.warns(RuntimeWarning, match="inductor-plugin is off: the hook is gone"):
        module = late.load()
    assert module.compile_fx("graph") == ("stock", "graph")


def test_a_callback_observes_within_the_block_alone() -> None:
    from inductor_plugin.inductor.graph import session

    seen: list[Any] = []
    with inductor_plugin.observe(seen.extend):
        (observer,) = session.OBSERVERS
    assert observer == seen.extend
    assert session.OBSERVERS == []
