"""The attention operators hand a kernel the operands it needs; here plain C functions stand for kernels."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

import logging
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inductor_plugin.attention import cutlass
from inductor_plugin.attention.cutlass_abi import FmhaCall, FmhaFunction, FmhaStatus, run
from inductor_plugin.cache import KernelKey, open_store
from inductor_plugin.errors import CallRefusedError, KernelError
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops import gemm
from inductor_plugin.problem import Operand
from inductor_plugin.problem.attention import Mask
from tests.support.attention import reference
from tests.support.repository import REPOSITORY

MASKS = [
    Mask(),
    Mask(right=0),
    Mask(right=0, bottom_right=True),
    Mask(left=3, right=0, bottom_right=True),
    Mask(left=2, right=4),
    Mask(left=0),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a library with a kernel for each direction, and one for each refusal."""
    folder = tmp_path_factory.mktemp("kernel")
    text = (REPOSITORY / "tests" / "fmha_stands_in.cpp").read_text(encoding="utf-8")
    text += "\n".join(
        f'extern "C" int32_t {name}_{int(status)}(int32_t mode, FmhaCall*, uint64_t* bytes, void*)'
        f" {{ if (bytes) *bytes = 0; return {condition} ? {int(status)} : kOk; }}"
        for status in FmhaStatus
        for name, condition in (("never", "true"), ("late", "mode == kRun"))
    )
    (folder / "kernel.cpp").write_text(text)
    call = (REPOSITORY / "templates" / "cutlass_attention" / "source" / "call.h").read_text(
        encoding="utf-8"
    )
    (folder / "call.h").write_text(call.replace("@align@", "8"))
    made = folder / "kernel.so"
    include = f"-I{REPOSITORY / 'templates' / 'source'}"
    command = [
        "g++",
        "-shared",
        "-fPIC",
        "-O1",
        f"-I{folder}",
        include,
        "-o",
        str(made),
        str(folder / "kernel.cpp"),
    ]
    subprocess.run(command, check=True)
    return made


@pytest.fixture(autouse=True)
def on_the_host(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def launch(function: FmhaFunction, call: FmhaCall, device: torch.device) -> None:
        assert device.type == "cpu"
        run(function, call, 0)

    def processors(device: torch.device) -> int:
        return 132

    monkeypatch.setattr(cutlass, "_launch", launch)
    monkeypatch.setattr(gemm, "multiprocessors", processors)
    monkeypatch.setattr(gemm, "_folders", [])
    monkeypatch.setattr(cutlass, "_warned", set[str]())
    cutlass._loaded.cache_clear()
    yield
    cutlass._loaded.cache_clear()


def rows_of(heads: int, rows: int, dim: int = 8) -> Tensor:
    """Return random numbers [2, heads, rows, dim] whose rows lie apart: a view of [2, rows, heads, dim]."""
    return torch.randn(2, rows, heads, dim + 8)[..., :dim].transpose(1, 2)


def arguments(mask: Mask, scale: float = 0.3) -> tuple[float, int, int, bool]:
    return scale, mask.left, mask.right, mask.bottom_right


class Case:
    """Operands of one attention, and what has to come out."""

    def __init__(
        self, mask: Mask, heads: int = 4, kv_heads: int = 2, sq: int = 5, sk: int = 9
    ) -> None:
        self.mask = mask
        self.q, self.d_out = rows_of(heads, sq), rows_of(heads, sq)
        self.k, self.v = rows_of(kv_heads, sk), rows_of(kv_heads, sk)
        self.out, self.lse = reference.forward(self.q, self.k, self.v, mask=mask, scale=0.3)
        self.grads = reference.backward(self.d_out, self.q, self.k, self.v, mask=mask, scale=0.3)
        self.delta = (self.out * self.d_out).sum(-1).float()

    def forward(self, kernel: str, lse: Tensor | None) -> Tensor:
        out = torch.empty_like(self.q)
        given = (self.q, self.k, self.v, lse, kernel, *arguments(self.mask))
        assert cutlass.cutlass_fmha(*given, out=out) is out
        return out

    def backward(
        self, kernel: str, workspace: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        dq, dk, dv = (torch.full_like(one, 7.0) for one in (self.q, self.k, self.v))
        o, lse = self.out.float(), self.lse.float()
        operands = (self.d_out, self.q, self.k, self.v, o, lse, self.delta, dq, dv)
        given = (*operands, kernel, *arguments(self.mask))
        assert cutlass.cutlass_fmha_backward(*given, workspace=workspace, out=dk) is dk
        return dq, dk, dv

    def close(self, found: Any, expected: Any) -> None:
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("sq", "sk"), [(5, 9), (9, 5)])
def test_a_forward_with_and_without_lse(library: Path, mask: Mask, sq: int, sk: int) -> None:
    case, lse = Case(mask, sq=sq, sk=sk), torch.empty(2, 4, sq)
    out = case.forward(f"forward_kernel@{library}", lse)
    case.close((out, lse), (case.out, case.lse))
    assert torch.equal(case.forward(f"forward_kernel@{library}", None), out)
    alone = torch.empty_like(case.q)
    kernel = f"forward_kernel@{library}"
    cutlass.cutlass_fmha_output(case.q, case.k, case.v, kernel, *arguments(mask), out=alone)
    assert torch.equal(alone, out)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("sq", "sk"), [(5, 9), (9, 5)])
