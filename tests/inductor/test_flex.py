"""FlexAttention's configurations under the plugin, on GPUs that are not there."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor import lowering as inductor_lowering
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V
from torch.nn.attention.flex_attention import flex_attention

from inductor_plugin.aot.fake_device import as_target
from inductor_plugin.cost.flex import FlexCall, shared
from inductor_plugin.cost.flex_table import MORE, Tile
from inductor_plugin.inductor import flex, hooks
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.compat import torch_version
from inductor_plugin.problem.target import target
from tests.support.attention.flex import SCALE, Flex
from tests.support.attention.flex_lab import (
    CompilingLab,
    blocks_of,
    opened,
    tile_of,
    without_the_plugins_list,
)
from tests.support.lowering import Arg
from tests.support.triton import interpreter

pytestmark = [
    pytest.mark.compat,
    pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch"),
]

TMA_FORWARD = pytest.mark.skipif(torch_version() < (2, 14), reason="a hook of torch 2.14")
TMA_BACKWARD = pytest.mark.skipif(torch_version() < (2, 15), reason="a hook of torch 2.15")
NO_VALID = "could be used|No valid|NoValidChoices|no valid"
OPS = (torch.ops.higher_order.flex_attention, torch.ops.higher_order.flex_attention_backward)


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_the_plugin_measures_them(way: str, cache_dir: Path) -> None:
    with opened("H200", cache_dir) as lab:
        getattr(Flex(), way)(lab)
    (task,) = lab.tasks
    assert {entry.kind for entry in task.entries} == {"triton"}
    assert len(lab.screens) == len(task.entries) >= 8
    # Random indices of blocks would make a kernel read outside its operands.
    for job in lab.screens:
        integers = [operand for operand in job.candidate.inputs if operand.dtype == "int32"]
        assert len(integers) == (2 if way == "forward" else 4)
        assert all(integer.file for integer in integers)


def test_more_are_offered_than_inductor_has_and_the_hopeless_are_not(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with without_the_plugins_list(), opened("H200", cache_dir / "stock") as lab:
        Flex().forward(lab)
    stock = lab.offered()
    assert "128x128 3 4" in stock
    caplog.set_level(logging.DEBUG, flex.logger.name)
    with opened("H200", cache_dir) as lab:
        Flex().forward(lab)
    ours = lab.offered()
    assert ours[0] == "128x64 3 8"  # Inductor's default for this GPU
    assert set(stock) - set(ours) == {"128x128 3 4"}
    assert {"128x64 2 8", "64x64 2 4", "128x32 3 8", "32x32 1 4"} <= set(ours) - set(stock)
    assert "128x128, 3 stages, 4 warps is left out: it spills 1004 bytes" in caplog.text
    assert caplog.text.count("is appended") == 1


@pytest.mark.parametrize("way", ["forward", "backward"])
def test_the_winner_runs(way: str, cache_dir: Path) -> None:
    wanted, names = {
        "forward": ("128x64 2 8", ("BLOCK_M", "BLOCK_N")),
        "backward": ("32x64x64x32 2 4", ("BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")),
    }[way]
    with opened("H200", cache_dir, wanted) as lab:
        code = getattr(Flex(), way)(lab)
    tile, stages, warps = wanted.split()
    assert "x".join(map(str, blocks_of(code, *names))) == tile
    assert f"num_stages={stages}," in code
    assert f"num_warps={warps}," in code


def test_where_none_of_inductors_fits_a_small_one_is_taken(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    call = Flex(head_dim=256, dtype=torch.float32)
    with without_the_plugins_list(), opened("L40S", cache_dir / "stock") as lab:
        call.forward(lab)
    limit = target("L40S").shared_per_block
    facts = FlexCall("forward", 256, 256, "float32", 128, 128, exact=True)
    stock = [offer.split() for offer in lab.offered()]
    tiles = [Tile((*map(int, b.split("x")),), int(s), int(w)) for b, s, w in stock]
    assert len(tiles) == 7
    assert all(shared(facts, tile, target("L40S"))[0] > limit for tile in tiles)
    caplog.set_level(logging.DEBUG, flex.logger.name)
    with opened("L40S", cache_dir) as lab:
        code = call.forward(lab)
    m, n = blocks_of(code, "BLOCK_M", "BLOCK_N")
    assert shared(facts, Tile((m, n), 1, 4), target("L40S"))[1] <= limit
    assert sum("no configuration fits" in message for message in caplog.messages) <= 1


@pytest.mark.slow
def test_inductors_list_ends_in_no_valid_choice_and_ours_in_a_kernel(cache_dir: Path) -> None:
    """bfloat16 heads of 256 on a GPU with 99 KiB a block: every kernel is really compiled."""
    call = Flex(head_dim=256)
    limit = target("L40S").shared_per_block
    with (
        without_the_plugins_list(),
        opened("L40S", cache_dir / "stock", "", CompilingLab) as lab,
        pytest.raises(Exception, match=NO_VALID),
    ):
        call.forward(lab)
    assert isinstance(lab, CompilingLab)
    assert len(lab.used) == 7
    assert min(kernel.shared for kernel in lab.used.values()) > limit
    with opened("L40S", cache_dir, "", CompilingLab) as lab:
        code = call.forward(lab)
    assert isinstance(lab, CompilingLab)
    assert min(kernel.shared for kernel in lab.used.values()) <= limit
    assert lab.used[tile_of(code)].shared <= limit
    assert lab.used[tile_of(code)].spills == 0


@pytest.mark.slow
@pytest.mark.parametrize("way", ["forward", "backward"])
@pytest.mark.parametrize(("gpu", "arch"), [("H200", 90), ("A100", 80)])
def test_kernels_take_what_was_foretold(way: Any, gpu: str, arch: int, cache_dir: Path) -> None:
    """Every configuration of head dimension 64 is really compiled."""
    call = FlexCall(way, 64, 64, "bfloat16", 128, 128)
    with opened(gpu, cache_dir, "", CompilingLab) as lab:
        assert isinstance(lab, CompilingLab)
        lab.arch = arch
        getattr(Flex(head_dim=64), way)(lab)
    assert len(lab.used) >= 7
    for tile, used in lab.used.items():
        least, most = shared(call, tile, target(gpu))
        assert least <= used.shared <= most, tile
        if tile.tma or tile in MORE[way, 64, 2]:
            assert used.spills <= 64, tile


@TMA_FORWARD
def test_descriptors_are_offered_where_the_gpu_has_them(cache_dir: Path) -> None:
    with opened("H200", cache_dir, "128x64 3 8 tma") as lab:
        code = Flex().forward(lab)
    assert sum("tma" in offer for offer in lab.offered()) == 3
    assert "tl.make_tensor_descriptor" in code
    with opened("A100", cache_dir / "ampere") as lab:
        Flex().forward(lab)
    assert not any("tma" in offer for offer in lab.offered())
    with opened("H200", cache_dir / "odd") as lab:  # rows of 129 elements
        Flex(stride=(8 * 1024 * 129, 1024 * 129, 129, 1)).forward(lab)
    assert not any("tma" in offer for offer in lab.offered())


@TMA_BACKWARD
def test_descriptors_are_offered_backward_too(cache_dir: Path) -> None:
    with opened("H200", cache_dir, "64x64x64x64 3 8 tma") as lab:
        code = Flex().backward(lab)
    assert "64x64x64x64 3 8 tma" in lab.offered()
    assert "tl.make_tensor_descriptor" in code


def test_without_tuning_there_is_one_that_fits(cache_dir: Path) -> None:
    with inductor_config.patch(max_autotune=False):
        codes = [untuned(call, cache_dir) for call in (Flex(head_dim=256), Flex(head_dim=64))]
    assert blocks_of(codes[0], "BLOCK_M", "BLOCK_N") == (
        32,
        64,
    )  # with 3 stages, 148 KiB, for Inductor
    assert "num_stages=2," in codes[0]
    assert blocks_of(codes[1], "BLOCK_M", "BLOCK_N") == (128, 64)  # Inductor's


def untuned(call: Flex, cache_dir: Path) -> str:
    """Return the code of a call on an L40S with tuning off."""
    stock = hooks.compile_options

    def options(mode: Any, config: Any, others: Any) -> Any:
        return stock(mode, config, {**others, "max_autotune": False})

    changed = mock.patch.object(hooks, "compile_options", options)
    with changed, opened("L40S", cache_dir) as lab:
        code = call.forward(lab)
    assert lab.tasks == []
    return code


def test_small_blocks_of_the_mask_are_served(cache_dir: Path) -> None:
    with opened("H200", cache_dir) as lab:
        Flex(block=32).forward(lab)
        assert lab.tasks == []  # one is left
    with opened("H200", cache_dir) as lab:
        code = Flex(block=32).backward(lab)
    m1, n1, m2, n2 = blocks_of(code, "BLOCK_M1", "BLOCK_N1", "BLOCK_M2", "BLOCK_N2")
    assert max(m1, n1, m2, n2) <= 32


def test_decoding_is_measured_too(cache_dir: Path) -> None:
    with opened("H200", cache_dir) as lab:
        code = Flex(queries=1, keys=4096, kv_heads=2).forward(lab)
    (task,) = lab.tasks
    assert {entry.name for entry in task.entries} == {"triton_flex_decoding"}
    assert "16x128 2 4" in lab.offered()
    assert "triton_tem" in code


def test_what_the_call_names_itself_stays(cache_dir: Path) -> None:
    with opened("H200", cache_dir) as lab:
        code = Flex(options={"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 32}).forward(lab)
    assert blocks_of(code, "BLOCK_M", "BLOCK_N") == (64, 32)


class Handler(InductorChoices):
    """A user's own choices: one that fits, one that cannot run."""

    asked = 0

    def get_flex_attention_fwd_configs(self, *args: Any, **kwargs: Any) -> list[Any]:
        like = super().get_flex_attention_fwd_configs(*args, **kwargs)[0]
        Handler.asked += 1
        return [type(like)(64, 32, 2, 4), type(like)(128, 128, 5, 8)]

    def uuid(self) -> str:
        return "test"


