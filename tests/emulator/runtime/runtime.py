"""The emulated CUDA runtime of this process: host code made by nvcc calls it, and its launches are emulated.

    runtime = Runtime(folder)                          builds the C part, unless it is there, and loads it
    kernel = gemm_abi.load(library, symbol)
    with runtime.on(target("H100")) as launches:
        gemm_abi.run(kernel, call, 0)
    launches                                           what was launched, and what it cost

Libraries are linked with ``runtime.cudart`` in place of CUDA's; see `tests.emulator.kernels.build`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from inductor_plugin.problem.target import Target
from tests.emulator.fault import CudaError, FaultError
from tests.emulator.machine.schedule import EAGER, Schedule
from tests.emulator.memory.allowed import Allowed
from tests.emulator.ptx import fat_binary
from tests.emulator.runtime import limits
from tests.emulator.runtime.devices import attributes
from tests.emulator.runtime.launch import Conditions, Launch, launch
from tests.emulator.runtime.module import LoadedModule
from tests.emulator.threads.lanes import Shape

SONAME = "libcudart_emulated.so.1"
_SOURCE = Path(__file__).with_name("cudart.c")
_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_uint32),
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_void_p),
)
_TOUCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
)


def built(folder: Path) -> Path:
    """Return the C part as a library in a folder named by the digest of its source; compiles it if it is not there."""
    digest = hashlib.sha256(_SOURCE.read_bytes()).hexdigest()[:16]
    library = folder / f"cudart-{digest}" / SONAME
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}")
    script = unfinished.with_suffix(".versions")
    script.write_text(f"{SONAME} {{ global: *; }};\n", encoding="utf-8")
    command = ["gcc", "-O1", "-shared", "-fPIC", "-w", str(_SOURCE), "-o", str(unfinished)]
    command += [f"-Wl,-soname,{SONAME}", f"-Wl,--version-script={script}"]
    subprocess.run(command, check=True, timeout=120)
    unfinished.replace(library)
    script.unlink()
    return library


class Runtime:
    """The C part, loaded, and the modules that libraries have registered with it.

    Attributes:
        folder: Where it keeps what it compiles.
        cudart: Path of the library.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cudart = str(built(folder))
        self._library: Any = ctypes.CDLL(self.cudart, mode=ctypes.RTLD_GLOBAL)
        self._callback = _LAUNCH(self._launch)
        self._touching = _TOUCH(self._touch)
        self._modules: dict[tuple[int, str], LoadedModule] = {}
        self._edit: Callable[[str], str] = _unchanged
        self._edited: set[tuple[int, str]] = set()
        self._target: Target | None = None
        self._conditions = Conditions()
        self._launches: list[Launch] = []
        self._fault: BaseException | None = None

    @contextmanager
    def on(
        self, target: Target, schedule: Schedule = EAGER, allowed: Allowed | None = None
    ) -> Generator[list[Launch]]:
        """Emulate launches on a GPU; yields a list that they are added to.

        Args:
            target: The GPU.
            schedule: Order of warps and asynchronous operations.
            allowed: Global memory that kernels, and what sets or copies memory, may touch; None for all of it.

        Raises:
            FaultError: A kernel or host code did what no GPU allows. A launch in the body that failed for it has raised its own error.
            PtxError: A kernel has an instruction that is not known.
        """
        for attribute, value in attributes(target).items():
            self._library.emulator_set_attribute(int(attribute), value)
        self._library.emulator_reset()
        self._library.emulator_on_launch(self._callback)
        self._library.emulator_on_touch(self._touching)
        self._target, self._launches, self._fault = target, [], None
        self._conditions = Conditions(schedule, allowed, target.multiprocessors)
        try:
            yield self._launches
        except Exception as error:
            if self._fault is not None:
                raise self._fault from error
            raise
        finally:
            self._target = None
            self._library.emulator_reset()
        if self._fault is not None:
            raise self._fault

    @contextmanager
    def edited(self, edit: Callable[[str], str]) -> Generator[None]:
        """Change the PTX of modules before it is parsed: how tests break kernels."""
        self._edit = edit
        try:
            yield
        finally:
            self._edit = _unchanged
            self._modules = {
                key: each for key, each in self._modules.items() if key not in self._edited
            }
            self._edited.clear()

    def _launch(self, name: bytes, image: int, extents: Any, shared: int, arguments: Any) -> int:
        """Run a kernel and return an error of CUDA; exceptions cannot cross C."""
        try:
            self._run(name.decode(), image, [int(extents[i]) for i in range(9)], shared, arguments)
        except FaultError as fault:
            self._fault = self._fault or fault
            return int(fault.error)
        except BaseException as error:  # noqa: BLE001 - raised by `on`, behind the C code; Ctrl-C, too
            self._fault = self._fault or error
            return int(CudaError.LAUNCH_FAILURE)
        return int(CudaError.SUCCESS)

    def _touch(self, what: bytes, address: int | None, count: int, written: int) -> int:
        """Return an error of CUDA if host code sets or copies memory that is not allowed: else this process would write over its own."""
        allowed = self._conditions.allowed
        if self._target is None or allowed is None:
            return int(CudaError.SUCCESS)
        try:
            allowed.check(address or 0, count, what.decode(), written=bool(written))
        except BaseException as error:  # noqa: BLE001 - as in `_launch`
            self._fault = self._fault or error
            return int(CudaError.INVALID_VALUE)
        return int(CudaError.SUCCESS)

    def _run(self, name: str, image: int, extents: list[int], shared: int, arguments: Any) -> None:
        target = self._target
        assert target is not None, "a launch outside of Runtime.on"
        module = self._module(image, name)
        grid_x, grid_y, grid_z, x, y, z, *cluster = extents
        shape = Shape((grid_x, grid_y, grid_z), (x, y, z), (cluster[0], cluster[1], cluster[2]))
        limits.check(module, name, shape, shared, target)
        sizes = enumerate(size for _, size in module.kernel(name).parameters)
        data = [ctypes.string_at(arguments[place], size) for place, size in sizes]
        done = launch(module, name, shape, data, shared_bytes=shared, conditions=self._conditions)
        self._launches.append(done)

    def _module(self, image: int, kernel: str) -> LoadedModule:
        """Return the module of a fat binary that has a kernel."""
        for text in fat_binary.texts(fat_binary.image_at(image)):
            edited = self._edit(text)
            key = (image, hashlib.sha256(edited.encode()).hexdigest())
            if key not in self._modules:
                self._modules[key] = LoadedModule(edited)
                if edited != text:
                    self._edited.add(key)
            if kernel in self._modules[key].entries:
                return self._modules[key]
        raise FaultError(f"no PTX for {kernel}", CudaError.NO_KERNEL_IMAGE_FOR_DEVICE)


def _unchanged(text: str) -> str:
    return text
