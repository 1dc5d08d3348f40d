"""Which of the library's attention kernels can compute an attention. Pure: each refusal is a sentence.

What the kernels can do is in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (torch 2.11 to 2.15).
Where they put the diagonal of a causal mask if Sq != Sk is in the table of `inductor_plugin.attention.library`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inductor_plugin.config.backends import why_not_listed
from inductor_plugin.problem.attention import Attention

PACKAGES = {"flash3": "flash_attn_interface", "flash4": "flash_attn.cute"}
"""The module of each of FlashAttention's own packages, by the kernel that needs it."""

_HALF = ("float16", "bfloat16")


@dataclass(frozen=True)
class DispatchContext:
    """Facts besides the attention that decide which kernels apply.

    Attributes:
        capability: Compute capability of the GPU; None if unknown.
        square: Whether Sq == Sk (of each sequence) whenever the call runs.
        dynamic: Whether an extent is known only at run time.
        longest: Tokens of the longest sequence of q and of k; None if these are the attention's own, or, where it is packed
            or dynamic, not known.
        deterministic: Whether only deterministic kernels are allowed.
        aligned_bias: Whether each row of the bias begins at a multiple of 8 elements.
        bias_dtype: Type of the bias without ``torch.``; empty for that of q.
        wide_bias: Whether the bias has a value for each key, so that its rows are dense.
        cudnn: Version of cuDNN as its library reports it (92400); 0 without it.
        packages: Which modules of `PACKAGES` can be imported.
        backends: Backends of the option ``attention_backends``; empty for all.
    """

    capability: tuple[int, int] | None = None
    square: bool = False
    dynamic: bool = False
    longest: tuple[int, int] | None = None
    deterministic: bool = False
    aligned_bias: bool = True
    bias_dtype: str = ""
    wide_bias: bool = True
    cudnn: int = 0
    packages: frozenset[str] = frozenset()
    backends: tuple[str, ...] = ()


Gate = Callable[[Attention, DispatchContext], str | None]


def why_not(backend: str, gate: Gate | None, a: Attention, s: DispatchContext) -> str | None:
    """Return why a library kernel cannot compute an attention, None if it can.

    Args:
        backend: Its name in the option ``attention_backends``.
        gate: The kernel's conditions, if any.
        a: The attention.
        s: The other facts.
    """
    return _first(
        why_not_listed("attention_backends", s.backends, backend),
        _shape(a),
        gate(a, s) if gate else None,
    )


def _shape(a: Attention) -> str | None:
    if a.heads % a.kv_heads:
        return f"{a.heads} heads are no multiple of {a.kv_heads} key heads"
    return None


def _first(*reasons: str | None) -> str | None:
    return next(filter(None, reasons), None)


def _capped(a: Attention) -> str | None:
    return "a soft cap" if a.softcap else None


def _half(a: Attention) -> str | None:
    return None if a.dtype in _HALF else f"{a.dtype} operands"


def _top_left(a: Attention, s: DispatchContext) -> str | None:
    if a.mask.left >= 0 or a.mask.right > 0:
        return "a window"
    if a.mask.right == 0 and a.mask.bottom_right and not s.square:
        return "a causal mask that ends at the last key"
    return None


def _bottom_right(a: Attention, s: DispatchContext) -> str | None:
    if a.mask.limited and not a.mask.bottom_right and not s.square:
        return "a mask that begins at the first key, of another length than the queries"
    return None


def _altered_window(a: Attention, s: DispatchContext) -> str | None:
    if s.square:
        return None
    longest = s.longest
    if longest is None:
        if a.varlen or s.dynamic:
            return (
                "a window whose far side may be beyond all keys" if a.mask.may_be_altered else None
            )
        longest = a.queries, a.keys
    return (
        "a window that is another one for more queries than keys"
        if a.mask.altered_by_flash(*longest)
        else None
    )


def _scale_sign(a: Attention) -> str | None:
    """Hidden scores are minus infinity before they are scaled: a scale of 0 makes NaN of them, a negative one plus infinity."""
    return None if a.scale > 0 else f"a scale of {a.scale}; it takes positive ones"


def _newer(s: DispatchContext, least: tuple[int, int]) -> str | None:
    if s.capability is None:
        return "a GPU whose compute capability is not known"
    if s.capability < least:
        return f"compute capability {s.capability[0]}.{s.capability[1]}, it needs {least[0]}.{least[1]}"
    return None


