"""``inductor_plugin::flash_wheel``: FlashAttention 3 and 4 from their own packages, forward, as one operator.

Both packages have ``flash_attn_func`` and ``flash_attn_varlen_func`` (hopper/flash_attn_interface.py and
flash_attn/cute/interface.py of https://github.com/Dao-AILab/flash-attention). Their other parameters
differ between releases, so the function's signature decides what is passed.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from inductor_plugin.attention.flash import FARTHEST
from inductor_plugin.attention.gates import PACKAGES

_LSE_PARAMETERS = ("return_attn_probs", "return_lse", "return_softmax_lse")
_LIBRARY: Any = torch.library
_OPERATORS: Any = _LIBRARY.Library("inductor_plugin", "FRAGMENT")


def flash_wheel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_q: Tensor | None,
    cu_k: Tensor | None,
    max_q: int,
    max_k: int,
    scale: float,
    softcap: float,
    left: int,
    right: int,
    package: str,
) -> tuple[Tensor, Tensor]:
    """Return out and lse; the diagonal of a limited mask ends at the last key.

    Args:
        q: [B, S, H, D], with ``cu_q`` [T, H, D].
        k: [B, Sk, Hkv, D], or [Tk, Hkv, D].
        v: As k.
        cu_q: Where sequences begin, int32 [B + 1].
        cu_k: The same of the keys.
        max_q: Tokens of the longest sequence.
        max_k: Keys of the longest.
        scale: Factor of q @ k.T.
        softcap: Soft cap of the scores; 0: none.
        left: Keys before the diagonal that a query sees; negative: all.
        right: Keys after the diagonal; negative: all.
        package: One of `gates.PACKAGES`.

    Raises:
        RuntimeError: The package returns no lse, or does not support the call.
    """
    function, parameters = _function(package, cu_q is not None)
    keywords: dict[str, Any] = {
        "softmax_scale": scale,
        "causal": left < 0 and right == 0,
        **({"softcap": softcap} if softcap else {}),
        **dict.fromkeys(_LSE_PARAMETERS, True),
    }
    if not keywords["causal"] and max(left, right) >= 0:
        keywords["window_size"] = _window(parameters, left, right)
    if cu_q is not None:
        keywords |= {
            "cu_seqlens_q": cu_q,
            "cu_seqlens_k": cu_k,
            "max_seqlen_q": max_q,
            "max_seqlen_k": max_k,
        }
    missing = [name for name in keywords if name not in parameters and name not in _LSE_PARAMETERS]
    if missing:
        raise RuntimeError(f"{package}'s {function.__name__} has no {', '.join(missing)}")
    results: Any = function(
        q, k, v, **{name: keywords[name] for name in keywords if name in parameters}
    )
    if isinstance(results, Tensor) or len(results) < 2:
        raise RuntimeError(f"{package}'s {function.__name__} gives no lse")
    # Both are contiguous in every release so far; compiled code relies on it.
    return results[0].contiguous(), results[1].contiguous()


def _window(parameters: Mapping[str, inspect.Parameter], left: int, right: int) -> tuple[Any, Any]:
    """Return a window in the package's form: one writes -1 for unlimited, the other None."""
    default: Any = parameters["window_size"].default if "window_size" in parameters else None
    unlimited: Any = None if default == (None, None) else -1
    before, after = (unlimited if side < 0 else min(side, FARTHEST) for side in (left, right))
    return before, after


@functools.cache
def _function(
    package: str,
    varlen: bool,  # noqa: FBT001
) -> tuple[Callable[..., Any], Mapping[str, inspect.Parameter]]:
    module = importlib.import_module(PACKAGES[package])
    function = module.flash_attn_varlen_func if varlen else module.flash_attn_func
    return function, inspect.signature(function).parameters


def _fake(
    q: Tensor,
    k: Tensor,  # noqa: ARG001  the schema's
    v: Tensor,
    cu_q: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor]:
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    rows = (q.shape[1], q.shape[0]) if cu_q is not None else (q.shape[0], q.shape[2], q.shape[1])
    return out, q.new_empty(rows, dtype=torch.float32)


_OPERATORS.define(
    "flash_wheel(Tensor q, Tensor k, Tensor v, Tensor? cu_q, Tensor? cu_k, SymInt max_q, "
    "SymInt max_k, float scale, float softcap, int left, int right, str package) -> (Tensor, Tensor)"
)
_OPERATORS.impl("flash_wheel", flash_wheel, "CUDA")
_OPERATORS.impl("flash_wheel", flash_wheel, "CPU")
_LIBRARY.register_fake("inductor_plugin::flash_wheel", _fake, lib=_OPERATORS)