def test_a_users_handler_is_asked_first_and_not_added_to(cache_dir: Path) -> None:
    Handler.asked = 0
    handler = Handler()
    with V.set_choices_handler(handler), opened("H200", cache_dir) as lab:
        Flex().forward(lab)
        assert V.choices is handler
    assert Handler.asked > 0
    pointers = [offer for offer in lab.offered() if "tma" not in offer]
    assert pointers == ["64x32 2 4"] or pointers == ["64x32 2 4", "32x32 1 4"]


def test_other_questions_reach_the_handler_behind() -> None:
    handler = Handler()
    instance = object.__new__(flex.FlexChoices)
    instance._inner = handler
    assert instance.uuid() == "test"
    assert instance.get_config_heuristics("cpu") is not None


def test_outside_the_scope_nothing_changes(cache_dir: Path) -> None:
    with opened("H200", cache_dir) as lab:
        Flex(head_dim=64).forward(lab)
        with (
            mock.patch.object(flex, "active_config", return_value=None),
            mock.patch.object(flex, "FlexChoices") as created,
        ):
            Flex(head_dim=64).forward(lab)
    created.assert_not_called()


def test_uninstall_puts_inductors_lowerings_back() -> None:
    flex.uninstall()
    stock = [inductor_lowering.lowerings[op] for op in OPS]
    flex.install()
    flex.install()
    assert [inductor_lowering.lowerings[op] for op in OPS] != stock
    flex.uninstall()
    assert [inductor_lowering.lowerings[op] for op in OPS] == stock


