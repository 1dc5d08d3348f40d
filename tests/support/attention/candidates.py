"""Every candidate for an attention: calls in which it is made to win, and the kernel calls expected then.

`ROWS` is what `tests.inductor.attention.test_every_winner` runs; it fails if a candidate has no row.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor_plugin.attention.library import KERNELS, extern_name
from inductor_plugin.problem.attention import BACKWARD, DIRECTIONS
from inductor_plugin.templates import BUILTIN
from tests.support.attention import graphs
from tests.support.attention.graphs import NARROW, Graph, Shape, fmha, on_cpu, packed, varlen
from tests.support.attention.run import Fresh, Input, Length, Like, Rows

SCALE = 0.125
LEFT = 100
KINDS = ("flash", "efficient", "cudnn")
"""ATen's operators that can be traced, all with a causal mask."""
MORE_KINDS = ("cross", "window", "packed", "varlen")
PADDED = ("efficient", "cross")
"""Kinds whose statistics are padded."""


def candidates() -> set[tuple[str, bool]]:
    """Return the names of all candidates, and whether each is for the gradient."""
    library = {(kernel.name, False) for kernel in KERNELS.values()}
    gradients = {(kernel.name, True) for kernel in KERNELS.values() if kernel.backward}
    return (
        library
        | gradients
        | {(x.name, op == BACKWARD) for x in BUILTIN for op in x.ops if op in DIRECTIONS}
    )


@dataclass(frozen=True)
class Call:
    """A graph with one attention in it, and the names of its inputs."""

    graph: Graph
    names: tuple[str, ...]


def call(kind: str, *, gradient: bool, unknown: bool, other: bool = False) -> Call:
    """Return the call of an operator.

    Args:
        kind: What is traced: one of `KINDS`; ``cross``, ``efficient`` without a mask;
            ``heads_first``, ``flash`` of another order in memory; ``window`` and ``packed`` of the
            plugin's own operator; torch's ``varlen``; ``cpu``; ``decode`` and ``few``, of 1 and 4
            queries to many keys; ``narrow`` and ``narrow few``, operands of 8 bits.
        gradient: Whether it is the gradient.
        unknown: Whether lengths are symbols: of keys for ``decode``, of queries for ``few``.
        other: Whether to use other lengths, for code with unknown lengths.
    """
    n, tokens = (333, 777) if other else (250, 1000)
    more = ("do", "out", "lse") if gradient else ()
    shape = Shape(queries=n, keys=n, dynamic=unknown)
    if kind in ("window", "cross"):
        shape = Shape(queries=n, keys=n + 50, dynamic=unknown)
    if kind in (*KINDS, "cross", "heads_first"):
        shape = replace(shape, heads_first=kind == "heads_first")
        traced = {"cross": "efficient", "heads_first": "flash"}.get(kind, kind)
        causal = kind != "cross"
        if gradient:
            names = ("do", "q", "k", "v", "out", "lse", "seed", "offset")
            return Call(graphs.backward(traced, shape, causal=causal), names)
        return Call(graphs.forward(traced, shape, causal=causal), ("q", "k", "v"))
    if kind in ("decode", "few"):
        shape = Shape(queries=3 if other else 4, keys=4096, kv_heads=2, known="keys")
        if kind == "decode":
            shape = Shape(queries=1, keys=5000 if other else 4096, kv_heads=2, known="queries")
        shape = replace(shape, dynamic=unknown)
        return Call(graphs.forward("flash", shape, causal=False), ("q", "k", "v"))
    if kind.startswith("narrow"):
        graph = fmha(_narrow_shape(shape, kind, other), dtype=NARROW, window_right=0, scale=SCALE)
        return Call(graph, ("q", "k", "v"))
    if kind == "window":
        graph = fmha(shape, gradient=gradient, window_left=LEFT, window_right=0, scale=SCALE)
        return Call(graph, ("q", "k", "v", *more))
    if kind == "cpu":
        return Call(on_cpu(shape, gradient=gradient), ("q", "k", "v", *more))
    if kind == "packed":
        ends = 4 if other else 5
        keys = tokens + 100
        graph = packed(gradient=gradient, dynamic=unknown, tokens=tokens, ends=ends, keys=keys)
        return Call(graph, ("q", "k", "v", "cu", "cu_k", *more))
    graph = varlen(gradient=gradient, dynamic=unknown, tokens=tokens)
    return Call(graph, ("q", "k", "v", "cu", *more, *(("seed",) if gradient else ())))


