"""Generated code of two ranks: what may differ, and the first line that may not."""

from __future__ import annotations

import pytest

from inductor_plugin.tuning.ranks.code import first_difference, normalized


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("buf0 = empty((2,), device='cuda:0')", "buf0 = empty((2,), device='cuda:3')"),
        ("with torch.cuda._DeviceGuard(0):", "with torch.cuda._DeviceGuard(7):"),
        ("torch.cuda.set_device(0)", "torch.cuda.set_device(1)"),
        ("stream0 = get_raw_stream(0)", "stream1 = get_raw_stream(1)"),
        ("DeviceProperties(type='cuda', index=0)", "DeviceProperties(type='cuda', index=5)"),
        ("# kernel path: /tmp/a/x.py\nx = 1", "# kernel path: /tmp/b/y.py\nx = 1"),
        ('#include "/tmp/a/vx/cvxabcdefgh.h"', '#include "/tmp/b/vx/cvxabcdefgh.h"'),
        (
            "b = torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '3')",
            "b = torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '4')",
        ),
    ],
)
def test_what_tells_ranks_apart_is_no_difference(here: str, there: str) -> None:
    assert here != there
    assert normalized(here) == normalized(there)


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("extern_kernels.mm(a, b, out=buf0)", "launch_buf0(a, b, None, out=buf0)"),
        ("BLOCK_M : tl.constexpr = 64", "BLOCK_M : tl.constexpr = 128"),
        ("all_reduce_.default(buf0, 'sum', '3')", "all_reduce_.default(buf0, 'avg', '3')"),
        ("#pragma omp parallel", "#pragma omp simd"),
        ('#include "/tmp/a/vx/cvxabcdefgh.h"', '#include "/tmp/a/vx/cvxabcdefgz.h"'),
    ],
)
def test_another_kernel_is_a_difference(here: str, there: str) -> None:
    assert normalized(here) != normalized(there)


def test_the_first_line_that_differs_is_named() -> None:
    assert first_difference("a\nb\nc", "a\nB\nC") == "line 2: 'b' instead of 'B'"
    assert first_difference("a", "a\nb") == "line 2: '(nothing)' instead of 'b'"
    assert first_difference("a\nb", "a\nb") == ""
