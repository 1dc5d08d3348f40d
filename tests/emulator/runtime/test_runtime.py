"""The emulated CUDA runtime, called as host code calls it; what CUDA's documentation says fails, fails with its error."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from inductor_plugin.problem.target import Target, target
from tests.emulator.fault import CudaError, FaultError
from tests.emulator.memory.allowed import Allowed
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.runtime.devices import NAMES, Attribute, attributes, runs_on
from tests.emulator.runtime.launch import Launch, launch
from tests.emulator.runtime.module import LoadedModule
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.tensor import tensor_map
from tests.emulator.threads.lanes import Shape
from tests.support.emulator.fat_binary import entry, image

KERNEL = """.version 8.7
.target {target}
.address_size 64
.extern .shared .align 16 .b8 more[];
.visible .entry work(.param .u64 out, .param .u32 value)
{{
  .reg .b64 %p<3>; .reg .b32 %r<5>; .reg .pred %q;
  ld.param.u64 %p0, [out]; ld.param.u32 %r0, [value]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
  mov.u32 %r3, %ntid.x; mad.lo.u32 %r1, %r2, %r3, %r1; mad.wide.u32 %p0, %r1, 4, %p0;
  add.u32 %r4, %r0, %r1; st.global.b32 [%p0], %r4;
  {rest}
  ret;
}}
"""


class Dim3(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


class LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    _fields_ = (
        ("grid", Dim3),
        ("block", Dim3),
        ("shared", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


class Wrapper(ctypes.Structure):
    _fields_ = (("magic", ctypes.c_int), ("version", ctypes.c_int), ("data", ctypes.c_void_p))


@dataclass
class Host:
    """Host code with one kernel: what nvcc's constructors and stubs would do."""

    library: Any
    address: ctypes.c_void_p

    def launch(
        self,
        out: int,
        value: int,
        grid: tuple[int, int, int] = (2, 1, 1),
        block: tuple[int, int, int] = (32, 1, 1),
        shared: int = 0,
        cluster: int = 1,
    ) -> int:
        """Launch with ``cudaLaunchKernelExC`` and return its error."""
        values = ctypes.c_uint64(out), ctypes.c_uint32(value)
        arguments = (ctypes.c_void_p * 2)(*(ctypes.addressof(each) for each in values))
        attribute = LaunchAttribute(4, 0, (ctypes.c_uint * 16)(cluster, 1, 1))
        config = Config(Dim3(*grid), Dim3(*block), shared, None, ctypes.pointer(attribute), 1)
        return self.library.cudaLaunchKernelExC(ctypes.byref(config), self.address, arguments)

    def set(self, attribute: int, value: int) -> int:
        return self.library.cudaFuncSetAttribute(self.address, attribute, value)


@contextmanager
def host(runtime: Runtime, ptx_target: str = "sm_80", rest: str = "") -> Generator[Host]:
    library: Any = ctypes.CDLL(runtime.cudart)
    library.__cudaRegisterFatBinary.restype = ctypes.POINTER(ctypes.c_void_p)
    text = KERNEL.format(target=ptx_target, rest=rest).encode() + b"\0"
    binary = ctypes.create_string_buffer(image(entry(1, text)))
    wrapper = Wrapper(0x466243B1, 1, ctypes.addressof(binary))
    handle = library.__cudaRegisterFatBinary(ctypes.byref(wrapper))
    stub = ctypes.create_string_buffer(8)
    address = ctypes.c_void_p(ctypes.addressof(stub))
    name = ctypes.c_char_p(b"work")
    library.__cudaRegisterFunction(handle, address, name, name, -1, *([None] * 5))
    library.__cudaRegisterFatBinaryEnd(handle)
    try:
        yield Host(library, address)
    finally:
        library.__cudaUnregisterFatBinary(handle)


def run(
    runtime: Runtime, code: Host, gpu: str = "A100", **how: Any
) -> tuple[int, list[int], list[Launch]]:
    out = np.zeros(64, np.uint32)
    with runtime.on(target(gpu), allowed=Allowed([]).with_arrays([out])) as launches:
        error = code.launch(out.ctypes.data, 100, **how)
    return error, out.tolist(), launches


