"""The configuration rides through Inductor, and into its cache key."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass

from inductor_plugin.config import Config
from inductor_plugin.inductor.facts.scope import (
    CARRIER,
    ConfigCarrier,
    active_config,
    host_counts,
    user_passes,
    without_plugin,
)
from tests.support.candidates.providers import offered


class Pass(CustomGraphPass):
    """A user's pass that can be cached."""

    def __init__(self, name: str, seen: list[str] | None = None) -> None:
        self.name = name
        self.seen = seen

    def __call__(self, graph: torch.fx.Graph) -> None:
        assert self.seen is not None
        self.seen.append(self.name)

    def uuid(self) -> Any:
        return self.name


def config(**options: Any) -> Config:
    return Config.load(options, environ={})


def graph() -> torch.fx.Graph:
    return torch.fx.symbolic_trace(lambda x: x + 1).graph


def test_nothing_is_active_outside_the_plugins_scope() -> None:
    assert active_config() is None


@pytest.mark.parametrize("several", [False, True], ids=["alone", "in a list"])
def test_the_carried_configuration_is_active_while_inductors_patch_is(several: bool) -> None:
    carrier = ConfigCarrier(config(tune_budget_s=7))
    with inductor_config.patch({CARRIER: [Pass("own"), carrier] if several else carrier}):
        setting = active_config()
        assert setting is not None
        assert setting.tune_budget_s == 7
    assert active_config() is None


def test_what_the_user_leaves_to_inductors_switches_they_decide_when_it_is_read() -> None:
    carrier, named = ConfigCarrier(config()), ConfigCarrier(config(cache="on", compile_timeout_s=9))
    key, before = carrier.uuid(), carrier.config
    assert before is carrier.config  # it is read at each product and fusion
    with inductor_config.patch(force_disable_caches=True, precompilation_timeout_seconds=7):
        with inductor_config.patch({CARRIER: carrier}):
            setting = active_config()
            assert setting is not None
            assert (setting.cache, setting.compile_timeout_s) == ("off", 7.0)
        assert carrier.uuid() != key
        assert carrier == ConfigCarrier(config())
        assert (named.config.cache, named.config.compile_timeout_s) == ("on", 9.0)
    assert (before.cache, carrier.uuid()) == ("on", key)
    assert carrier.config == before


def test_a_users_pass_is_no_configuration() -> None:
    with inductor_config.patch({CARRIER: Pass("own")}):
        assert active_config() is None


def test_the_users_passes_run_in_their_order_and_the_graph_is_announced_last() -> None:
    seen: list[str] = []
    carrier = ConfigCarrier(
        config(), (Pass("a", seen), Pass("b", seen)), lambda _config, _graph: seen.append("graph")
    )
    carrier(graph())
    assert seen == ["a", "b", "graph"]


def test_a_carrier_without_company_leaves_the_graph_as_it_is() -> None:
    lowered_graph = graph()
    before = str(lowered_graph)
    ConfigCarrier(config())(lowered_graph)
    assert str(lowered_graph) == before


def test_the_cache_key_changes_with_what_changes_code_and_with_nothing_else() -> None:
    plain = ConfigCarrier(config()).uuid()
    assert ConfigCarrier(config(progress="off", trace_path="t.json")).uuid() == plain
    assert ConfigCarrier(config(never_slower_margin=1.5)).uuid() != plain
    assert ConfigCarrier(config(), (Pass("own"),)).uuid() != plain


def test_a_users_pass_without_a_key_keeps_the_graph_out_of_the_cache() -> None:
    assert ConfigCarrier(config(), (lambda _graph: None,)).uuid() is None
    assert ConfigCarrier(config(), (Pass("own"), lambda _graph: None)).uuid() is None


def test_carriers_of_equal_options_are_equal() -> None:
    assert ConfigCarrier(config()) == ConfigCarrier(config())
    assert hash(ConfigCarrier(config())) == hash(ConfigCarrier(config()))
    assert ConfigCarrier(config()) != ConfigCarrier(config(tune_budget_s=3))
    assert ConfigCarrier(config()) != config()


def test_a_deep_copy_of_inductors_configuration_keeps_the_carrier() -> None:
    carrier = ConfigCarrier(config())
    assert copy.deepcopy({"pass": carrier})["pass"] is carrier


def test_only_the_users_passes_are_taken_over() -> None:
    own, carrier = Pass("own"), ConfigCarrier(config())
    assert user_passes(None) == ()
    assert user_passes(own) == (own,)
    assert user_passes(carrier) == ()
    assert user_passes([own, carrier]) == (own,)
    assert user_passes((own,)) == (own,)


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch has no switches of CUDA")
def test_a_switch_of_library_kernels_that_the_user_has_changed_is_part_of_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    carrier = ConfigCarrier(config())
    before = carrier.uuid()
    torch.backends.cuda.matmul.allow_fp16_accumulation = True
    try:
        assert carrier.uuid() == before  # the process uses no GPU, and none is set up for a key
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        assert carrier.uuid() != before
    finally:
        torch.backends.cuda.matmul.allow_fp16_accumulation = False
    assert carrier.uuid() == before


def test_another_set_of_templates_is_another_key() -> None:
    carrier = ConfigCarrier(config())
    before = carrier.uuid()
    with offered("good"):
        during = carrier.uuid()
        assert during != before
    with offered("good") as template:
        template.version = "2"
        assert carrier.uuid() not in (before, during)
    assert carrier.uuid() == before


def test_a_carrier_does_nothing_where_the_plugin_is_not_in_place() -> None:
    seen: list[Any] = []
    own = Pass("own", [])
    off = ConfigCarrier(config(), (own,), lambda *graph: seen.append(graph), lambda: False)
    on = ConfigCarrier(config(), (own,), lambda *graph: seen.append(graph), lambda: True)
    off(graph())
    assert seen == []
    on(graph())
    assert len(seen) == 1
    assert off.uuid() != on.uuid()
    assert off.uuid() is not None


def test_a_compile_without_the_plugin_keeps_the_users_passes() -> None:
    seen: list[str] = []
    own = Pass("a", seen), Pass("b", seen)
    assert without_plugin() == {CARRIER: None}
    with inductor_config.patch({CARRIER: ConfigCarrier(config())}):
        assert without_plugin() == {CARRIER: None}
    with inductor_config.patch({CARRIER: ConfigCarrier(config(), own)}):
        patch = without_plugin()
        with inductor_config.patch(patch):
            assert active_config() is None
    patch[CARRIER](graph())
    assert seen == ["a", "b"]
    assert patch[CARRIER].uuid() is None  # what is compiled so is not kept


@pytest.mark.parametrize(
    ("graphs", "cpp", "counts"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_the_host_counts_where_it_launches_from_python(
    *, graphs: bool, cpp: bool, counts: bool
) -> None:
    with inductor_config.patch({"triton.cudagraphs": graphs, "cpp_wrapper": cpp}):
        assert host_counts() is counts
