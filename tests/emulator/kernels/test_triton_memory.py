"""What generated Triton kernels may touch and change, and what a GPU does not start of them."""

# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import pytest
import torch

from inductor_plugin.problem.target import target
from tests.emulator.fault import CudaError, FaultError
from tests.emulator.kernels import triton
from tests.emulator.kernels.storages import Storages
from tests.emulator.machine.schedule import EAGER
from tests.emulator.memory.allowed import Allowed
from tests.emulator.runtime.module import LoadedModule
from tests.emulator.snippet import module

ROWS, COLUMNS, LEAD = 3, 4, 6
CODE = f"""
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
kernel = async_compile.triton("kernel", "")
empty_strided_cuda = None

def call(args):
    x, = args
    out = empty_strided_cuda(({ROWS}, {COLUMNS}), ({LEAD}, 1), torch.int32)
    kernel.run(x, out, 1, 1, 1, stream=0)
    return (out,)
"""
"""A module as Inductor generates it; its output has padding between the rows."""
INDEX = """
  .reg .b64 %x, %out; .reg .b32 %tid, %at, %v; .reg .pred %p;
  ld.param.u64 %x, [p0]; ld.param.u64 %out, [p1]; mov.u32 %tid, %tid.x;
"""
COPY = f"""{INDEX}
  .reg .b64 %from, %to; .reg .b32 %row, %column;
  setp.lt.u32 %p, %tid, LIMIT; div.u32 %row, %tid, {COLUMNS}; rem.u32 %column, %tid, {COLUMNS};
  mad.lo.u32 %at, %row, {LEAD}, %column; mad.wide.u32 %to, %at, 4, %out; mad.wide.u32 %from, %tid, 4, %x;
  @%p ld.global.b32 %v, [%from]; @%p st.global.b32 [%to], %v;
"""
INSIDE = COPY.replace("LIMIT", str(ROWS * COLUMNS))


def kernel_of(body: str, warps: int = 1, shared: int = 0, arch: str = "sm_90a") -> triton._Compiled:
    """Return a kernel as Triton compiles it, with two pointers."""
    text = module(body, 2, arch).replace(")\n{", f")\n.reqntid {32 * warps}\n{{", 1)
    return triton._Compiled(LoadedModule(text), {"x": "*i32", "out": "*i32"}, shared, 0)


def computed(monkeypatch: pytest.MonkeyPatch, kernel: triton._Compiled) -> triton.Computed:
    """Run the module with a kernel."""

    def compiled(source: str, capability: tuple[int, int]) -> triton._Compiled:
        del source, capability
        return kernel

    monkeypatch.setattr(triton, "_generated", compiled)
    x = torch.arange(64, dtype=torch.int32)
    return triton.outputs([(f"import torch\n{CODE}", [x])], target("H100"), EAGER)


def test_a_kernel_that_writes_its_output_changes_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    got = computed(monkeypatch, kernel_of(INSIDE))
    ((output,),) = got.results
    assert output.flatten().tolist() == list(range(ROWS * COLUMNS))
    assert got.changed == 0


def test_a_row_behind_the_output_may_not_be_written_and_may_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    below = COPY.replace("LIMIT", str((ROWS + 1) * COLUMNS))
    with pytest.raises(FaultError, match="in an operand that may only be read") as caught:
        computed(monkeypatch, kernel_of(below))
    assert caught.value.error == CudaError.ILLEGAL_ADDRESS
    behind = f"{INSIDE} ld.global.b32 %v, [%out+{ROWS * LEAD * 4}];"
    assert computed(monkeypatch, kernel_of(behind)).changed == 0


@pytest.mark.parametrize("place", [f"%out+{4 * COLUMNS}", "%x+252"])
def test_padding_and_inputs_that_change_are_noticed(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f"{INSIDE} setp.eq.u32 %p, %tid, 0; @%p st.global.b32 [{place}], 0x01020304;"
    assert computed(monkeypatch, kernel_of(body)).changed == 4


@pytest.mark.parametrize(
    ("kernel", "grid", "reason"),
    [
        (kernel_of(INSIDE, shared=300 << 10), (1, 1, 1), "307200 bytes of shared memory of 232448"),
        (kernel_of(INSIDE, warps=33), (1, 1, 1), "a block of (1056, 1, 1), at most (1024"),
        (kernel_of(INSIDE), (1, 1 << 16, 1), "at most (2147483647, 65535, 65535)"),
        (kernel_of(INSIDE, arch="sm_100a"), (1, 1, 1), "is for sm_100a, the device is H100"),
    ],
    ids=["shared memory", "threads", "grid", "architecture"],
)
def test_what_a_gpu_does_not_start_is_a_fault(
    kernel: triton._Compiled, grid: tuple[int, int, int], reason: str
) -> None:
    operands = [torch.zeros(64, dtype=torch.int32), torch.zeros(64, dtype=torch.int32)]
    with pytest.raises(FaultError) as caught:
        triton._launched(kernel, operands, grid, target("H100"), EAGER, Allowed([]))
    assert reason in str(caught.value)


def test_storages_are_compared_whole_but_for_elements_of_outputs() -> None:
    storages = Storages()
    whole = torch.zeros(40, dtype=torch.int16)
    storages.add(whole)
    part = whole.as_strided((3, 2), (10, 2), 5)
    whole += 257
    assert storages.changed([]) == 80
    assert storages.changed([part]) == 80 - 12
    assert storages.changed([part, whole]) == 0


def test_a_program_may_only_write_what_it_says() -> None:
    pytest.importorskip("triton", reason="torch for CPUs comes without Triton")
    from tests.emulator.kernels import tutorials

    x, out = torch.ones(204), torch.full((200,), torch.nan)
    arguments = {"x": x, "y": x, "out": out, "count": 200}
    gpu = target("A100")
    right = triton.Program(tutorials.add, {"BLOCK": 128}, {"out"})
    right.run(arguments, (2, 1, 1), gpu, EAGER)
    assert bool((out == 2).all())
    with pytest.raises(FaultError, match=r"st\.global.* in no operand"):
        right.run({**arguments, "count": 204}, (2, 1, 1), gpu, EAGER)
    with pytest.raises(FaultError, match="in an operand that may only be read"):
        triton.Program(tutorials.add, {"BLOCK": 128}, {"y"}).run(arguments, (2, 1, 1), gpu, EAGER)