def test_a_backward_writes_all_three_gradients(library: Path, mask: Mask, sq: int, sk: int) -> None:
    case = Case(mask, sq=sq, sk=sk)
    dq, dk, dv = case.backward(f"backward_kernel@{library}")
    case.close((dq, dk, dv), case.grads[:3])


def test_a_workspace_that_is_handed_over_has_to_fit(library: Path) -> None:
    case, kernel = Case(Mask()), f"backward_kernel@{library}"
    storage = torch.empty(1024, dtype=torch.uint8)
    aligned = storage[-storage.data_ptr() % 128 :]
    dq, dk, dv = case.backward(kernel, aligned[:256])
    case.close((dq, dk, dv), case.grads[:3])
    with pytest.raises(KernelError, match="128 bytes of 256"):
        case.backward(kernel, aligned[:128])
    with pytest.raises(KernelError, match="multiple of 128"):
        case.backward(kernel, aligned[64:512])
    with pytest.raises(KernelError, match="contiguous uint8"):
        case.backward(kernel, torch.empty(256))


def stored(cache: Path, library: Path, symbol: str) -> str:
    """Put a library into a cache and return the name of one of its kernels there."""
    key = KernelKey("cutlass_fmha", "text", symbol, "sm_90a", "nvcc 13", "")
    entry = open_store(cache).put_kernel(key, {gemm.LIBRARY_FILE: library.read_bytes()})
    return f"{symbol}@{entry.digest}"


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("when", ["never", "late"])
def test_a_refused_call_is_computed_otherwise_with_one_warning(
    library: Path, cache_dir: Path, when: str, backward: bool
) -> None:
    gemm.look_in(cache_dir)
    kernel = stored(cache_dir, library, f"{when}_{int(FmhaStatus.STRIDE)}")
    case, lse = Case(MASKS[3]), torch.empty(2, 4, 5)
    with pytest.warns(RuntimeWarning, match="a stride is no multiple.*seq_q=5 seq_k=9"):
        found = case.backward(kernel) if backward else (case.forward(kernel, lse), lse)
    case.close(found, case.grads[:3] if backward else (case.out, case.lse))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if backward:
            case.backward(kernel)
        else:
            case.forward(kernel, None)


def test_a_refusal_of_a_kernel_named_by_its_path_is_an_error(library: Path) -> None:
    with pytest.raises(CallRefusedError, match="a stride"):
        Case(Mask()).forward(f"late_{int(FmhaStatus.STRIDE)}@{library}", None)


@pytest.mark.parametrize("status", [FmhaStatus.START, FmhaStatus.BAD_MODE])
def test_what_fails_after_the_start_is_an_error(
    library: Path, cache_dir: Path, status: FmhaStatus
) -> None:
    gemm.look_in(cache_dir)
    kernel = stored(cache_dir, library, f"late_{int(status)}")
    with pytest.raises(KernelError, match=r"did not start|another version"):
        Case(Mask()).forward(kernel, None)


def test_a_library_that_is_gone_is_said_once(cache_dir: Path) -> None:
    gemm.look_in(cache_dir)
    case, lse = Case(MASKS[2]), torch.empty(2, 4, 5)
    with pytest.warns(RuntimeWarning, match="not in the cache any more"):
        found = case.forward("gone@0123456789abcdef", lse)
    case.close((found, lse), (case.out, case.lse))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        case.forward("gone@0123456789abcdef", None)


