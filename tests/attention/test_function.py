"""`inductor_plugin.fmha` without torch.compile."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.autograd import forward_ad

import inductor_plugin
from inductor_plugin.attention import blockwise, function
from inductor_plugin.attention.blockwise import ScoreParams
from inductor_plugin.problem.attention import Mask
from tests.support.attention import reference as attention_reference
from tests.support.attention.calls import BAD, GOOD, Bad, Case, good_arguments, operands

pytestmark = pytest.mark.compat

fmha: Any = inductor_plugin.fmha
"""Called with wrong types too."""
grad: Any = torch.autograd.grad

UNIT = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
BIASED_NAMES = ("q", "k", "v", "bias")


def reference(case: Case, named_operands: dict[str, torch.Tensor]) -> dict[str, Any]:
    named = {
        "bias": named_operands.get("bias"),
        "cu_q": named_operands.get("cu_seqlens_q"),
        "cu_k": named_operands.get("cu_seqlens_k"),
        "scale": case.keywords.get("scale"),
        "softcap": case.keywords.get("softcap", 0.0),
    }
    return {"mask": case.mask, **named}


def close(tensor: torch.Tensor, expected: torch.Tensor, unit: float) -> None:
    """Compare with float64, by units of the largest number there."""
    finite = expected[expected.isfinite()]
    atol = 8 * unit * max(finite.abs().max().item(), 1.0)
    torch.testing.assert_close(tensor.double(), expected, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize("name", GOOD)
def test_it_is_the_reference_forward_and_backward(name: str, dtype: torch.dtype):
    case = GOOD[name]
    tensors = operands(case, dtype)
    leaves = [tensors[key].requires_grad_() for key in BIASED_NAMES if key in tensors]
    out, lse = fmha(**tensors, **case.keywords, return_lse=True)
    do, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    gradients = torch.autograd.grad((out, lse), leaves, (do, grad_lse))
    tensors = {key: tensor.detach() for key, tensor in tensors.items()}
    q, k, v, positional = tensors["q"], tensors["k"], tensors["v"], reference(case, tensors)
    expected_out, expected_lse = attention_reference.forward(q, k, v, **positional)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    close(out, expected_out, UNIT[dtype])
    close(lse, expected_lse, UNIT[torch.float32])
    expected = attention_reference.backward(do, q, k, v, grad_lse=grad_lse, **positional)
    for leaf, ours, theirs in zip(leaves, gradients, expected, strict=False):
        assert theirs is not None
        assert ours.dtype == leaf.dtype
        close(ours, theirs, UNIT[dtype])


@pytest.mark.parametrize(
    "name", ["GQA", "window", "cap", "bias", "varlen, causal window", "bias of batches, cap"]
)
@pytest.mark.parametrize("lse", [False, True], ids=["out", "out and lse"])
def test_its_gradients_are_those_of_differences(name: str, lse: bool):
    case = GOOD[name]._replace(heads=(2, 1), dims=(4, 4))
    if case.lengths is None:
        case = case._replace(tokens=(4, 5))
    if case.bias is not None:
        case = case._replace(bias=(2, 1, 1, 5) if case.bias[1] == 1 else (2, 2, 4, 5))
    tensors = operands(case, torch.float64)
    names = [key for key in BIASED_NAMES if key in tensors]
    rest = {key: tensor for key, tensor in tensors.items() if key not in names}

    def call(*leaves: torch.Tensor) -> Any:
        named = dict(zip(names, leaves, strict=True))
        outputs = fmha(**named, **rest, **case.keywords, return_lse=lse)
        if lse:  # a row that sees nothing has an infinite lse, of which there is no difference
            return outputs[0], outputs[1].masked_fill(outputs[1] == math.inf, 0.0)
        return outputs

    leaves = [tensors[key].requires_grad_() for key in names]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


@pytest.mark.parametrize("block_bytes", [1, 3000])
@pytest.mark.parametrize(
    "name", ["GQA", "window", "bias", "varlen, causal window", "causal, top left"]
)
def test_the_size_of_its_blocks_changes_nothing(
    name: str, block_bytes: int, monkeypatch: pytest.MonkeyPatch
):
    case = GOOD[name]
    tensors = operands(case, torch.float64)
    leaves = [tensors[key].requires_grad_() for key in BIASED_NAMES if key in tensors]

    def results() -> list[torch.Tensor]:
        out = fmha(**tensors, **case.keywords)
        return [out, *torch.autograd.grad(out, leaves, torch.ones_like(out))]

    expected = results()
    monkeypatch.setattr(blockwise, "BLOCK_BYTES", block_bytes)
    monkeypatch.setattr(blockwise, "BLOCK_ROWS", 7)
    torch.testing.assert_close(results(), expected)


@pytest.mark.parametrize("window", [(16, 16), (0, 16), (16, 0), (0, 0)])
def test_a_window_takes_no_more_blocks_where_there_are_more_keys(
    window: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    products = Mock(wraps=torch.bmm)
    monkeypatch.setattr(torch, "bmm", products)
    monkeypatch.setattr(blockwise, "BLOCK_BYTES", 1 << 17)
    counts: list[int] = []
    for keys in (256, 4096):
        q, k, v = operands(Case(heads=(1, 1), tokens=(128, keys)), torch.float32).values()
        blockwise.forward(q, k, v, ScoreParams(Mask(*window, bottom_right=True), 1.0))
        counts.append(products.call_count)
        products.reset_mock()
    assert counts[0] == counts[1]


def test_rows_that_see_nothing_have_no_gradient():
    tensors = operands(Case(tokens=(9, 4)), torch.float32)
    leaves = [tensors[name].requires_grad_() for name in "qkv"]
    out, lse = fmha(**tensors, causal=True, return_lse=True)
    assert out[:, :, :5].eq(0).all()
    assert lse[:, :, :5].eq(math.inf).all()
    assert lse[:, :, 5:].isfinite().all()
    dq, dk, dv = torch.autograd.grad(
        (out, lse), leaves, (torch.ones_like(out), torch.ones_like(lse))
    )
    assert dq[:, :, :5].eq(0).all()
    assert all(tensor.isfinite().all() for tensor in (dq, dk, dv))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("operand", range(4))
def test_what_is_not_finite_goes_where_softmax_takes_it(operand: int, value: float):
    case = Case(tokens=(5, 6), bias=(4, 5, 6))
    tensors = operands(case, torch.float32)
    list(tensors.values())[operand].view(-1)[7] = value
    out, lse = fmha(**tensors, return_lse=True)
    expected = attention_reference.forward(
        tensors["q"], tensors["k"], tensors["v"], **reference(case, tensors), dtype=torch.float32
    )
    torch.testing.assert_close((out, lse), expected, equal_nan=True)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_is_refused_with_its_value(name: str):
    bad: Bad = BAD[name]
    arguments = good_arguments(varlen=bad.varlen)
    fmha(**arguments)
    bad.change(arguments)
    with pytest.raises(bad.error) as caught:
        fmha(**arguments)
    assert bad.text in str(caught.value)
    assert str(caught.value).startswith("fmha: ")


@pytest.mark.parametrize("name", GOOD)
def test_operands_of_8_bits_are_read_as_they_are(name: str):
    case = GOOD[name]
    tensors = operands(case, torch.float32)
    narrow = {key: tensors[key].to(torch.float8_e4m3fn) for key in "qkv"}
    out, lse = fmha(**(tensors | narrow), **case.keywords, return_lse=True)
    wide = {key: tensor.double() for key, tensor in narrow.items()}
    expected, exact_lse = attention_reference.forward(
        wide["q"], wide["k"], wide["v"], **reference(case, tensors)
    )
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    close(out, expected, UNIT[torch.bfloat16])
    close(lse, exact_lse, UNIT[torch.float32])


@pytest.mark.parametrize("operand", BIASED_NAMES)
@pytest.mark.parametrize("backend", [None, "aot_eager"])
def test_operands_of_8_bits_have_no_gradient(operand: str, backend: str | None):
    torch.compiler.reset()
    arguments = {
        name: tensor.to(torch.float8_e4m3fn)
        for name, tensor in good_arguments(varlen=False).items()
    }
    arguments["bias"] = torch.zeros(6, 7)
    arguments[operand].requires_grad_()
    call: Any = fmha if backend is None else torch.compile(fmha, backend=backend)
    with pytest.raises(Exception, match=r"fmha: q is torch.float8_e4m3fn, which has no gradient"):
        call(**arguments)
    with torch.no_grad():
        assert call(**arguments).dtype == torch.bfloat16


def test_devices_are_not_mixed():
    arguments = good_arguments(varlen=False)
    arguments["k"] = arguments["k"].to("meta")
    with pytest.raises(TypeError, match="q is on cpu and k on meta; move them to one device"):
        fmha(**arguments)


def test_it_is_differentiable_once():
    tensors = operands(GOOD["GQA"], torch.float64)
    q = tensors["q"].requires_grad_()
    dq = grad(fmha(**tensors).sum(), q, create_graph=True)[0]
    with pytest.raises(RuntimeError, match="fmha is differentiable once"):
        dq.sum().backward()


def test_gradients_of_torch_func_are_those_of_autograd():
    tensors = operands(GOOD["GQA"], torch.float64)
    q, k, v = (tensors[name] for name in "qkv")
    call: Any = lambda q, k, v: fmha(q, k, v, causal=True, return_lse=True)  # noqa: E731
    vjp: Any = torch.func.vjp
    (out, lse), pull = vjp(call, q, k, v)
    do, grad_lse = torch.randn_like(out), torch.randn_like(lse)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    expected = torch.autograd.grad(call(*leaves), leaves, (do, grad_lse))
    torch.testing.assert_close(pull((do, grad_lse)), expected, rtol=0, atol=0)
    alone: Any = torch.func.grad(lambda q: call(q, k, v)[0].square().sum())
    compiled: Any = torch.compile(alone, backend="aot_eager")
    torch.testing.assert_close(alone(q), compiled(q), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="fmha is differentiable once"):
        torch.func.grad(lambda q: alone(q).sum())(q)


def forward_mode() -> dict[str, Callable[..., Any]]:
    def dual(call: Any, v: torch.Tensor) -> Any:
        with forward_ad.dual_level():
            return call(forward_ad.make_dual(v, torch.ones_like(v)))

    func: Any = torch.func
    return {
        "jvp": lambda call, v: func.jvp(call, (v,), (torch.ones_like(v),)),
        "jacfwd": lambda call, v: func.jacfwd(call)(v),
        "dual": dual,
        "jvp of grad": lambda call, v: func.jvp(
            func.grad(lambda v: call(v).sum()), (v,), (torch.ones_like(v),)
        ),
    }


@pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated"
)  # torch's own for its decompositions
@pytest.mark.parametrize("name", forward_mode())
def test_forward_mode_is_refused_and_not_taken_for_a_constant(name: str):
    tensors = operands(GOOD["plain"], torch.float64)
    with pytest.raises(NotImplementedError, match="fmha: a forward-mode derivative is asked for"):
        forward_mode()[name](lambda v: fmha(tensors["q"], tensors["k"], v), tensors["v"])


@pytest.mark.parametrize("operand", BIASED_NAMES)
def test_one_gradient_can_be_asked_for(operand: str):
    case = GOOD["bias"]
    tensors = operands(case, torch.float64)
    leaves = {name: tensors[name] for name in BIASED_NAMES}
    for leaf in leaves.values():
        leaf.requires_grad_()
    expected = torch.autograd.grad(fmha(**tensors).sum(), list(leaves.values()))
    tensors = {
        name: tensor.detach().requires_grad_(name == operand) for name, tensor in tensors.items()
    }
    alone = grad(fmha(**tensors).sum(), tensors[operand])[0]
    torch.testing.assert_close(alone, expected[BIASED_NAMES.index(operand)])


def test_the_overloads_take_every_option() -> None:
    options = inspect.signature(inductor_plugin.fmha).parameters.values()
    keywords = {option.name for option in options if option.kind is option.KEYWORD_ONLY}
    assert {*function._Options.__annotations__, "return_lse"} == keywords
