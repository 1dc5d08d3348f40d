"""Options for stock ``backend="inductor"``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch._inductor import config as inductor_config

from inductor_plugin import activation, compat
from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError
from inductor_plugin.lowering_scope import CARRIER, ConfigCarrier


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
