"""The device for inductor-plugin: what it has to know to tune on it."""

import platform

import torch

import toy_npu.backend  # noqa: F401  makes the device known to torch and Inductor, in the benchmark worker, too
from inductor_plugin.device import Device
from inductor_plugin.template import Candidate, OpKernel
from inductor_plugin.worker.event_timer import EventTimer


def facts(device):
    """Return what has to be equal for timings to be comparable."""
    return {"name": "Toy NPU", "cores": 1, "host": platform.machine()}


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

    def reject(self, problem):
        """Return why the kernel cannot run the problem, or None if it can."""
        if problem.output.device != "npu":
            return f"it is for the NPU, this is {problem.output.device}"
        return None

    def candidates(self, problem):
        """Return the kernels to try."""
        kernel = OpKernel("toy_npu::mm.out", imports=("toy_npu.plugin",))
        return [Candidate(self.name, "direct", {}, kernel, "on the memory of the device")]


@torch.library.register_fake("toy_npu::mm")
def _(left, right):
    return left.new_empty(left.shape[0], right.shape[1])


def refusal(problem, template):
    """Return why a template's kernels are not offered."""
    if problem.output.dtype == "float64" and template != DirectProduct.name:
        return "the NPU emulates float64"
    return ""


DEVICE = Device(
    facts,
    versions,
    Timer,
    templates=lambda: [DirectProduct()],
    refusal=refusal,
    # It has no cores of its own: nothing is compiled while it is measured, and processes need not take turns on it.
    on_host=True,
    turn=lambda device: "",
)
