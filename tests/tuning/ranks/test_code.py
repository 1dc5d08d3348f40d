"""Generated code of two ranks: what may differ, and the first line that may not."""

from __future__ import annotations

import pytest

from inductor_plugin.tuning.ranks.code import first_difference, normalized


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ("buf0 = empty((2,), device='cuda:0')", "buf0 = empty((2,), device='cuda:3')"),
        (
            "a = rand_strided((2,), (1,), device='npu:0')",
            "a = rand_strided((2,), (1,), device='npu:1')",
        ),
        ("b = empty((2,), device='my_npu2:0')", "b = empty((2,), device='my_npu2:15')"),
        ('p2p((2,), torch.device("xpu:0"), "g")', 'p2p((2,), torch.device("xpu:3"), "g")'),
        ("torch.npu.set_device('npu:0')", "torch.npu.set_device('npu:1')"),
        ("with torch.xpu._DeviceGuard(0):", "with torch.xpu._DeviceGuard(1):"),
        ("with torch.mtia.device(0):", "with torch.mtia.device(1):"),
        ("AOTIXpuGuard device_guard(0);", "AOTIXpuGuard device_guard(1);"),
        ("(cached_torch_device_type_npu, 0, &buf0)", "(cached_torch_device_type_npu, 2, &buf0)"),
        ("DeviceProperties(type='xpu', index=0)", "DeviceProperties(type='xpu', index=5)"),
        ("with torch.cuda._DeviceGuard(0):", "with torch.cuda._DeviceGuard(7):"),
        ("torch.cuda.set_device(0)", "torch.cuda.set_device(1)"),
        ("stream0 = get_raw_stream(0)", "stream1 = get_raw_stream(1)"),
        ("raw_stream0 = get_raw_stream(0)", "raw_stream3 = get_raw_stream(3)"),
        ("k.run(buf0, 512, stream=raw_stream0)", "k.run(buf0, 512, stream=raw_stream7)"),
        ("AOTICudaGuard device_guard(0);", "AOTICudaGuard device_guard(1);"),
        ("device_guard.set_index(0);", "device_guard.set_index(1);"),
        (
            "aoti_torch_get_current_cuda_stream(0, &stream0)",
            "aoti_torch_get_current_cuda_stream(2, &stream2)",
        ),
        (
            "(cached_torch_device_type_cuda,  0, &buf0)",
            "(cached_torch_device_type_cuda,  2, &buf0)",
        ),
        ("call_triton(buf0, 512, 0, stream0, k)", "call_triton(buf0, 512, 3, stream3, k)"),
        ("DeviceProperties(type='cuda', index=0)", "DeviceProperties(type='cuda', index=5)"),
        (
            "full(2, device=device(type='xpu', index=0))",
            "full(2, device=device(type='xpu', index=5))",
        ),
        (
            "call_k(buf0, f(2, 0), 3, 0, stream0);",
            "call_k(buf0, f(2, 0), 3, 12, stream12);",
        ),
        ("# kernel path: /tmp/a/x.py\nx = 1", "# kernel path: /tmp/b/y.py\nx = 1"),
        ('#include "/tmp/a/vx/cvxabcdefgh.h"', '#include "/tmp/b/vx/cvxabcdefgh.h"'),
        (
            "b = torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '3')",
            "b = torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '4')",
        ),
        (
            "torch.ops._c10d_functional.all_gather_into_tensor_out.default(b, 2, '3', out=c)",
            "torch.ops._c10d_functional.all_gather_into_tensor_out.default(b, 2, '4', out=c)",
        ),
        (
            f"torch.ops.symm_mem.fused_all_gather_matmul.default(a, [b], 0, '{'0a' * 20}')",
            f"torch.ops.symm_mem.fused_all_gather_matmul.default(a, [b], 0, '{'1b' * 20}')",
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
        ("k.run(buf0, 512, stream=raw_stream0)", "k.run(buf0, 256, stream=raw_stream0)"),
        ("(cached_torch_device_type_cuda, 0, &a)", "(cached_torch_device_type_cpu, 0, &a)"),
        ("empty((2,), device='npu:0')", "empty((2,), device='xpu:0')"),
        ("torch.ops.mine.scale(a, 'layer:3')", "torch.ops.mine.scale(a, 'layer:4')"),
        ("buf1 = buf0[k:3]", "buf1 = buf0[k:4]"),
        ("torch.ops.mine.take(a, index=3)", "torch.ops.mine.take(a, index=4)"),
        ("mine.kernel(a, 16, stream0)", "mine.kernel(a, 32, stream0)"),
        ("mine.kernel(a, 0, stream0)", "mine.kernel(a, 1, stream0)"),
        ("call_k(buf0, 512, 0, stream0);", "call_k(buf0, 256, 0, stream0);"),
        ('raise ValueError("file:12")', 'raise ValueError("file:13")'),
        ('#include "/tmp/a/vx/cvxabcdefgh.h"', '#include "/tmp/a/vx/cvxabcdefgz.h"'),
    ],
)
def test_another_kernel_is_a_difference(here: str, there: str) -> None:
    assert normalized(here) != normalized(there)


def test_the_first_line_that_differs_is_named() -> None:
    assert first_difference("a\nb\nc", "a\nB\nC") == "line 2: 'b' instead of 'B'"
    assert first_difference("a", "a\nb") == "line 2: '(nothing)' instead of 'b'"
    assert first_difference("a\nb", "a\nb") == ""
