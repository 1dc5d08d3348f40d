"""The cases of CUTLASS's attention: every kernel that is offered; masks, head sizes, shared heads, gradients, 8 bits, no lse.

Sequences of different lengths, a bias and a soft-cap are refused by these kernels (`templates.cutlass_attention.problem`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from tests.emulator.kernels.attention import Case

_64 = FmhaConfig(False, 128, 64, 64, "bf16")
_PINGPONG = replace(_64, schedule="pingpong", element="f16")
_64_WIDE = replace(_64, columns=128)
_32 = replace(_64, dim=32)
_32_WIDE = replace(_32, columns=128)
_128 = replace(_64, columns=128, dim=128)
_128_PINGPONG = replace(_128, schedule="pingpong")
_128_SLIM = replace(_128, columns=64, element="f16")
_256 = replace(_64, dim=256)
_256_PINGPONG = replace(_256, schedule="pingpong")
_NARROW_64 = FmhaConfig(False, 128, 128, 64, "e4m3")
_NARROW_64_PINGPONG = replace(_NARROW_64, schedule="pingpong")
_NARROW_128 = replace(_NARROW_64, columns=256, dim=128)
_NARROW_128_SLIM = replace(_NARROW_64, dim=128)
_NARROW_128_PINGPONG = replace(_NARROW_128_SLIM, schedule="pingpong")
_NARROW_256 = replace(_NARROW_64, dim=256, schedule="pingpong")
_NARROW_256_COOPERATIVE = replace(_NARROW_64, dim=256)
_BACK_64 = FmhaConfig(True, 64, 128, 64, "bf16")
_BACK_32 = replace(_BACK_64, rows=128, dim=32)
_BACK_32_SLIM = replace(_BACK_64, dim=32)
_BACK_128 = replace(_BACK_64, dim=128, element="f16")

MASKS: dict[str, dict[str, Any]] = {
    "causal": {"right": 0},
    "causal, bottom right": {"right": 0, "bottom_right": True},
    "left": {"left": 17},
    "left, bottom right": {"left": 17, "bottom_right": True},
    "right": {"right": 5},
    "right, bottom right": {"right": 5, "bottom_right": True},
    "window": {"left": 70, "right": 5},
    "window, bottom right": {"left": 70, "right": 5, "bottom_right": True},
    "own key": {"left": 0, "right": 0},
    "own key, bottom right": {"left": 0, "right": 0, "bottom_right": True},
}


def _masked() -> dict[str, Case]:
    """Return each mask with more keys than queries and with fewer, so that rows without keys are among them."""
    cases: dict[str, Case] = {}
    for name, mask in MASKS.items():
        cases[f"{name}, more keys"] = Case(_64, 1, 2, 1, 140, 203, 64, **mask)
        cases[f"{name}, fewer keys"] = Case(_64, 1, 1, 1, 203, 90, 64, **mask)
        cases[f"backward, {name}, more keys"] = Case(_BACK_64, 1, 2, 1, 70, 203, 64, **mask)
        cases[f"backward, {name}, fewer keys"] = Case(_BACK_64, 1, 1, 1, 203, 90, 64, **mask)
    return cases


def _forward() -> dict[str, Case]:
    return {
        "heads of 64": Case(_64, 2, 4, 2, 133, 150, 64),
        "heads of 8": Case(_64, 1, 2, 2, 133, 150, 8, spread=True),
        "heads of 56": Case(_64, 1, 2, 1, 133, 150, 56, spread=True),
        "heads of 64, 128 keys": Case(_64_WIDE, 1, 2, 1, 133, 200, 64, right=0),
        "heads of 32": Case(_32, 1, 3, 1, 133, 150, 32, right=0),
        "heads of 24": Case(_32, 1, 2, 2, 17, 300, 24),
        "heads of 32, 128 keys": Case(_32_WIDE, 1, 2, 1, 133, 200, 32, left=40, right=3),
        "heads of 128": Case(_128, 1, 2, 1, 133, 150, 128, right=0),
        "heads of 96": Case(_128, 1, 2, 2, 257, 70, 96, spread=True),
        "heads of 128, 64 keys": Case(_128_SLIM, 1, 1, 1, 133, 150, 128, left=70),
        "heads of 256": Case(_256, 1, 1, 1, 133, 150, 256, left=40, right=0),
        "heads of 200": Case(_256, 1, 2, 1, 70, 130, 200),
        "pingpong": Case(_PINGPONG, 2, 2, 2, 300, 150, 64, multiprocessors=2),
        "pingpong, causal": Case(_PINGPONG, 1, 3, 1, 260, 260, 48, right=0, multiprocessors=3),
        "pingpong, heads of 128": Case(_128_PINGPONG, 1, 2, 1, 200, 260, 128, multiprocessors=1),
        "pingpong, heads of 256": Case(
            _256_PINGPONG, 1, 2, 2, 133, 150, 256, right=0, multiprocessors=2
        ),
        "one key": Case(_64, 1, 1, 1, 20, 1, 64),
        "no lse": Case(_64, 1, 2, 1, 133, 150, 64, right=0, lse=False),
        "pingpong, no lse": Case(_PINGPONG, 1, 2, 1, 260, 150, 64, multiprocessors=2, lse=False),
    }


def _narrow() -> dict[str, Case]:
    return {
        "heads of 64": Case(_NARROW_64, 1, 2, 1, 133, 150, 64),
        "heads of 48": Case(_NARROW_64, 1, 2, 2, 133, 270, 48, right=0, spread=True),
        "heads of 64, pingpong": Case(
            _NARROW_64_PINGPONG, 1, 2, 1, 260, 150, 64, multiprocessors=2
        ),
        "heads of 128": Case(_NARROW_128, 1, 1, 1, 133, 300, 128, left=100, right=3),
        "heads of 128, 128 keys": Case(_NARROW_128_SLIM, 1, 2, 1, 133, 150, 128, right=0),
        "heads of 128, 128 keys, pingpong": Case(
            _NARROW_128_PINGPONG, 1, 1, 1, 260, 150, 128, multiprocessors=2
        ),
        "heads of 256": Case(_NARROW_256, 1, 1, 1, 133, 150, 256, multiprocessors=1),
        "heads of 256, cooperative": Case(_NARROW_256_COOPERATIVE, 1, 1, 1, 133, 150, 256, left=40),
    }


def _backward() -> dict[str, Case]:
    return {
        "heads of 64": Case(_BACK_64, 1, 4, 2, 133, 150, 64),
        "heads of 32": Case(_BACK_32, 1, 2, 1, 200, 150, 32, right=0),
        "heads of 32, 64 rows": Case(_BACK_32_SLIM, 1, 2, 1, 133, 150, 32, left=40),
        "heads of 16": Case(_BACK_32, 2, 1, 1, 70, 260, 16, spread=True),
        "heads of 128": Case(_BACK_128, 1, 2, 1, 133, 150, 128),
        "heads of 72": Case(_BACK_128, 1, 1, 1, 200, 140, 72, right=0, spread=True),
        "one key": Case(_BACK_64, 1, 1, 1, 20, 1, 64),
    }


def _cases() -> dict[str, Case]:
    cases = {
        **_masked(),
        **_forward(),
        **{f"8 bits, {name}": case for name, case in _narrow().items()},
        **{f"backward, {name}": case for name, case in _backward().items()},
    }
    return {f"fmha {name}": case for name, case in cases.items()}


CASES: dict[str, Case] = _cases()
"""All by name."""
