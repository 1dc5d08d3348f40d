"""The order of the GPU tests: most telling first, and last what ended an earlier run. Pure."""

from __future__ import annotations

from collections.abc import Collection

FIRST = (
    "test_lowering.py::test_an_operator_is_tuned_and_right[mm]",
    "test_forced.py::test_a_forced_winner_is_right[cutlass]",
    "test_forced.py::test_a_forced_winner_is_right[triton_persistent_tma]",
    "test_attention.py::test_a_forced_attention_is_right[triton causal d128]",
    "test_attention.py::test_a_forced_attention_is_right[cutlass causal d128]",
    "test_fused.py::test_a_forced_way_to_fuse_is_right[bias and gelu, triton]",
    "test_fused.py::test_a_forced_way_to_fuse_is_right[bias and gelu, cutlass]",
    "test_fused.py::test_a_forced_way_to_fuse_is_right[bias and gelu, apart]",
)
"""A product, an attention and a fusion, by each kind of kernel, forced."""

FILES = (
    "test_candidates.py",
    "test_triton_attention.py",
    "test_cutlass_fmha.py",
    "test_forced.py",
    "test_attention.py",
    "test_fused.py",
    "test_lowering.py",
)
"""Every family of kernels alone, then whole compiles."""


def rank(node_id: str, ended: Collection[str] = ()) -> tuple[int, int]:
    """Return the place of a test; tests of the same place keep their order.

    Args:
        node_id: The test: ``tests/gpu/test_forced.py::test_a_forced_winner_is_right[cutlass]``.
        ended: Names of tests, without their files, that were running when an earlier run ended: with a kernel that
            hangs in front, the others would never run.
    """
    place, _, name = node_id.rpartition("::")
    file = place.rpartition("/")[2]
    if name in ended:
        return 3, 0
    short = f"{file}::{name}"
    if short in FIRST:
        return 0, FIRST.index(short)
    return (1, FILES.index(file)) if file in FILES else (2, 0)