def _narrow_shape(shape: Shape, kind: str, other: bool) -> Shape:
    shape = replace(shape, keys=shape.keys + 50, kv_heads=2)
    if kind == "narrow":
        return shape
    return replace(shape, queries=3 if other else 4, keys=4096, known="keys")


Arguments = dict[str, Any]
Q, K, V, DO, OUT, LSE, CU, CU_K = map(Input, ("q", "k", "v", "do", "out", "lse", "cu", "cu_k"))
FRESH_INT64: Arguments = {
    "philox_seed": Fresh((), torch.int64),
    "philox_offset": Fresh((), torch.int64),
}
FRESH_UINT64 = (Fresh((2,), torch.uint64), Fresh((), torch.uint64))
CAUSAL: Arguments = {"is_causal": True, "scale": SCALE}
THREE: Arguments = {"query": Q, "key": K, "value": V}
SIX: Arguments = {**THREE, "grad_out": DO, "out": OUT, "logsumexp": LSE}
SWAPPED: Arguments = {"query": Input("q", True), "key": Input("k", True), "value": Input("v", True)}
SWAPPED_SIX: Arguments = {
    **SWAPPED,
    "grad_out": Input("do", True),
    "out": Input("out", True),
    "logsumexp": LSE,
}
LENGTHS: Arguments = {"max_q": Length("q"), "max_k": Length("k")}
LONGEST = {"max_q": 400, "max_k": 400}
FLASH: Arguments = {**LENGTHS, "dropout_p": 0.0, "scale": SCALE}
FLASH_WINDOW: Arguments = {
    **FLASH,
    "is_causal": False,
    "window_size_left": LEFT,
    "window_size_right": 0,
}
FLASH_PACKS: Arguments = {
    **FLASH,
    "is_causal": True,
    "window_size_left": -1,
    "window_size_right": -1,
    "cum_seq_q": CU,
    "cum_seq_k": CU_K,
}
FLASH_NO = {"return_debug_mask": False}
FLASH_SEEDS: Arguments = dict(zip(("rng_state", "unused"), FRESH_UINT64, strict=True))
SEQUENCES: Arguments = {"cu_seq_q": CU, "cu_seq_k": CU, **LONGEST, "window_size": [-1, 0], **CAUSAL}
OURS: Arguments = {"q": Q, "k": K, "v": V}
WINDOW: Arguments = {"scale": SCALE, "window_left": LEFT, "window_right": 0}
MASK: Arguments = {"scale": SCALE, "left": -1, "right": 0, "bottom_right": False}
PACKS: Arguments = {"cu_q": CU, "cu_k": CU_K}
SAME_PACKS: Arguments = {"cu_q": CU, "cu_k": CU}
WRITES: Arguments = {**OURS, "lse": Rows(), "out": Like("q")}
GRADIENTS: Arguments = {**OURS, "do": DO, "dq": Like("q"), "dv": Like("v")}
FLASH_FORWARD = "aten._flash_attention_forward"
FLASH_BACKWARD = "aten._flash_attention_backward"
CPU = "aten._scaled_dot_product_flash_attention_for_cpu"
DENSE_LSE = Rows("made of lse")
"""Inductor's own constraint makes dense rows of a CPU's lse before its operator is lowered."""
CUTLASS = "inductor_plugin.cutlass_fmha"


@dataclass(frozen=True)
class Row:
    """One candidate made to win in one kind of call.

    Attributes:
        candidate: A name in `KERNELS`, or a template's.
        gradient: Whether it is the gradient.
        kind: What is traced; see `call`.
        called: The operator that has to be called, ``triton`` for a template's kernel.
        arguments: All that it has to be called with.
        sources: Where each output has to come from; see `tests.support.attention.run`.
        lengths: Whether unknown lengths (True) and known ones are run.
    """

    candidate: str
    gradient: bool
    kind: str
    called: str
    arguments: Arguments
    sources: tuple[str, ...]
    lengths: tuple[bool, ...] = (False, True)

    @property
    def winner(self) -> str:
        """What its identity begins with, as a regular expression."""
        named = _TEMPLATES.get((self.candidate, self.gradient))
        return named or extern_name(self.candidate, gradient=self.gradient)


