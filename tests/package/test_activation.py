"""Options for stock ``backend="inductor"``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
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


def test_a_compile_of_the_stock_backend_takes_own_options_while_the_plugin_is_on() -> None:
    wrapper: Any = torch._TorchCompileInductorWrapper  # pyright: ignore[reportPrivateUsage]
    activation.enable(policy="cached")
    config = carried(wrapper(None, {"tune_budget_s": 5, "epilogue_fusion": False}, None).config)
    assert (config.tune_budget_s, config.policy) == (5.0, "cached")
    assert wrapper(None, {"epilogue_fusion": False}, None).config == {"epilogue_fusion": False}
    with pytest.raises(OptionError, match="tune_budget_s is 'long'"):
        wrapper(None, {"tune_budget_s": "long"}, None)
    activation.disable()
    with pytest.raises(RuntimeError, match="Unexpected optimization option tune_budget_s"):
        wrapper(None, {"tune_budget_s": 5}, None)


def test_options_that_are_refused_change_nothing(tmp_path: Path) -> None:
    wrapper: Any = torch._TorchCompileInductorWrapper  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(OptionError, match="typo"):
        activation.enable(typo=1)
    with pytest.raises(RuntimeError, match="Unexpected optimization option tune_budget_s"):
        wrapper(None, {"tune_budget_s": 5}, None)
    activation.enable(policy="cached")
    with pytest.raises(OptionError):
        activation.enable(policy="pinned", pin_file=str(tmp_path / "missing.json"))
    config = carried(wrapper(None, {"tune_budget_s": 5}, None).config)
    assert (config.tune_budget_s, config.policy) == (5.0, "cached")


def test_backends_are_handed_on_to_inductor_with_the_library_kernel() -> None:
    name = "max_autotune_gemm_backends"
    assert name not in activation.options()
    assert activation.options(gemm_backends="ATEN")[name] == "ATEN"
    assert activation.options(gemm_backends="CPP")[name] == "ATEN,CPP"
    assert activation.options(gemm_backends="ATEN", **{name: "TRITON"})[name] == "ATEN,TRITON"
    assert activation.options(**{name: "CPP, triton"})[name] == "ATEN,CPP,TRITON"
    assert activation.options(**{name: "ATEN"})[name] == "ATEN"


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


@pytest.mark.parametrize(
    ("chosen", "sentence"),
    [
        ({"tune_budget": 3}, "unknown option 'tune_budget'; did you mean 'tune_budget_s'?"),
        ({"max_autotun": True}, "unknown option 'max_autotun'; did you mean 'max_autotune'?"),
        ({"qqq": 1}, "unknown option 'qqq'; known are: attention_backends, "),
        (
            {"max_autotune": "yes"},
            "option max_autotune is 'yes', of type str; torch._inductor.config has bool",
        ),
    ],
)
def test_a_wrong_option_is_one_sentence(chosen: dict[str, object], sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        activation.options(**chosen)
    assert str(caught.value).startswith(sentence)
    assert "neither" not in str(caught.value)


def test_a_wrong_mode_names_those_there_are() -> None:
    with pytest.raises(OptionError, match="mode is 'nonsense'; use one of default, "):
        activation.compile_graph(None, [], "nonsense", {})


def test_a_bad_pin_file_is_an_error_before_anything_is_compiled(tmp_path: Path) -> None:
    path = tmp_path / "pins.json"
    path.write_text("{}")
    with pytest.raises(OptionError, match="it has no list 'pins'"):
        activation.options(policy="pinned", pin_file=str(path))


def test_a_pin_file_that_is_not_read_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        activation.options(pin_file="pins.json")
    (record,) = caplog.records
    assert record.getMessage() == (
        "inductor-plugin: option pin_file is 'pins.json', but policy is 'tune', so that file is not "
        "read; set policy=pinned"
    )


def test_where_torch_lacks_the_hooks_inductors_options_come_back_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    activation._step_aside.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(compat, "why_not_supported", lambda: "torch 9.9 has no hooks")
    with pytest.warns(RuntimeWarning, match="no hooks"):
        assert activation.options(tune_budget_s=1, freezing=True) == {"freezing": True}
    assert activation.options(freezing=True) == {"freezing": True}  # warned once


def test_a_bad_option_is_an_error_even_where_torch_lacks_the_hooks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compat, "why_not_supported", lambda: "torch 9.9 has no hooks")
    with pytest.raises(OptionError, match="policy"):
        activation.options(policy="guess")


def compile_with(name: str, graph: str) -> tuple[str, str]:
    return name, graph


class Inductor(ModuleType):
    """Stands for ``torch._inductor.compile_fx``, which a compile calls by the module's name."""

    def __init__(self) -> None:
        super().__init__("late_compile_fx")
        self.compile_fx: Any = functools.partial(compile_with, "stock")
        self.stock = self.compile_fx


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> Inductor:
    """Return a module that `enable` puts under the plugin."""
    module = Inductor()

    def enable() -> None:
        module.compile_fx = functools.partial(compile_with, "plugin")

    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(activation, "_COMPILE_FX", module.__name__)
    monkeypatch.setattr(activation, "_STOCK", {})
    monkeypatch.setattr(activation, "enable", enable)
    return module


