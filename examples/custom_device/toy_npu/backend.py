"""The device for torch and Inductor. Nothing here concerns inductor-plugin: a real device has all of it already."""

import os
import sys
import time
import types
from pathlib import Path

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    register_backend_for_device,
    register_device_op_overrides,
)
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.scheduler import BaseScheduling
from torch.utils import cpp_extension


class Event(torch.Event):
    """The device computes what it is asked for before the call returns, so the host's clock is its own."""

    def __new__(cls, enable_timing: bool = True):
        return super().__new__(cls, device="cpu")

    def __init__(self, enable_timing: bool = True):
        self.at = 0.0

    def record(self, stream=None):
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)

    def query(self):
        return True

    def synchronize(self):
        pass

    def wait(self, stream=None):
        pass


class Properties:
    name = "Toy NPU"
    multi_processor_count = 1
    total_memory = 1 << 30


class Interface(DeviceInterface):
    """What Dynamo and Inductor ask of a device."""

    Event = Event

    class device:
        def __init__(self, device):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *error):
            pass

    class Worker:
        @staticmethod
        def set_device(device):
            pass

        @staticmethod
        def current_device():
            return 0

        @staticmethod
        def get_device_properties(device=None):
            return Properties

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def device_count():
        return 1

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def set_device(device):
        pass

    @staticmethod
    def exchange_device(device):
        return 0

    @staticmethod
    def maybe_exchange_device(device):
        return 0

    @staticmethod
    def get_raw_stream(device):
        return 0

    @staticmethod
    def synchronize(device=None):
        pass

    @staticmethod
    def is_bf16_supported(including_emulation=False):
        return True


class Overrides(DeviceOpOverrides):
    """Lines of generated code."""

    def import_get_raw_stream_as(self, name):
        return f"def {name}(_):\n    return 0\n"

    def set_device(self, device_idx):
        return "pass"

    def synchronize(self):
        return "pass"

    def device_guard(self, device_idx):
        return "torch._ops.contextlib.nullcontext()"


class Scheduling(BaseScheduling):
    """Loops of a graph as C++: the memory is the host's."""

    def __init__(self, scheduler):
        super().__init__(scheduler)
        self._cpp = CppScheduling(scheduler)

    def can_fuse_vertical(self, node1, node2):
        return False

    def can_fuse_horizontal(self, node1, node2):
        return False

    def group_fn(self, sizes):
        return self._cpp.group_fn(sizes)

    def codegen_node(self, node):
        self._cpp.codegen_node(node)

    def codegen_sync(self):
        pass

    def flush(self):
        self._cpp.flush()


class Wrapper(PythonWrapperCodegen):
    """The function that calls a graph's kernels; Inductor's own refuses loops in C++ on other devices than the CPU."""

    @staticmethod
    def create(is_subgraph, subgraph_name, parent_wrapper, partition_signatures=None):
        if is_subgraph:
            return PythonWrapperCodegen.create(
                is_subgraph, subgraph_name, parent_wrapper, partition_signatures
            )
        return Wrapper()

    def _generate_kernel_call_helper(self, kernel_name, call_args, **settings):
        self.writeline(self.wrap_kernel_call(kernel_name, call_args))


def _library() -> str:
    folder = os.environ.get("TOY_NPU_BUILD")
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    # torch looks for ninja on the path; pip puts it beside python, which is not there unless the environment is activated.
    os.environ["PATH"] = os.pathsep.join(
        (os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent))
    )
    return cpp_extension.load(
        name=f"toy_npu_memory_{torch.__version__.replace('.', '_').replace('+', '_')}",
        sources=[str(Path(__file__).with_name("memory.cpp"))],
        extra_cflags=["-O1"],
        build_directory=folder,
        is_python_module=False,
    )


def install() -> None:
    """Make the device known as ``npu``."""
    if "torch.npu" in sys.modules:
        return
    torch.utils.rename_privateuse1_backend("npu")
    module = types.ModuleType("torch.npu")
    for name in ("is_available", "device_count", "current_device", "set_device", "synchronize"):
        setattr(module, name, getattr(Interface, name))
    module.get_amp_supported_dtype = lambda: [torch.bfloat16]
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    torch._register_device_module("npu", module)
    _library()
    register_interface_for_device("npu", Interface)
    register_interface_for_device("npu:0", Interface)
    register_device_op_overrides("npu", Overrides())
    register_backend_for_device("npu", Scheduling, Wrapper)


install()
