"""The operators of `fmha` as torch.compile sees them: schema, fake results, strides, graphs, messages."""

# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch._dynamo import reset
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from inductor_plugin import fmha
from inductor_plugin.attention.operator import (
    BACKWARD_SCHEMA,
    FMHA,
    FMHA_BACKWARD,
    FORWARD_SCHEMA,
)
from tests.support.attention.calls import (
    BAD,
    GOOD,
    ONE_OF_EACH_CHECK,
    Case,
    cumulated,
    good_arguments,
    operands,
)

pytestmark = pytest.mark.compat


def op_arguments(case: Case, *, grad: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    tensors = operands(case, torch.float32)
    if grad:
        for name in ("q", "k", "v", "bias"):
            if name in tensors:
                tensors[name].requires_grad_()
    names = ("q", "k", "v", "bias", "cu_seqlens_q", "cu_seqlens_k")
    mask = case.mask
    keywords = {
        "window_left": mask.left,
        "window_right": mask.right,
        "bottom_right": mask.bottom_right,
        **{key: case.keywords[key] for key in ("softcap", "scale") if key in case.keywords},
    }
    return tuple(tensors.get(key) for key in names), keywords


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # opcheck's own
@pytest.mark.parametrize("name", ["window", "bias of batches, cap", "varlen, causal window"])
@pytest.mark.parametrize("lse", [False, True], ids=["out", "out and lse"])
def test_torch_finds_nothing_wrong_with_it(name: str, lse: bool):
    arguments, keywords = op_arguments(GOOD[name], grad=True)
    checks = torch.library.opcheck(FMHA, arguments, {**keywords, "return_lse": lse})
    assert set(checks.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", ["bias of batches, cap", "varlen, causal window"])
def test_torch_finds_nothing_wrong_with_its_backward(name: str):
    arguments, keywords = op_arguments(GOOD[name], grad=False)
    out, lse = FMHA(*arguments, **keywords, return_lse=True)
    inputs = (
        torch.randn_like(out),
        *arguments[:3],
        out,
        lse,
        torch.randn_like(lse),
        *arguments[3:],
    )
    keywords["bias_grad"] = arguments[3] is not None
    checks = torch.library.opcheck(FMHA_BACKWARD, inputs, keywords)
    assert set(checks.values()) == {"SUCCESS"}


def test_its_schema_is_the_one_others_lower():
    assert str(FMHA._schema) == "inductor_plugin::" + FORWARD_SCHEMA.replace("0.0", "0.")
    assert str(FMHA_BACKWARD._schema) == "inductor_plugin::" + BACKWARD_SCHEMA.replace("0.0", "0.")


def layouts() -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    packed = torch.randn(2, 6, 3, 4, 8)  # [B, S, qkv, H, D]
    q, k, v = (packed[:, :, index].transpose(1, 2) for index in range(3))
    dense = torch.randn(2, 4, 6, 8)
    return {
        "heads first": (dense, dense, dense),
        "tokens first": tuple(torch.randn(2, 6, 4, 8).transpose(1, 2) for _ in range(3)),  # pyright: ignore[reportReturnType]
        "packed": (q, k, v),
        "packed, another v": (q, k, torch.randn(2, 4, 6, 16)),
        "expanded": (dense, dense[:, :1].expand(-1, 4, -1, -1), dense[:1].expand(2, -1, -1, -1)),
        "last dimension not dense": (dense.transpose(-1, -2).contiguous().transpose(-1, -2),) * 3,
        "no batch": (dense[:0], dense[:0].transpose(1, 2).contiguous().transpose(1, 2), dense[:0]),
        "one head": (dense[:, :1], dense[:, :1], torch.randn(2, 1, 6, 24)),
    }


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float8_e4m3fn], ids=str)
def test_fake_results_are_laid_out_as_real_ones(name: str, dtype: torch.dtype):
    q, k, v = (
        torch.empty_strided(layout.size(), layout.stride(), dtype=dtype).fill_(0.5)
        for layout in layouts()[name]
    )
    bias = torch.zeros(6, 6, dtype=torch.float32 if dtype.itemsize == 1 else dtype).t()
    real = FMHA(q, k, v, bias, return_lse=True)
    with FakeTensorMode() as mode:
        arguments = [mode.from_tensor(tensor) for tensor in (q, k, v, bias)]
        fake = FMHA(*arguments, return_lse=True)
        if dtype.itemsize > 1:
            fake += FMHA_BACKWARD(
                fake[0], *arguments[:3], *fake, None, arguments[3], bias_grad=True
            )
    if dtype.itemsize > 1:
        real += FMHA_BACKWARD(real[0], q, k, v, *real, None, bias, bias_grad=True)
    for ours, theirs in zip(real, fake, strict=True):
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
        assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)
    if q.size(-1) == v.size(-1):
        assert real[0].stride() == torch.empty_like(q).stride()
        assert real[0].dtype == (torch.bfloat16 if dtype.itemsize == 1 else dtype)
    assert sorted(real[0].stride())[0] == 1