def test_a_launch_computes(runtime: Runtime) -> None:
    with host(runtime) as code:
        error, out, (done,) = run(runtime, code)
    assert error == CudaError.SUCCESS
    assert out == list(range(100, 164))
    assert (done.name, done.shape.grid, done.shape.block) == ("work", (2, 1, 1), (32, 1, 1))
    assert done.instructions == 10
    assert done.lane_instructions == 10 * 64
    assert len(done.lines) == 4


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ({"grid": (0, 1, 1)}, CudaError.INVALID_CONFIGURATION),
        ({"grid": (1, 65536, 1)}, CudaError.INVALID_CONFIGURATION),
        ({"block": (1025, 1, 1)}, CudaError.INVALID_CONFIGURATION),
        ({"block": (1, 1, 65)}, CudaError.INVALID_CONFIGURATION),
        ({"block": (64, 32, 1)}, CudaError.INVALID_CONFIGURATION),
        ({"shared": 49153}, CudaError.INVALID_VALUE),
        ({"cluster": 2}, CudaError.INVALID_CONFIGURATION),  # an A100 has no clusters
    ],
)
def test_a_launch_beyond_the_limits_is_refused(
    runtime: Runtime, how: dict[str, Any], error: CudaError
) -> None:
    with host(runtime) as code:
        assert run(runtime, code, **how) == (error, [0] * 64, [])


def test_more_shared_memory_has_to_be_asked_for_and_there(runtime: Runtime) -> None:
    with host(runtime) as code:
        for gpu, most in (("A100", 163 << 10), ("L40S", 99 << 10), ("B200", 227 << 10)):
            with runtime.on(target(gpu)):
                assert code.set(8, most + 1) == CudaError.INVALID_VALUE
                assert code.set(8, most) == CudaError.SUCCESS
                assert code.set(99, 1) == CudaError.INVALID_VALUE
            assert run(runtime, code, gpu, shared=most)[0] == CudaError.SUCCESS
            assert run(runtime, code, gpu, shared=most + 1)[0] == CudaError.INVALID_VALUE


def test_clusters_of_more_than_eight_blocks_have_to_be_allowed(runtime: Runtime) -> None:
    with host(runtime, "sm_90") as code:
        grid = (16, 1, 1)
        how: dict[str, Any] = {"grid": grid, "block": (4, 1, 1)}
        assert run(runtime, code, "H100", cluster=8, **how)[0] == CudaError.SUCCESS
        assert (
            run(runtime, code, "H100", cluster=16, **how)[0] == 912
        )  # cudaErrorInvalidClusterSize
        assert run(runtime, code, "H100", cluster=3, **how)[0] == CudaError.INVALID_CONFIGURATION
        with runtime.on(target("H100")):
            assert code.set(14, 1) == CudaError.SUCCESS
        assert run(runtime, code, "H100", cluster=16, **how)[0] == CudaError.SUCCESS


def test_a_fault_is_raised_and_every_later_call_fails(runtime: Runtime) -> None:
    with host(runtime, rest="st.global.b32 [%p0+4096], %r4;") as code:
        out = np.zeros(64, np.uint32)
        errors: list[int] = []

        def launches() -> None:
            with runtime.on(target("A100"), allowed=Allowed([]).with_arrays([out])):
                errors.append(code.launch(out.ctypes.data, 1))
                errors.append(code.launch(out.ctypes.data, 1))
                errors.append(code.library.cudaDeviceSynchronize())
                errors.append(code.library.cudaGetLastError())

        with pytest.raises(FaultError, match=r"work, PTX line \d+: st.global.b32"):
            launches()
        assert errors == [CudaError.ILLEGAL_ADDRESS] * 4
        with runtime.on(target("A100")):
            assert code.library.cudaGetLastError() == CudaError.SUCCESS