def _flash_head(a: Attention, s: DispatchContext) -> str | None:
    if a.head_dim != a.value_dim:
        return f"heads of {a.head_dim} and values of {a.value_dim}"
    if a.head_dim % 8 or a.head_dim > 256:
        return f"heads of {a.head_dim}; it takes multiples of 8 up to 256"
    if a.backward and a.head_dim > 192 and s.capability not in ((8, 0), (9, 0), (10, 0)):
        return f"gradients for heads of {a.head_dim}, whose tiles do not fit this GPU"
    return None


def flash(a: Attention, s: DispatchContext) -> str | None:
    """Return why `flash` cannot compute an attention, whether a compiled graph or an eager `fmha` calls it.

    Its limits: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, torch 2.11 to 2.15.
    """
    return _first(
        _newer(s, (8, 0)),
        _half(a),
        "a bias" if a.biased else None,
        _capped(a),
        _flash_head(a, s),
        _bottom_right(a, s),
        _altered_window(a, s),
        _scale_sign(a),
    )


def efficient(a: Attention, s: DispatchContext) -> str | None:
    """Return why `efficient` cannot compute an attention."""
    step = 4 if a.dtype == "float32" else 8
    wrong = a.head_dim % step or a.value_dim % step
    return _first(
        _newer(s, (8, 0)),
        _capped(a),
        None if a.dtype in (*_HALF, "float32") else f"{a.dtype} operands",
        "query heads that share a key head" if a.heads != a.kv_heads else None,
        f"heads of {a.head_dim}; it takes multiples of {step}" if wrong else None,
        _top_left(a, s),
        _scale_sign(a),
        _bias_dtype(a, s),
        "a bias that is the same for all keys" if a.biased and not s.wide_bias else None,
        "a bias whose rows are not aligned" if a.biased and not s.aligned_bias else None,
        "gradients that have to be deterministic" if a.backward and s.deterministic else None,
    )


def _bias_dtype(a: Attention, s: DispatchContext) -> str | None:
    """`efficient`: aten/src/ATen/native/transformers/cuda/attention.cu; `cudnn`: MHA.cpp, which gives the bias the type of q."""
    if not a.biased or s.bias_dtype in ("", a.dtype):
        return None
    return f"a {s.bias_dtype} bias of {a.dtype} operands; it takes one type for both"


def _cudnn_head(a: Attention, s: DispatchContext) -> str | None:
    limit = 256 if s.capability == (9, 0) and s.cudnn >= 91000 else 128
    if a.head_dim % 8 or a.value_dim % 8 or max(a.head_dim, a.value_dim) > limit:
        return f"heads of {a.head_dim} and {a.value_dim}; it takes multiples of 8 up to {limit}"
    return None


def _cudnn_bug(a: Attention, s: DispatchContext) -> str | None:
    """Gradients that may be NaN, as torch 2.15 warns of: SM90, no causal mask, Sk % 128 == 64."""
    hit = a.backward and not a.mask.limited and s.capability == (9, 0) and s.cudnn < 92600
    if hit and a.keys % 128 == 64:
        return "gradients that cuDNN before 9.26 may make NaN (Sk % 128 == 64)"
    return None


def cudnn(a: Attention, s: DispatchContext) -> str | None:
    """Return why `cudnn` cannot compute an attention."""
    return _first(
        "no cuDNN" if not s.cudnn else None,
        _newer(s, (8, 0)),
        _capped(a),
        _half(a),
        _cudnn_head(a, s),
        "a single key" if a.keys == 1 else None,
        _top_left(a, s),
        _scale_sign(a),
        _bias_dtype(a, s),
        "a bias whose rows are not aligned" if a.biased and not s.aligned_bias else None,
        "kernels that have to be deterministic" if s.deterministic else None,
        "sizes known at run time; it builds a plan for each" if s.dynamic else None,
        _cudnn_bug(a, s),
    )


def wheel(kernel: str, majors: tuple[int, ...]) -> Gate:
    """Return the conditions of a kernel of one of FlashAttention's own packages, for GPUs of these major versions."""
    package = PACKAGES[kernel]

    def gate(a: Attention, s: DispatchContext) -> str | None:
        fits = s.capability is not None and s.capability[0] in majors
        return _first(
            None if package in s.packages else f"{package} cannot be imported",
            None if fits else f"a GPU whose major compute capability is none of {majors}",
            _half(a),
            "a bias" if a.biased else None,
            "gradients" if a.backward else None,
            f"heads of {a.head_dim}" if a.head_dim % 8 or a.head_dim > 256 else None,
            "heads and values of different length" if a.head_dim != a.value_dim else None,
            _bottom_right(a, s),
            _altered_window(a, s),
            _scale_sign(a),
        )

    return gate
