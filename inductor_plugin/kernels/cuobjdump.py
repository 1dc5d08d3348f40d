"""Resources of compiled kernels, from the output of ptxas, cuobjdump and Triton."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from inductor_plugin.cache import Resources
from inductor_plugin.kernels.resources import KernelResources
from inductor_plugin.problem.target import RESERVED_SHARED_BYTES

_TOOL_TIMEOUT_S = 300
"""The machine code of a unit of eight CUTLASS kernels is megabytes of text."""


_Parsed = TypeVar("_Parsed", bound=Sized)


_FUNCTION = re.compile(r"^\s*Function (?P<name>\S+):\s*$")


_ARCH = re.compile(r"^arch = (?P<arch>sm_\w+)\s*$")


_FIGURE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")


def parse_usage(text: str, arch: str = "") -> tuple[KernelResources, ...]:
    """Return the kernels of ``cuobjdump -res-usage``'s output.

    From compute capability 9.0 on SHARED includes the 1024 bytes that CUDA reserves (CUDA 13.1:
    a kernel with 512 bytes has 512 for sm_89 and 1536 for sm_90a); they are subtracted here.

    Args:
        text: Output of the tool.
        arch: Architecture of the file; the output names it for a library, not for a cubin.
    """
    kernels: list[KernelResources] = []
    name = ""
    for line in text.splitlines():
        if match := _ARCH.match(line):
            arch = match["arch"]
        elif match := _FUNCTION.match(line):
            name = match["name"]
        elif name and "REG:" in line:
            figures = {key: int(value) for key, value in _FIGURE.findall(line)}
            kernels.append(_usage(name, arch, figures))
            name = ""
    return tuple(kernels)


def _usage(name: str, arch: str, figures: Mapping[str, int]) -> KernelResources:
    shared = figures.get("SHARED", 0)
    number = int("0" + re.sub(r"\D", "", arch))
    if number >= 90 and shared >= RESERVED_SHARED_BYTES:
        shared -= RESERVED_SHARED_BYTES
    return KernelResources(
        kernel=name,
        arch=arch,
        registers=figures["REG"],
        stack_bytes=figures.get("STACK", 0) + figures.get("LOCAL", 0),
        static_shared_bytes=shared,
    )


_ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>sm_\w+)'")


_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


_REGISTERS = re.compile(r"Used (\d+) registers")


_STATIC = re.compile(r"(\d+) bytes smem")


def parse_ptxas(text: str) -> tuple[KernelResources, ...]:
    """Return the kernels of ``ptxas -v``'s output, which alone separates spills from arrays."""
    kernels: list[KernelResources] = []
    current = KernelResources("", "", 0)
    for line in text.splitlines():
        if match := _ENTRY.search(line):
            current = KernelResources(match["name"], match["arch"], 0)
        elif match := _SPILLS.search(line):
            stack, stores, loads = map(int, match.groups())
            current = replace(
                current, stack_bytes=stack, spill_store_bytes=stores, spill_load_bytes=loads
            )
        elif current.kernel and (match := _REGISTERS.search(line)):
            shared = _STATIC.search(line)
            static = int(shared[1]) if shared else 0
            kernels.append(replace(current, registers=int(match[1]), static_shared_bytes=static))
            current = KernelResources("", "", 0)
    return tuple(kernels)


def of_unit(text: str, namespaces: Sequence[str]) -> dict[str, Resources]:
    """Return the maximum over the kernels of each namespace, from ``ptxas -v``'s output.

    A translation unit has kernels of several namespaces; a mangled name contains the namespace's
    length and then the namespace, in the function's name or in a template argument. Shared memory is
    not filled in: a CUTLASS kernel requests all of it at launch, which ptxas does not see.

    Args:
        text: Output of the compiler.
        namespaces: Only those with a kernel are in the result. An empty namespace matches all
            kernels.
    """
    kernels = parse_ptxas(text)
    resources: dict[str, Resources] = {}
    for name in namespaces:
        mangled = f"{len(name)}{name}" if name else ""
        matches = [kernel for kernel in kernels if mangled in kernel.kernel]
        if matches:
            resources[name] = Resources(
                registers=max(kernel.registers for kernel in matches),
                spills=max(kernel.spilled_bytes for kernel in matches),
            )
    return resources


