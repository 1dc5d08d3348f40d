"""Lowering and compiling for a named GPU, and that nothing of it stays behind."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false
# pyright: reportDeprecated=false

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.aot import fake_device
from inductor_plugin.aot.fake_device import as_target, replaced, updated
from inductor_plugin.config import set_environment
from inductor_plugin.errors import TargetError
from inductor_plugin.problem.target import target
from tests.support.lowering import Arg, Lab, library_last

needs_cuda_build = pytest.mark.skipif(
    torch.version.cuda is None, reason="needs a CUDA build of torch"
)
pytestmark = pytest.mark.compat


class OnPurposeError(Exception): ...


def state() -> dict[str, Any]:
    """Return everything that lowering for a target touches, attribute by attribute."""
    import triton.runtime
    from torch._dynamo import device_interface
    from torch._inductor import config, scheduler
    from torch._inductor.kernel import mm_grouped
    from torch._inductor.runtime import triton_helpers, triton_heuristics

    owners: dict[str, Any] = {
        "grouped": mm_grouped,
        "cuda": torch.cuda,
        "interface": device_interface.CudaInterface,
        "driver": triton.runtime.driver,
        "tuner": triton_heuristics.CachingAutotuner,
        "helpers": triton_helpers,
        "scheduler": scheduler.Scheduler,
    }
    with suppress(ImportError):  # torch 2.11 has it elsewhere, and it asks nothing there
        from torch._inductor.heuristics.template.triton import BaseConfigHeuristic

        owners["tiles"] = BaseConfigHeuristic
    attributes = {
        f"{name}.{key}": value
        for name, owner in owners.items()
        for key, value in vars(owner).items()
    }
    attributes |= {f"environ.{name}": value for name, value in os.environ.items()}
    known: Any = device_interface.caching_worker_device_properties
    attributes |= {f"properties.{name}": value for name, value in known.items()}
    attributes |= {
        f"config.{name}": getattr(config, name) for name in ("compile_threads", "fx_graph_cache")
    }
    return attributes


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """Return the names of what is another object now, or was not there, or is gone."""
    gone = object()
    return {
        name
        for name in before.keys() | after.keys()
        if before.get(name, gone) is not after.get(name, gone)
        and before.get(name, gone) != after.get(name, gone)
    }


def answers() -> tuple[Any, ...]:
    """Return what Inductor remembers about the device."""
    from torch._inductor import utils
    from torch.utils import _triton

    return _triton.has_triton_tma(), utils.using_b200()


@needs_cuda_build
@pytest.mark.parametrize("how", ["returns", "raises"])
def test_leaving_restores_everything(how: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "/somewhere")
    with as_target("H100"):
        pass  # the modules are loaded now
    before, said = state(), answers()
    within: dict[str, Any] = {}
    with suppress(OnPurposeError), as_target("B200"):
        within = state()
        os.environ["TRITON_CACHE_DIR"] = "/elsewhere"
        os.environ["SET_WITHIN"] = "1"
        del os.environ["PATH"]
        assert answers() != said
        if how == "raises":
            raise OnPurposeError
    assert changed(before, state()) == set()
    assert answers() == said
    for name in (
        "cuda.get_device_properties",
        "cuda.device_count",
        "interface.is_available",
        "interface.synchronize",
        "driver._active",
        "tuner._make_launchers",
        "helpers.set_driver_to_gpu",
        "scheduler.benchmark_fused_nodes",
        "grouped.can_use_triton_kernel",
        "environ.TRITON_CACHE_DIR",
        "properties.cuda",
    ):
        assert name in changed(before, within), name


@needs_cuda_build
def test_the_device_is_answered_for_but_not_available():
    there = torch.cuda.is_available()
    with as_target("A100", devices=3, facts={"total_memory": 7}) as properties:
        assert torch.cuda.is_available() is there
        assert torch.cuda.get_device_capability() == (8, 0)
        assert torch.cuda.device_count() == 3
        card: Any = torch.cuda.get_device_properties(2)
        assert card is properties
        assert (card.multi_processor_count, card.total_memory) == (108, 7)
        with as_target(target("L40S")):
            assert torch.cuda.get_device_name() == "NVIDIA L40S"
        assert torch.cuda.get_device_name() == "NVIDIA A100-SXM4-80GB"


@needs_cuda_build
@pytest.mark.parametrize(
    ("name", "tma", "b200", "shared_kib"),
    [
        ("A100", False, False, 163),
        ("L40S", False, False, 99),
        ("H100", True, False, 227),
        ("B200", True, True, 227),
    ],
)
def test_what_asks_for_a_device_first_sees_the_target(
    name: str, tma: bool, b200: bool, shared_kib: int
):
    from triton.runtime import driver

    with as_target(name):
        assert answers() == (tma, b200)
        active: Any = driver.active
        said = active.utils.get_device_properties(0)
        assert said["max_shared_mem"] == shared_kib << 10


@needs_cuda_build
@pytest.mark.parametrize("name", ["H100", "H200", "A100", "L40S", "RTX 4090", "B200"])
def test_a_matrix_product_becomes_a_cubin_of_the_target(
    name: str, cache_dir: Path, inductor_cache: Path
):
    wanted = target(name)
    major, minor = wanted.capability
    with as_target(wanted), Lab(library_last, cache_dir).open() as lab:
        code = lab.lower(
            lambda a, b: (torch.relu(torch.mm(a, b)),), Arg((256, 128)), Arg((128, 512))
        )
    assert "extern_kernels.mm(" not in code
    assert f"multi_processor_count={wanted.multiprocessors}" in code
    assert f"cc={major * 10 + minor}" in code
    cubins = list(inductor_cache.glob("triton/0/*/*.cubin"))
    assert cubins
    for path in cubins:
        assert path.read_bytes().startswith(b"\x7fELF")
        facts = json.loads(path.with_suffix(".json").read_text())
        expected = {"backend": "cuda", "arch": major * 10 + minor, "warp_size": 32}
        assert facts["target"] == expected
        assert 0 < facts["shared"] <= wanted.shared_per_block


def experts(a: Any, b: Any, ends: Any) -> tuple[torch.Tensor]:
    aten: Any = torch
    return (aten._grouped_mm(a, b.transpose(1, 2), ends),)


@needs_cuda_build
@pytest.mark.parametrize(("name", "offered"), [("H200", True), ("A100", False)])
def test_a_grouped_product_has_stocks_kernels_as_on_the_device(
    name: str, offered: bool, cache_dir: Path, inductor_cache: Path
):
    operands = (Arg((4000, 512)), Arg((8, 1024, 512)), Arg((8,), torch.int32))
    with as_target(name), Lab(library_last, cache_dir).open() as lab:
        code = lab.lower(experts, *operands, gemm_backends="ATEN,TRITON")
    assert ("triton_grouped_mm" in {entry.name for entry in lab.entries("triton")}) is offered
    assert ("def triton_tem_fused" in code) is offered
    assert bool(list(inductor_cache.glob("triton/0/*/triton_tem*.cubin"))) is offered


@needs_cuda_build
def test_stocks_tiles_are_those_that_fit_the_device():
    pruning: Any = pytest.importorskip("torch._inductor.heuristics.template.triton")
    heuristic = pruning.CUDAConfigHeuristic()
    checker = heuristic._get_exceeding_shared_memory_checker
    large = pruning.GemmConfig(128, 128, 128, 3, 8)  # 192 KiB of 16-bit operands
    for name, too_large in (("H200", False), ("L40S", True)):
        with as_target(name):
            exceeds = heuristic._get_exceeding_shared_memory_checker(False, 0)
            assert exceeds(large, 2) is too_large, name
    assert heuristic._get_exceeding_shared_memory_checker == checker


def test_two_threads_that_ask_leave_the_device_as_it_was(monkeypatch: pytest.MonkeyPatch):
    there = torch.cuda.is_available
    monkeypatch.setattr(torch.cuda, "is_available", there)  # put back behind a failure
    inside, both, left = (threading.Event() for _ in range(3))

    def first() -> None:
        inside.set()
        both.wait(0.3)  # the other one has to stay outside

    def second() -> None:
        both.set()
        left.wait(10)

    def ask_first() -> None:
        fake_device._with_device(first)()
        left.set()

    def ask_second() -> None:
        inside.wait(10)
        fake_device._with_device(second)()

    threads = [threading.Thread(target=question) for question in (ask_first, ask_second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.cuda.is_available is there


def test_an_unknown_name_is_refused_before_anything_changes():
    with pytest.raises(TargetError, match="unknown target"), as_target("H1"):
        pytest.fail("the block ran")


def test_a_torch_without_cuda_cannot_lower_for_a_gpu():
    with (
        replaced(torch.version, "cuda", None),
        pytest.raises(TargetError, match="built without CUDA"),
        as_target("H100"),
    ):
        pytest.fail("the block ran")


class _Base:
    inherited = 1

    @staticmethod
    def static() -> int:
        return 2


class _Derived(_Base): ...


def test_replaced_gives_back_what_was_there_as_it_was():
    static = vars(_Base)["static"]
    with suppress(OnPurposeError), replaced(_Base, "static", lambda: 3):
        assert _Base.static() == 3
        raise OnPurposeError
    assert vars(_Base)["static"] is static
    with replaced(_Derived, "inherited", 5):
        assert _Derived.inherited == 5
        assert _Base.inherited == 1
    assert "inherited" not in vars(_Derived)


def test_updated_gives_back_the_keys_and_the_order():
    mapping: dict[str, Any] = {"a": 1, "b": 2}
    with suppress(OnPurposeError), updated(mapping, {"b": 3, "c": 4}):
        assert mapping == {"a": 1, "b": 3, "c": 4}
        raise OnPurposeError
    assert list(mapping.items()) == [("a", 1), ("b", 2)]


def test_restored_variables_are_exactly_the_old_ones(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("KEPT_AS_IT_WAS", "old")
    before = dict(os.environ)
    os.environ.update(KEPT_AS_IT_WAS="new", NOT_THERE_BEFORE="1")
    set_environment(before)
    assert dict(os.environ) == before