def test_an_unknown_instruction_is_raised_behind_the_host_code(runtime: Runtime) -> None:
    with (
        host(runtime, rest="frobnicate.b32 %r1;") as code,
        pytest.raises(PtxError, match=r"opcode frobnicate\.b32 is not known"),
    ):
        run(runtime, code)


def test_an_interrupt_while_a_kernel_runs_is_raised_behind_the_host_code(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with host(runtime) as code:
        monkeypatch.setattr(runtime, "_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(runtime, code)
        monkeypatch.undo()
        assert run(runtime, code)[0] == CudaError.SUCCESS


def test_ptx_does_not_run_on_another_gpu(runtime: Runtime) -> None:
    with (
        host(runtime, "sm_90a") as code,
        pytest.raises(FaultError, match="work is for sm_90a, the device is B200") as caught,
    ):
        run(runtime, code, "B200")
    assert caught.value.error == CudaError.NO_KERNEL_IMAGE_FOR_DEVICE


@pytest.mark.parametrize(
    ("ptx", "gpus"),
    [
        ("sm_80", ("H100", "H200", "A100", "B200", "L40S")),
        ("sm_89", ("H100", "H200", "B200", "L40S")),
        ("sm_90a", ("H100", "H200")),
        ("sm_100a", ("B200",)),
        ("sm_100f", ("B200",)),
    ],
)
def test_which_gpus_run_which_ptx(ptx: str, gpus: tuple[str, ...]) -> None:
    assert tuple(name for name in NAMES if runs_on(ptx, target(name))) == gpus


def attribute(runtime: Runtime, gpu: Target, which: int) -> tuple[int, int]:
    library: Any = ctypes.CDLL(runtime.cudart)
    value = ctypes.c_int(-7)
    with runtime.on(gpu):
        error = library.cudaDeviceGetAttribute(ctypes.byref(value), which, 0)
    return error, value.value


def test_a_device_has_the_properties_of_its_gpu(runtime: Runtime) -> None:
    wanted = {
        "H100": (132, 9, 0, 232448, 50 << 20),
        "H200": (132, 9, 0, 232448, 60 << 20),
        "A100": (108, 8, 0, 166912, 40 << 20),
        "B200": (148, 10, 0, 232448, target("B200").l2_bytes),
        "L40S": (142, 8, 9, 101376, 96 << 20),
    }
    asked = (
        Attribute.MULTIPROCESSOR_COUNT,
        Attribute.COMPUTE_CAPABILITY_MAJOR,
        Attribute.COMPUTE_CAPABILITY_MINOR,
        Attribute.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        Attribute.L2_CACHE_SIZE,
    )
    for name in NAMES:
        values = tuple(attribute(runtime, target(name), each) for each in asked)
        assert values == tuple((0, value) for value in wanted[name]), name
    assert attribute(runtime, target("A100"), Attribute.CLUSTER_LAUNCH) == (0, 0)
    assert attribute(runtime, target("H100"), Attribute.CLUSTER_LAUNCH) == (0, 1)
    assert attribute(runtime, target("H100"), 9999) == (CudaError.INVALID_VALUE, -7)
    assert attributes(target("L40S"))[Attribute.MAX_THREADS_PER_MULTIPROCESSOR] == 1536


def test_how_many_blocks_fit_a_multiprocessor(runtime: Runtime) -> None:
    library: Any = ctypes.CDLL(runtime.cudart)
    ask = library.cudaOccupancyMaxActiveBlocksPerMultiprocessor
    blocks = ctypes.c_int()
    with host(runtime) as code, runtime.on(target("L40S")):
        for threads, shared, wanted in ((1024, 0, 1), (64, 0, 24), (64, 32 << 10, 3)):
            size = ctypes.c_size_t(shared)
            assert ask(ctypes.byref(blocks), code.address, threads, size) == 0
            assert blocks.value == wanted
        unknown = ctypes.c_void_p(8)
        error = ask(ctypes.byref(blocks), unknown, 64, ctypes.c_size_t(0))
        assert error == CudaError.INVALID_DEVICE_FUNCTION


def encoded(runtime: Runtime, **changed: Any) -> tuple[int, bytes]:
    """Call ``cuTensorMapEncodeTiled`` for bfloat16 [5, 40] in boxes of [4, 32], with changes."""
    library: Any = ctypes.CDLL(runtime.cudart)
    pointer = ctypes.c_void_p()
    name = ctypes.c_char_p(b"cuTensorMapEncodeTiled")
    status = ctypes.c_int()
    library.cudaGetDriverEntryPointByVersion(
        name, ctypes.byref(pointer), 13000, ctypes.c_ulonglong(0), ctypes.byref(status)
    )
    function = ctypes.CFUNCTYPE(ctypes.c_int)(pointer.value or 0)
    room = np.zeros(256, np.uint8)
    begin = -room.ctypes.data % 64 + changed.get("shift", 0)
    operands: dict[str, Any] = {
        "type": 9,
        "address": 1 << 20,
        "sizes": (40, 5),
        "strides": (80,),
        "box": (32, 4),
        "steps": (1, 1),
        "swizzle": 2,
        **changed,
    }
    error = function(
        ctypes.c_void_p(room.ctypes.data + begin),
        operands["type"],
        2,
        ctypes.c_void_p(operands["address"]),
        (ctypes.c_uint64 * 2)(*operands["sizes"]),
        (ctypes.c_uint64 * 1)(*operands["strides"]),
        (ctypes.c_uint32 * 2)(*operands["box"]),
        (ctypes.c_uint32 * 2)(*operands["steps"]),
        0,
        operands["swizzle"],
        0,
        0,
    )
    return error, room[begin : begin + 128].tobytes()


def test_a_tensor_map_holds_its_arguments(runtime: Runtime) -> None:
    error, raw = encoded(runtime)
    assert error == CudaError.SUCCESS
    tensor = tensor_map.TensorMap(1 << 20, (40, 5), (2, 80), (32, 4), "bfloat16", 2, False)
    assert tensor_map.encoded(tensor) == raw
    error, raw = encoded(runtime, swizzle=4, box=(64, 4))  # pieces of 32 bytes within 128
    assert error == CudaError.SUCCESS
    assert tensor_map.encoded(replace(tensor, box=(64, 4), swizzle=4)) == raw


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"shift": 16}, "not aligned to 64 bytes"),
        ({"address": (1 << 20) + 8}, "the address is no multiple of 16"),
        ({"strides": (72,)}, "a stride is no multiple of 16"),
        ({"box": (257, 4), "swizzle": 0}, "an extent of the box"),
        ({"box": (12, 4), "swizzle": 0}, "no multiple of 16 bytes"),
        ({"box": (64, 4)}, "wider than the swizzle"),
        ({"sizes": (40, 0)}, "a size is not"),
        ({"steps": (1, 9)}, "an element stride"),
        ({"type": 13}, "the type is not known"),
        ({"swizzle": 5}, "the swizzle is not known here"),
    ],
)
def test_what_the_driver_refuses_is_refused(
    runtime: Runtime, changed: dict[str, Any], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert encoded(runtime, **changed)[0] == CudaError.INVALID_VALUE
    assert reason in capfd.readouterr().err


def test_parameters_have_their_sizes() -> None:
    module = LoadedModule(KERNEL.format(target="sm_80", rest=""))
    assert module.entries == ["work"]
    kernel = module.kernel("work")
    assert kernel.parameters == ((0, 8), (8, 4))
    shape = Shape((1, 1, 1), (1, 1, 1))
    with pytest.raises(FaultError, match="has 2 parameters, not 1"):
        launch(module, "work", shape, [b"\0" * 8])
    with pytest.raises(FaultError, match="has a parameter of 4 bytes, not 8"):
        launch(module, "work", shape, [b"\0" * 8, struct.pack("<q", 1)])
    required = KERNEL.replace("\n{{", "\n.reqntid 64\n{{", 1)
    with pytest.raises(FaultError, match=r"requires blocks of \(64, 1, 1\) threads"):
        launch(
            LoadedModule(required.format(target="sm_80", rest="")),
            "work",
            shape,
            [b"\0" * 8, b"\0" * 4],
        )