@dataclass(frozen=True)
class TritonLaunch:
    """How Triton starts a kernel, from the ``.json`` next to its cubin.

    Attributes:
        kernel: Name of the kernel.
        arch: Compute capability as a number: 90.
        shared_bytes: Dynamic shared memory of a block.
        warps: Warps of a block, without those a warp-specialized kernel adds.
        stages: Pipeline stages.
    """

    kernel: str
    arch: int
    shared_bytes: int
    warps: int
    stages: int

    def of(self, kernel: KernelResources) -> KernelResources:
        """Return a kernel with the resources that its launch decides."""
        return replace(kernel, dynamic_shared_bytes=self.shared_bytes, threads=self.warps * 32)


def parse_triton(text: str) -> TritonLaunch:
    """Return the launch in the metadata of a Triton kernel.

    Raises:
        ValueError: The text is not such metadata.
    """
    try:
        facts: dict[str, Any] = json.loads(text)
        return TritonLaunch(
            kernel=str(facts["name"]),
            arch=int(facts["target"]["arch"]),
            shared_bytes=int(facts["shared"]),
            warps=int(facts["num_warps"]),
            stages=int(facts["num_stages"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is no metadata of a Triton kernel: {error!r}") from error


def cuobjdump() -> Path | None:
    """Return the path of cuobjdump: next to the nvcc on PATH, on PATH itself, or inside Triton; None if it is nowhere."""
    compiler = shutil.which("nvcc")
    sibling = Path(compiler).resolve().parent / "cuobjdump" if compiler else None
    if sibling is not None and sibling.is_file():
        return sibling
    on_path = shutil.which("cuobjdump")
    if on_path:
        return Path(on_path)
    return triton_cuobjdump()


def triton_cuobjdump() -> Path | None:
    """Return the cuobjdump inside Triton; an older one cannot read Triton's cubins.

    In Triton 3.8 it is that of CUDA 13.1. Triton is not imported, which would take 1 s.
    """
    triton = importlib.util.find_spec("triton")
    for folder in (triton.submodule_search_locations or ()) if triton else ():
        inside = Path(folder) / "backends" / "nvidia" / "bin" / "cuobjdump"
        if inside.is_file():
            return inside
    return None


def usage(
    path: Path, arch: str = "", tool: Path | None = None
) -> tuple[KernelResources, ...] | str:
    """Return the kernels of a cubin or shared library, or why they are unknown.

    Args:
        path: The file.
        arch: Architecture of a cubin.
        tool: cuobjdump; searched if not given.
    """
    return dumped("-res-usage", path, lambda text: parse_usage(text, arch), tool)


def dumped(
    option: str, path: Path, parse: Callable[[str], _Parsed], tool: Path | None = None
) -> _Parsed | str:
    """Return the parsed output of cuobjdump, or why there is none.

    Args:
        option: ``-res-usage`` or ``-sass``.
        path: The cubin or shared library.
        parse: Parses the output; its result is empty if there are no kernels.
        tool: cuobjdump; searched if not given.
    """
    program = tool or cuobjdump()
    if program is None:
        return "cuobjdump was not found beside nvcc, on the path, or in Triton"
    try:
        result = subprocess.run(
            [program, option, path],
            capture_output=True,
            text=True,
            timeout=_TOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} did not run: {error}"
    parsed = parse(result.stdout)
    if result.returncode != 0 or not parsed:
        lines = (result.stderr or result.stdout).strip().splitlines()
        return f"{path.name} shows no kernels: {lines[-1] if lines else 'no output'}"
    return parsed


def triton_usage(cubin: Path, tool: Path | None = None) -> KernelResources | str:
    """Return the resources of a kernel in Triton's cache, or why they are unknown.

    Args:
        cubin: Its cubin; the metadata is the ``.json`` next to it.
        tool: cuobjdump; searched if not given.
    """
    try:
        launch = parse_triton(cubin.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return str(error)
    kernels = usage(cubin, f"sm_{launch.arch}", tool)
    if isinstance(kernels, str):
        return kernels
    matches = [kernel for kernel in kernels if kernel.kernel == launch.kernel]
    if not matches:
        return f"{cubin.name} holds {kernels[0].kernel}, not {launch.kernel}"
    return launch.of(matches[0])