def test_rows_that_are_not_dense_are_refused(library: Path) -> None:
    case, kernel = Case(Mask()), f"forward_kernel@{library}"
    with pytest.raises(CallRefusedError, match="lse must be dense float32"):
        case.forward(kernel, torch.empty(2, 4, 10)[..., ::2])
    with pytest.raises(CallRefusedError, match="lse must be dense float32"):
        case.forward(kernel, torch.empty(2, 4, 5, dtype=torch.float64))
    case.k = case.k.transpose(-1, -2).contiguous().transpose(-1, -2)
    with pytest.raises(CallRefusedError, match="last dimension must be contiguous"):
        case.forward(kernel, None)


def test_nothing_to_do_needs_no_kernel(library: Path) -> None:
    never = f"never_{int(FmhaStatus.EXTENT)}@{library}"
    case = Case(Mask(), sk=1)
    case.k, case.v = case.k[:, :, :0], case.v[:, :, :0]
    lse = torch.empty(2, 4, 5)
    assert torch.equal(case.forward(never, lse), torch.zeros_like(case.q))
    assert torch.isposinf(lse).all()


def test_a_deterministic_backward_does_not_use_it(library: Path, cache_dir: Path) -> None:
    gemm.look_in(cache_dir)
    kernel, case = stored(cache_dir, library, "backward_kernel"), Case(Mask(right=0))
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.warns(RuntimeWarning, match="depends on the order of sums"):
            found = case.backward(kernel)
    finally:
        torch.use_deterministic_algorithms(False)
    case.close(found, case.grads[:3])


def test_the_current_stream_is_used_and_named_in_the_log(
    library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()

    class Stream:
        cuda_stream = 0x5EED

    class Device:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def __enter__(self) -> None:
            entered.append(self.device)

        def __exit__(self, *_: object) -> None:
            return None

    entered: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "device", Device)
    function = cutlass._loaded("stream_kernel", str(library))
    with caplog.at_level(logging.DEBUG, logger=cutlass.__name__):
        cutlass._launch(function, FmhaCall(), torch.device("cuda:3"))
    seen = cutlass._loaded("seen_stream", str(library)).entry
    seen.argtypes, seen.restype = (), __import__("ctypes").c_int64
    assert seen() == 0x5EED
    assert entered == [torch.device("cuda:3")]
    assert "stream_kernel on cuda:3, stream 0x5eed" in caplog.text


def operand(*size: int, dtype: str = "bfloat16") -> Operand:
    stride = tuple(torch.empty(size, device="meta").stride())
    return Operand(size, stride, dtype, "cuda")


def test_a_workspace_is_known_before_anything_is_allocated(library: Path) -> None:
    q, rows = operand(2, 4, 64, 64), operand(2, 4, 64, dtype="float32")
    told = (0.125, -1, 0, True)
    device = torch.device("cuda:1")

    def needed(op: str, kernel: str, *operands: Operand) -> int:
        call = OpKernel(f"inductor_plugin::{op}.out", (f"{kernel}@{library}", *told))
        return cutlass.workspace_needed(call, operands, q, device)

    back = (q, q, q, q, q, rows, rows, q, q)
    assert needed("cutlass_fmha_backward", "backward_kernel", *back) == 256
    assert needed("cutlass_fmha", "forward_kernel", q, q, q, rows) == 0
    assert needed("cutlass_fmha_output", "forward_kernel", q, q, q) == 0
    assert needed("cutlass_fmha", f"never_{int(FmhaStatus.DIM)}", q, q, q, rows) == 0


def test_generated_code_can_be_traced_without_a_kernel() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    ops: Any = torch.ops.inductor_plugin
    with FakeTensorMode():
        q, lse = torch.empty(2, 4, 64, 64), torch.empty(2, 4, 64)
        told = ("a@0", 0.125, -1, -1, False)
        out = torch.empty_like(q)
        assert ops.cutlass_fmha.out(q, q, q, lse, *told, out=out).shape == q.shape
        assert ops.cutlass_fmha.out(q, q, q, None, *told, out=out).shape == q.shape
        assert ops.cutlass_fmha_output.out(q, q, q, *told, out=out).shape == q.shape
        back = (q, q, q, q, q, lse, lse, torch.empty_like(q), torch.empty_like(q))
        assert ops.cutlass_fmha_backward.out(*back, *told, out=out).shape == q.shape


def test_schemas_say_what_is_written() -> None:
    ops: Any = torch.ops.inductor_plugin

    def written(op: Any) -> set[str]:
        return {
            one.name for one in op._schema.arguments if one.alias_info and one.alias_info.is_write
        }

    assert written(ops.cutlass_fmha.out) == {"lse", "workspace", "out"}
    assert written(ops.cutlass_fmha_output.out) == {"workspace", "out"}
    assert written(ops.cutlass_fmha_backward.out) == {"dq", "dv", "workspace", "out"}