_TEMPLATES = {
    ("triton_attention", False): "triton_attention(_varlen)?",
    ("triton_attention_decode", False): "triton_attention_decode",
    ("triton_attention_backward", True): "triton_attention(_varlen)?_backward",
    ("cutlass_fmha", False): r"cutlass_fmha\.cutlass_fmha_sm90_\w+",
    ("cutlass_fmha", True): r"cutlass_fmha\.cutlass_fmha_backward_sm90_\w+",
    ("attention_math", False): r"attention_math\.attention_math",
    ("attention_math", True): r"attention_math\.attention_math_backward",
}


def _atens() -> Iterator[Row]:
    """Yield each operator of ATen's in the place of each."""
    for kind, name in itertools.product((*KINDS, "cross"), KINDS):
        traced = "efficient" if kind == "cross" else kind
        # cuDNN would build a plan for each length: with unknown ones only where it was traced.
        lengths = (False,) if name == "cudnn" != traced else (False, True)
        copied = (traced == "efficient") != (name == "efficient")
        operator = f"aten._scaled_dot_product_{name}_attention"
        mask: Arguments = {"is_causal": kind != "cross", "scale": SCALE}
        expected: Arguments = THREE | (CAUSAL if kind != "cross" else {"scale": SCALE})
        if name != "flash":
            expected["compute_log_sumexp"] = True
        sources = ("0", "made of 1" if copied else "1")
        yield Row(name, False, kind, operator, expected, sources, lengths)
        expected = SIX | mask | {"dropout_p": 0.0}
        form = {"efficient": "padded", "cudnn": "column"}.get(name, "rows")
        expected["logsumexp"] = Rows("made of lse" if copied else "lse", form)
        if name == traced:
            expected |= {"philox_seed": Input("seed"), "philox_offset": Input("offset")}
        elif name == "flash":
            expected |= dict(zip(FRESH_INT64, FRESH_UINT64, strict=True))
        else:
            expected |= FRESH_INT64
        if name == "efficient":
            expected["grad_out_"] = expected.pop("grad_out")
            expected["grad_input_mask"] = [True, True, True, False]
            if kind == "cross":  # as its schema has it
                del expected["is_causal"]
        else:
            expected |= LENGTHS
        yield Row(name, True, kind, f"{operator}_backward", expected, ("0", "1", "2"), lengths)


def _others() -> Iterator[Row]:
    """Yield the rest of torch's operators, and the plugin's own."""
    three, two = ("0", "1", "2"), ("0", "1")
    yield Row(
        "flash_window", False, "window", FLASH_FORWARD, SWAPPED | FLASH_WINDOW | FLASH_NO, two
    )
    expected = SWAPPED_SIX | FLASH_WINDOW | FLASH_SEEDS
    yield Row("flash_window", True, "window", FLASH_BACKWARD, expected, three)
    yield Row("flash_varlen", False, "packed", FLASH_FORWARD, THREE | FLASH_PACKS | FLASH_NO, two)
    expected = SIX | FLASH_PACKS | FLASH_SEEDS
    yield Row("flash_varlen", True, "packed", FLASH_BACKWARD, expected, three)
    yield Row("varlen", False, "varlen", "torch_attn._varlen_attn", THREE | SEQUENCES, two)
    expected = {**SIX, **SEQUENCES, "lse": LSE, "rng_state": Input("seed")}
    del expected["logsumexp"]
    yield Row("varlen", True, "varlen", "torch_attn._varlen_attn_backward", expected, three)
    expected = OURS | WINDOW | {"return_lse": True}
    yield Row("fmha", False, "window", "inductor_plugin.fmha", expected, two)
    expected = OURS | WINDOW | {"grad_out": DO, "out": OUT, "lse": LSE}
    yield Row("fmha", True, "window", "inductor_plugin.fmha_backward", expected, three)
    yield Row("cpu", False, "cpu", CPU, THREE | CAUSAL, two)
    expected = SIX | CAUSAL | {"dropout_p": 0.0, "logsumexp": DENSE_LSE}
    yield Row("cpu", True, "cpu", f"{CPU}_backward", expected, three)