def fail_with(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def enable() -> None:
        raise error

    monkeypatch.setattr(activation, "enable", enable)


def test_it_is_enabled_by_the_first_compile_not_by_the_import(inductor: Inductor) -> None:
    activation.enable_at_first_compile(inductor)
    waiting = inductor.compile_fx
    assert inductor.compile_fx("graph") == ("plugin", "graph")
    assert inductor.compile_fx is not waiting


def test_who_took_the_function_before_the_first_compile_gets_the_one_of_today(
    inductor: Inductor, monkeypatch: pytest.MonkeyPatch
) -> None:
    activation.enable_at_first_compile(inductor)
    taken = inductor.compile_fx
    activation.enable()  # by hand, with options of its own
    again: list[str] = []
    monkeypatch.setattr(activation, "enable", lambda: again.append("enabled"))
    assert taken("graph") == ("plugin", "graph")
    assert again == []
    activation.disable()
    assert taken("graph") == ("stock", "graph")


def test_disabled_before_the_first_compile_it_stays_off(inductor: Inductor) -> None:
    activation.enable_at_first_compile(inductor)
    activation.disable()
    assert inductor.compile_fx is inductor.stock


def test_disabled_before_inductor_is_there_nothing_waits_for_it(inductor: Inductor) -> None:
    out_of_date = activation.enable_later()
    activation.disable()
    out_of_date(inductor)
    assert inductor.compile_fx is inductor.stock
    activation.enable_later()(inductor)
    assert inductor.compile_fx is not inductor.stock
    activation.disable()


def test_a_bad_option_is_raised_by_every_compile_until_it_is_corrected(
    inductor: Inductor, monkeypatch: pytest.MonkeyPatch
) -> None:
    enable = activation.enable
    fail_with(monkeypatch, OptionError("variable X is 17; use text"))
    activation.enable_at_first_compile(inductor)
    for _ in range(2):
        with pytest.raises(OptionError, match="variable X is 17; use text"):
            inductor.compile_fx("graph")
    monkeypatch.setattr(activation, "enable", enable)
    assert inductor.compile_fx("graph") == ("plugin", "graph")
    activation.disable()
    assert inductor.compile_fx("graph") == ("stock", "graph")


def test_disable_takes_the_refusal_away(
    inductor: Inductor, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_with(monkeypatch, OptionError("variable X is 17; use text"))
    activation.enable_at_first_compile(inductor)
    taken = inductor.compile_fx
    with pytest.raises(OptionError):
        taken("graph")
    activation.disable()
    assert inductor.compile_fx is inductor.stock
    assert taken("graph") == ("stock", "graph")


def test_any_other_failure_is_one_warning_and_leaves_the_stock_function(
    inductor: Inductor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fail_with(monkeypatch, RuntimeError("the hook is gone"))
    activation.enable_at_first_compile(inductor)
    for _ in range(2):
        assert inductor.compile_fx("graph") == ("stock", "graph")
    (record,) = caplog.records
    assert record.getMessage() == (
        "inductor-plugin: it is off: RuntimeError: the hook is gone; stock Inductor is used"
    )


def test_a_callback_observes_within_the_block_alone() -> None:
    from inductor_plugin.inductor.graph import session

    seen: list[Any] = []
    with inductor_plugin.observe(seen.extend):
        (observer,) = session.OBSERVERS
    assert observer == seen.extend
    assert session.OBSERVERS == []


def test_an_option_of_one_compile_wins_over_that_of_the_process() -> None:
    wrapper: Any = torch._TorchCompileInductorWrapper  # pyright: ignore[reportPrivateUsage]
    activation.enable(tune_budget_s=60, policy="cached")
    config = carried(wrapper(None, {"tune_budget_s": 5}, None).config)
    assert (config.tune_budget_s, config.policy) == (5.0, "cached")