def test_sizes_that_are_not_known(cache_dir: Path) -> None:
    with opened("H200", cache_dir, "64x64 2 4") as lab:
        code = lab.lower_dynamic(
            lambda x: flex_attention(x, x, x), Arg((3, 4, 512, 128), torch.bfloat16)
        )
    assert blocks_of(code, "BLOCK_M", "BLOCK_N") == (64, 64)
    assert "s" in re.findall(r"^ +(s\d+) = ", code, re.MULTILINE)[0]


def test_their_numbers(cache_dir: Path) -> None:
    """The last resort, and where torch has the hook one with descriptors, in the interpreter."""
    call = Flex(
        head_dim=64, dtype=torch.float16, batch=1, heads=2, kv_heads=1, queries=200, keys=256
    )
    wanted = ["64x64 2 4"] + ["128x64 3 4 tma"] * (torch_version() >= (2, 14))
    torch.manual_seed(0)
    tensors = [torch.randn(operand.size, dtype=torch.float16) for operand in call.operands()]
    cases: list[tuple[str, list[torch.Tensor]]] = []
    for number, case in enumerate(wanted):
        with opened("H200", cache_dir / str(number), case) as lab:
            cases.append((call.forward(lab), [*tensors, *call.blocks()]))
    q, k, v = (tensor.double().expand(1, 2, -1, -1) for tensor in tensors)
    keep = torch.arange(200)[:, None] >= torch.arange(256)[None]
    scores = (q @ k.mT * SCALE).masked_fill(~keep, -float("inf"))
    out, lse = scores.softmax(-1) @ v, scores.logsumexp(-1) * torch.log2(torch.tensor(torch.e))
    for output in interpreter.outputs(cases):
        assert (output[0].double() - out).abs().max() < 2e-3
        assert (output[1].double() - lse).abs().max() < 1e-5


@pytest.mark.parametrize(("space", "is_extended"), [("DEFAULT", True), ("EXHAUSTIVE", False)])
def test_the_exhaustive_list_of_inductor_is_not_added_to(
    space: str, is_extended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat, "hints", tuple)
    node = SimpleNamespace(
        get_size=lambda: (2, 8, 1024, 128),
        get_device=lambda: torch.device("cuda", 0),
        get_dtype=lambda: torch.bfloat16,
    )
    call = [node, node, node, *[None] * 6, (128, 128, None), SCALE, {}]
    settings = {"max_autotune": True, "max_autotune_flex_search_space": space}
    with as_target("H200"), inductor_config.patch(settings):
        stock = InductorChoices().get_flex_attention_bwd_configs(128, torch.bfloat16)
        choices = flex.FlexChoices(InductorChoices(), "backward", call)
        ours = choices.get_flex_attention_bwd_configs(128, torch.bfloat16)
    assert ours
    assert any(config not in stock for config in ours) is is_extended