def _wheels() -> Iterator[Row]:
    """Yield FlashAttention's own packages in the place of every operator."""
    for name, kind in itertools.product(("flash3", "flash4"), (*KINDS, *MORE_KINDS)):
        swap = kind not in ("packed", "varlen")
        expected: Arguments = {name: Input(name, swap) for name in "qkv"} | {
            "scale": SCALE,
            "softcap": 0.0,
        }
        expected |= {"package": name} | _sides(kind)
        expected |= LONGEST if kind == "varlen" else LENGTHS
        expected |= {"packed": PACKS, "varlen": SAME_PACKS}.get(kind, {})
        sources = ("0", "made of 1" if kind in PADDED else "1")
        yield Row(name, False, kind, "inductor_plugin.flash_wheel", expected, sources)


def _turned() -> Iterator[Row]:
    """Yield who has to give back the order in memory of an operator that has q's, as cuDNN has."""
    lengths = {"efficient": (False, True), "cudnn": (False,), "flash4": (False, True)}
    rows = (*_atens(), *_wheels())
    like = {row.candidate: row for row in rows if row.kind == "flash" and not row.gradient}
    for name, kinds in lengths.items():
        sources = ("0" if name == "cudnn" else "made of 0", like[name].sources[1])
        yield replace(like[name], kind="heads_first", sources=sources, lengths=kinds)
    for name in ("triton_attention", "cutlass_fmha"):
        (row,) = (
            r for r in _templates() if (r.candidate, r.gradient, r.kind) == (name, False, "flash")
        )
        yield replace(row, kind="heads_first")


def _sides(kind: str) -> Arguments:
    """Return how far a mask reaches."""
    return {"left": LEFT if kind == "window" else -1, "right": -1 if kind == "cross" else 0}


def _templates() -> Iterator[Row]:
    """Yield the templates."""
    for kind in (*KINDS, *MORE_KINDS):
        padded = kind in PADDED
        # A tensor that is an operand twice is one argument of a kernel.
        packs = {"packed": PACKS, "varlen": {"cu_k": CU}}.get(kind, {})
        sources = ("out", "made of lse" if padded else "lse")
        yield Row("triton_attention", False, kind, "triton", WRITES | packs, sources)
        rows = {"lse": Rows("made of lse") if padded else LSE, "delta": Rows("made of do, out")}
        expected = GRADIENTS | packs | rows | {"out": OUT, "dk": Like("k")}
        outputs = ("dq", "dk", "dv")
        yield Row("triton_attention_backward", True, kind, "triton", expected, outputs)
        if packs:
            continue
        mask = MASK | _sides(kind) | {"bottom_right": kind == "window"}
        yield Row("cutlass_fmha", False, kind, f"{CUTLASS}.out", WRITES | mask, sources)
        rows["lse"] = Rows("made of lse" if padded else "lse")
        expected = GRADIENTS | mask | rows | {"d_out": DO, "o": OUT, "out": Like("k")}
        del expected["do"]
        outputs = ("dq", "out", "dv")
        yield Row("cutlass_fmha", True, kind, f"{CUTLASS}_backward.out", expected, outputs)
    for kind in ("decode", "few"):
        yield Row("triton_attention_decode", False, kind, "triton", WRITES, ("out", "lse"))
    yield from _narrow()
    math = "inductor_plugin.attention_math"
    expected = WRITES | MASK | {"lse": Rows(form="cpu")}
    known = (False,)  # for lengths that are not it is not offered
    yield Row("attention_math", False, "cpu", f"{math}.lse_out", expected, ("out", "lse"), known)
    expected = GRADIENTS | MASK | {"forward": OUT, "lse": DENSE_LSE, "out": Like("k")}
    outputs = ("dq", "out", "dv")
    yield Row("attention_math", True, "cpu", f"{math}_backward.out", expected, outputs, known)


def _narrow() -> Iterator[Row]:
    """Yield who takes operands of 8 bits, and writes 16."""
    expected = WRITES | {"out": Like("q", torch.bfloat16)}
    sources = ("out", "lse")
    yield Row("triton_attention", False, "narrow", "triton", expected, sources)
    yield Row("triton_attention_decode", False, "narrow few", "triton", expected, sources)
    mask = MASK | {"bottom_right": True}
    yield Row("cutlass_fmha", False, "narrow", f"{CUTLASS}.out", expected | mask, sources)
    theirs = OURS | {"scale": SCALE, "window_right": 0, "return_lse": True}
    yield Row("fmha", False, "narrow", "inductor_plugin.fmha", theirs, ("0", "1"))


ROWS: tuple[Row, ...] = (*_atens(), *_others(), *_wheels(), *_templates(), *_turned())
"""All of them."""
