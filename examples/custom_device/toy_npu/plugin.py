"""The device for inductor-plugin: what it has to know to tune on it."""

import math
import platform

import torch

import toy_npu.backend  # noqa: F401  makes the device known to torch and Inductor, in the benchmark worker, too
from inductor_plugin.device import Device, EventTimer, Target
from inductor_plugin.template import Candidate, OpKernel

TARGET = Target(
    name="Toy NPU",
    device_name="Toy NPU",  # as in `facts`: the report draws the roofline of such environments from these figures
    arch="toy",
    capability=(0, 0),
    multiprocessors=1,
    clock_mhz=1000,
    max_clock_mhz=1000,
    memory_bytes=1 << 30,
    memory_bandwidth=80e9,
    memory_clock_mhz=1000,
    memory_bus_bits=320,
    l2_bytes=1 << 20,
    shared_per_multiprocessor=256 << 10,
    shared_per_block=256 << 10,
    registers_per_multiprocessor=1 << 14,
    threads_per_multiprocessor=1,
    threads_per_block=1,
    blocks_per_multiprocessor=1,
    rates=(("float32", 1e12),),
    sources=("made up: the toy has the memory and the cores of the CPU",),
)


def facts(device):
    """Return what has to be equal for timings to be comparable."""
    return {"name": TARGET.device_name, "cores": 1, "host": platform.machine()}


def versions():
    """Return the versions of the device's software."""
    return {"toy_npu": "1.0"}


class Timer(EventTimer):
    """The events of the device's interface, behind a small cache; every record says at which clock it was taken."""

    def __init__(self, device):
        super().__init__(device, flush_bytes=1 << 20)

    def conditions(self):
        return {"clock_mhz": 1000}


class DirectProduct:
    """The device's own product, which does not copy its operands."""

    name, ops, version = "toy_npu_direct", ("mm",), "1"
    kernel, description = "direct", "on the memory of the device"

    def reject(self, problem):
        """Return why the kernel cannot run the problem, or None if it can."""
        if problem.output.device != "npu":
            return f"it is for the NPU, this is {problem.output.device}"
        return None

    def candidates(self, problem):
        """Return the kernels to try."""
        kernel = OpKernel("toy_npu::mm.out", imports=("toy_npu.plugin",))
        return [Candidate(self.name, self.kernel, {}, kernel, self.description)]


class ResidentProduct(DirectProduct):
    """A product that has all of its operands in the memory of a core. The toy calls its only kernel for it, too."""

    name = "toy_npu_resident"
    kernel, description = "resident", "on the memory of a core"


@torch.library.register_fake("toy_npu::mm")
def _(left, right):
    return left.new_empty(left.shape[0], right.shape[1])


def refusal(problem, template):
    """Return why a template's kernels are not offered."""
    if template != ResidentProduct.name:
        return ""
    tensors = (*problem.inputs, problem.output)
    needed = sum(math.prod(each.size) * getattr(torch, each.dtype).itemsize for each in tensors)
    room = TARGET.shared_per_block
    fits = needed <= room
    return "" if fits else f"its operands take {needed >> 10} KiB, a core has {room >> 10} KiB"


DEVICE = Device(
    facts,
    versions,
    Timer,
    target=lambda device: TARGET,
    templates=lambda: [DirectProduct(), ResidentProduct()],
    refusal=refusal,
    # It has no cores of its own: nothing is compiled while it is measured, and processes need not take turns on it.
    on_host=True,
    turn=lambda device: "",
)