class Graphs:
    """A backend that keeps what it is given and compiles nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, graph: torch.fx.GraphModule, _inputs: object) -> Any:
        """Keep the calls of one graph, forward or backward."""
        for node in graph.graph.nodes:
            if node.op == "call_function" and "fmha" in str(node.target):
                self.calls.append((str(node.target), dict(node.kwargs)))

        def run(arguments: list[Any]) -> Any:
            return graph.forward(*arguments)

        cast(Any, run)._boxed_call = True  # else AOTAutograd warns
        return run


@pytest.mark.parametrize("lse", [False, True], ids=["out", "out and lse"])
def test_lse_is_computed_for_who_asked_and_for_the_backward(lse: bool):
    from torch._dynamo.backends.common import aot_autograd

    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return fmha(q, k, v, causal=True, return_lse=lse)

    tensors = operands(GOOD["GQA"], torch.float32)
    inference, training = Graphs(), Graphs()
    torch.compile(model, backend=aot_autograd(fw_compiler=inference), fullgraph=True)(**tensors)
    for tensor in tensors.values():
        tensor.requires_grad_()
    reset()
    result = torch.compile(model, backend=aot_autograd(fw_compiler=training), fullgraph=True)(
        **tensors
    )
    (result[0] if lse else result).sum().backward()
    assert tensors["k"].grad is not None
    assert [(name, call.get("return_lse", False)) for name, call in inference.calls] == [
        ("inductor_plugin.fmha.default", lse)
    ]
    (forward, forward_told), (backward, backward_told) = training.calls
    assert (forward, forward_told["return_lse"]) == ("inductor_plugin.fmha.default", True)
    assert backward == "inductor_plugin.fmha_backward.default"
    assert backward_told["window_right"] == 0


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_other_sizes_need_no_other_graph(backend: str, inductor_cache: Path):
    reset()
    counters.clear()

    def model(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        out, lse = fmha(q * 2, k, v, window=(5, 2), return_lse=True)
        return out + 1, lse

    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend=backend)
    # Of the first sizes no two are equal: torch takes those to be equal ever after.
    for batch, sq, sk in ((6, 9, 13), (3, 70, 33), (5, 4, 200)):
        q, k = (torch.randn(batch, heads, s, 8) for heads, s in ((4, sq), (2, sk)))
        arguments = [tensor.requires_grad_() for tensor in (q, k, torch.randn_like(k))]
        outs, expected = compiled(*arguments), model(*arguments)
        torch.testing.assert_close(outs, expected)
        grads = [torch.randn_like(expected_item) for expected_item in expected]
        torch.testing.assert_close(
            torch.autograd.grad(outs, arguments, grads),
            torch.autograd.grad(expected, arguments, grads),
            rtol=1e-4,
            atol=1e-5,
            equal_nan=True,
        )
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("backend", [None, "aot_eager", "inductor"])
@pytest.mark.parametrize("biased", [False, True])
def test_a_batch_of_none_gives_nothing(biased: bool, backend: str | None, inductor_cache: Path):
    reset()
    q = torch.randn(0, 6, 4, 8).transpose(1, 2)
    k, v = torch.randn(0, 2, 7, 8), torch.randn(0, 2, 7, 16)
    bias = torch.randn(4, 6, 7) if biased else None
    leaves = [tensor.requires_grad_() for tensor in (q, k, v, bias) if tensor is not None]

    def model(q: Any, k: Any, v: Any, bias: Any = None) -> Any:
        return fmha(q, k, v, bias=bias, causal=True, return_lse=True)

    call: Any = model if backend is None else torch.compile(model, backend=backend, fullgraph=True)
    out, lse = call(*leaves)
    assert (out.shape, lse.shape) == ((0, 4, 6, 16), (0, 4, 6))
    assert (out.dtype, lse.dtype) == (torch.float32, torch.float32)
    assert out.stride() == fmha(*(tensor.detach() for tensor in leaves[:3])).stride()
    gradients = torch.autograd.grad(
        (out, lse), leaves, (torch.ones_like(out), torch.ones_like(lse))
    )
    for got, leaf in zip(gradients, leaves, strict=True):
        assert (got.shape, got.dtype) == (leaf.shape, leaf.dtype)
    if biased:
        assert gradients[3].eq(0).all()


def test_varlen_calls_of_other_lengths_and_windows_need_no_other_graph():
    reset()
    counters.clear()

    def model(q: Any, k: Any, cu: Any, left: int, longest: int) -> Any:
        return fmha(
            q, k, k, cu_seqlens_q=cu, cu_seqlens_k=cu, window=(left, 0), max_seqlen_q=longest
        )

    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="aot_eager")
    for left, lengths in ((3, (4, 7)), (5, (9, 2, 6)), (8, (3, 3, 3, 11))):
        q, k = (torch.randn(sum(lengths), heads, 8) for heads in (4, 2))
        arguments = (q, k, cumulated(*lengths), left, max(lengths))
        torch.testing.assert_close(compiled(*arguments), model(*arguments))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_autocast_casts_what_it_casts_for_sdpa(backend: str | None):
    reset()
    tensors = operands(GOOD["GQA"], torch.float32)
    tensors["q"] = tensors["q"].bfloat16()
    leaves = [tensor.requires_grad_() for tensor in tensors.values()]
    call: Any = fmha if backend is None else torch.compile(fmha, backend=backend, fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = call(**tensors, causal=True)
        sdpa = torch.nn.functional.scaled_dot_product_attention(*leaves, enable_gqa=True)
    assert out.dtype == sdpa.dtype == torch.bfloat16
    expected = fmha(*(leaf.bfloat16() for leaf in leaves), causal=True)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    out.sum().backward()
    assert [leaf.grad is not None and leaf.grad.dtype for leaf in leaves] == [
        leaf.dtype for leaf in leaves
    ]


def test_autocast_leaves_operands_of_8_bits_as_they_are():
    tensors = operands(GOOD["GQA"], torch.float8_e4m3fn)
    call: Any = fmha
    expected = call(**tensors)
    with torch.autocast("cpu", torch.float16):
        out = call(**tensors)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    tensors["k"] = tensors["k"].float()
    with (
        torch.autocast("cpu", torch.float16),
        pytest.raises(TypeError, match=r"k is torch\.float32"),
    ):
        call(**tensors)


@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", ONE_OF_EACH_CHECK)
def test_a_bad_call_is_refused_in_the_same_words_when_compiled(name: str, dynamic: bool | None):
    reset()
    bad = BAD[name]
    arguments = good_arguments(varlen=bad.varlen)
    bad.change(arguments)
    compiled = torch.compile(fmha, backend="aot_eager", dynamic=dynamic)
    with pytest.raises(Exception, match="fmha") as caught:
        compiled(**arguments)
    assert bad.text in str(caught.value)


@pytest.mark.parametrize("dynamic", [None, True], ids=["fixed", "dynamic"])
@pytest.mark.parametrize("name", [name for name in ONE_OF_EACH_CHECK if not BAD[name].values])
def test_a_bad_call_is_refused_before_there_is_a_graph(name: str, dynamic: bool | None):
    reset()
    bad = BAD[name]
    arguments = good_arguments(varlen=bad.varlen)
    bad.change(arguments)
    graphs = Graphs()
    compiled = torch.compile(fmha, backend=graphs, fullgraph=True, dynamic=dynamic)
    with pytest.raises(Exception, match="fmha") as caught:
        compiled(**arguments)
    assert bad.text in str(caught.value)
    assert graphs.calls == []


def test_flops_are_counted_as_torch_counts_attention():
    tensors = operands(Case(heads=(4, 4), tokens=(32, 48), dims=(16, 16)), torch.float32)
    leaves = [tensor.requires_grad_() for tensor in tensors.values()]
    scores = 2 * 2 * 4 * 32 * 48 * 16
    with FlopCounterMode(display=False) as counter:
        fmha(*leaves, causal=True).sum().backward()
    assert counter.get_total_flops() == 2 * scores + 5 * scores
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        fmha(*leaves, window=(7, 4))
    assert counter.get_total_flops() == 2 * scores * 12 // 48
    shapes, torchs = [leaf.shape for leaf in leaves], cast(Any, flop_counter)
    assert torchs.sdpa_flop_count(*shapes) == 2 * scores
    assert torchs.sdpa_backward_flop_count(leaves[0].shape, *shapes) == 5 * scores
    cu_q, cu_k = cumulated(9, 13), cumulated(20, 28)
    q, k = torch.ones(22, 4, 16), torch.ones(48, 2, 16)
    with FlopCounterMode(display=False) as counter:
        fmha(q, k, k, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    assert counter.get_total_flops() == 2 * 2 * 22 * 4 * 24 * 16


def test_it_can_be_called_through_the_package_while_compiling():
    code = (
        "import torch, inductor_plugin\n"
        "compiled = torch.compile(lambda q: inductor_plugin.fmha(q, q, q), backend='aot_eager')\n"
        "print(tuple(compiled(torch.ones(1, 2, 4, 8)).shape))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True
    )
    assert done.stdout.strip() == "(1, 2, 4, 8)"
