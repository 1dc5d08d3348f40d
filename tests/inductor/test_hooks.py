"""The plugin's limits of fused kernels under Inductor's own names."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor import metrics
from torch._inductor.utils import fresh_cache

from inductor_plugin.config import Config
from inductor_plugin.inductor import hooks
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.scope import CARRIER, as_switched, inductor_switches
from inductor_plugin.tuning.runtime import RUNTIME
from tests.support.cache.records import measured, record

pytestmark = pytest.mark.compat

BUFFERS, ARGUMENTS = "max_fusion_unique_io_buffers", "combo_kernel_max_num_args"


def options(stated: dict[str, Any], others: dict[str, Any] | None = None, *inputs: Any) -> Any:
    created = hooks.compile_options(None, Config.load(stated, {}), others or {}, inputs)
    return {name: created[name] for name in (BUFFERS, ARGUMENTS) if name in created}


def test_inductor_has_both_limits_and_they_stay_as_they_are() -> None:
    assert getattr(inductor_config, BUFFERS) is None
    assert getattr(inductor_config, ARGUMENTS) == 250
    assert options({}) == {}


def test_a_stated_limit_becomes_inductor_s() -> None:
    stated = {"max_fusion_buffers": 24, "max_kernel_arguments": "100"}
    assert options(stated) == {BUFFERS: 24, ARGUMENTS: 100}
    assert options({"max_fusion_buffers": 0}) == {}


def test_what_the_user_tells_inductor_wins() -> None:
    stated = {"max_fusion_buffers": 24, "max_kernel_arguments": 100}
    assert options(stated, {BUFFERS: 7}) == {BUFFERS: 7, ARGUMENTS: 100}


def test_the_device_of_the_graph_has_its_own_limit() -> None:
    stated = {"max_fusion_buffers": "cuda=24,cpu=12"}
    here, there = torch.empty(1), torch.empty(1, device="meta")
    assert options(stated, None, 3, here) == {BUFFERS: 12}
    assert options({"max_fusion_buffers": "meta=5,cpu=12"}, None, here, there) == {BUFFERS: 5}
    with mock.patch.object(torch.accelerator, "current_accelerator", return_value=None):
        assert options(stated) == {BUFFERS: 12}
    gpu = torch.device("cuda")
    with mock.patch.object(torch.accelerator, "current_accelerator", return_value=gpu):
        assert options(stated) == {BUFFERS: 24}


@pytest.mark.parametrize(("limit", "kernels"), [("", 1), ("cuda=4", 1), ("cpu=4", 2)])
def test_a_limit_splits_what_inductor_fuses(limit: str, kernels: int) -> None:
    def function(*tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.relu(left + other) for left, other in pairwise(tensor))

    tensors = [torch.randn(64, 64) for _ in range(6)]
    torch.compiler.reset()
    metrics.reset()
    chosen = hooks.compile_options(
        None, Config.load({"max_fusion_buffers": limit, "table": "off"}, {}), {}, tensors
    )
    result = torch.compile(function, options=chosen)(*tensors)
    torch.testing.assert_close(result, function(*tensors))
    assert (metrics.generated_kernel_count > 1) == (kernels > 1)


def test_fresh_caches_of_inductor_forget_what_is_in_memory_only(cache_dir: Path) -> None:
    hooks.compile_options(None, Config.load({}, {}), {})
    stored = record(measured("a"))
    place = (stored.environment, stored.op, stored.digest)
    unkept, kept = (
        RUNTIME.store(Config.load(stated, {}))
        for stated in ({"cache": "off"}, {"cache_dir": str(cache_dir)})
    )
    for store in (unkept, kept):
        store.put_record(stored)
        assert store.record(*place) is not None
    with fresh_cache():
        assert unkept.record(*place) is None
        assert kept.record(*place) is not None


def test_without_a_limit_of_ours_the_accelerator_is_not_asked_for() -> None:
    """To ask whether CUDA is there initializes its driver, which children of a fork cannot use then."""
    with mock.patch.object(torch.accelerator, "current_accelerator") as asked:
        assert options({}) == {}
        assert options({"max_fusion_buffers": 24}, {BUFFERS: 7}) == {BUFFERS: 7}
    asked.assert_not_called()


BACKENDS = "max_autotune_gemm_backends"


@pytest.mark.parametrize(
    ("stated", "others", "backends"),
    [
        ({}, {}, None),
        ({"gemm_backends": "TRITON,CUTLASS"}, {}, "ATEN,TRITON"),  # Inductor's CUTLASS is another
        ({"gemm_backends": "ATEN,CPP"}, {}, "ATEN,CPP"),
        ({"gemm_backends": "TRITON"}, {BACKENDS: "cpp, CUTLASS"}, "ATEN,CPP,CUTLASS"),
        ({}, {BACKENDS: "TRITON, CPP"}, "ATEN,CPP,TRITON"),
        ({}, {BACKENDS: "ATEN,TRITON"}, "ATEN,TRITON"),
    ],
)
def test_the_library_is_always_among_the_backends(
    stated: dict[str, Any], others: dict[str, Any], backends: str | None
) -> None:
    """It is the reference; whether it may win is another question, for which the plugin keeps what was stated."""
    created = hooks.compile_options(None, Config.load(stated, {}), others)
    assert created.get(BACKENDS) == backends
    excluded = others.get(BACKENDS) == "TRITON, CPP"
    kept = "CPP,TRITON" if excluded else stated.get("gemm_backends", "")
    assert created[CARRIER].config.gemm_backends == kept


@pytest.mark.parametrize(
    ("stated", "limit_s", "holds_s"),
    [({}, 7, 7.0), ({}, 100_000, None), ({"compile_timeout_s": 50}, 7, 50.0), ({}, 0, None)],
)
def test_the_lower_of_two_time_limits_holds_unless_ours_is_stated(
    stated: dict[str, Any], limit_s: int, holds_s: float | None
) -> None:
    config = Config.load(stated, {})
    others = {"precompilation_timeout_seconds": limit_s}
    created = hooks.compile_options(None, config, others)
    with inductor_config.patch(created):  # pyright: ignore[reportUnknownMemberType]
        holds = created[CARRIER].config.compile_timeout_s
    assert holds == (config.compile_timeout_s if holds_s is None else holds_s)


def test_inductors_own_sharing_among_ranks_is_off(caplog: pytest.LogCaptureFixture) -> None:
    name = "distributed_max_autotune_gemm"
    if not hasattr(inductor_config, name):
        pytest.skip("this torch has none")
    config = Config.load({}, {})
    assert name not in hooks.compile_options(None, config, {})
    assert caplog.records == []
    assert hooks.compile_options(None, config, {name: True})[name] is False
    assert f"{name} is on: option ranks does that here" in caplog.text


def begun(config: Config, others: dict[str, Any]) -> Any:
    """Return the options of a compile that begins."""
    with mock.patch.object(hooks.compile_fx_module, "compile_fx") as compile_fx:
        hooks.compile_graph(None, [], None, config, others)
    return compile_fx.call_args.kwargs["config_patches"]


def test_a_cache_that_inductor_is_not_to_use_is_not_used() -> None:
    config = Config.load({}, {})
    assert config.cache != "off"
    with inductor_config.patch(force_disable_caches=True):  # pyright: ignore[reportUnknownMemberType]
        before, created = hooks.compile_options(None, config, {}), begun(config, {})
        assert before[CARRIER].config.cache == "off"
    assert before[CARRIER].config.cache == "on"
    assert created[CARRIER].config.cache == "off"  # the gradient may be compiled later


def test_a_switch_among_the_options_of_a_compile_counts() -> None:
    config, others = Config.load({}, {}), {"precompilation_timeout_seconds": 7}
    assert begun(config, others)[CARRIER].config.compile_timeout_s == 7.0
    created = hooks.compile_options(None, config, others)
    assert created[CARRIER].config.compile_timeout_s == config.compile_timeout_s
    with inductor_config.patch(created):  # pyright: ignore[reportUnknownMemberType]
        assert created[CARRIER].config.compile_timeout_s == 7.0
    # torch takes this one in `config_patches` alone: before 2.15 it is no option of ``torch.compile``.
    assert as_switched(config, inductor_switches({"force_disable_caches": True})).cache == "off"


@pytest.mark.parametrize(
    ("patched", "others", "tuning"),
    [
        ({}, {}, {"max_autotune": True}),
        ({"max_autotune": False}, {}, {"max_autotune": False}),
        ({"max_autotune": True}, {}, {"max_autotune": True}),
        ({"max_autotune_gemm": True}, {}, {"max_autotune_gemm": True}),
        ({"max_autotune": False}, {"max_autotune": True}, {"max_autotune": True}),
        ({}, {"max_autotune_gemm": False}, {"max_autotune_gemm": False}),
    ],
)
def test_a_patch_around_a_compile_says_whether_it_tunes(
    patched: dict[str, bool], others: dict[str, Any], tuning: dict[str, bool]
) -> None:
    if patched and compat.torch_version() < (2, 13):
        pytest.skip("this torch's patches cannot be found")
    config, names = Config.load({}, {}), ("max_autotune", "max_autotune_gemm")
    with inductor_config.patch(patched):  # pyright: ignore[reportUnknownMemberType]
        created = begun(config, others)
        assert hooks.compile_options(None, config, others).items() >= tuning.items()
    assert {name: created[name] for name in names if name in created} == tuning
    # What a patch that has ended has left behind is no wish of the user's.
    assert hooks.compile_options(None, config, {})["max_autotune"] is True
