"""What ptxas, cuobjdump and Triton say of compiled kernels."""

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


_Found = TypeVar("_Found", bound=Sized)


_FUNCTION = re.compile(r"^\s*Function (?P<name>\S+):\s*$")


_ARCH = re.compile(r"^arch = (?P<arch>sm_\w+)\s*$")


_FIGURE = re.compile(r"\b(REG|STACK|SHARED|LOCAL):(\d+)")


def parse_usage(text: str, arch: str = "") -> tuple[KernelResources, ...]:
    """Return the kernels of ``cuobjdump -res-usage``'s output.

    From compute capability 9.0 on its SHARED counts the 1024 bytes that CUDA reserves (CUDA 13.1:
    a kernel with 512 bytes has 512 for sm_89 and 1536 for sm_90a); they are taken off here.

    Args:
        text: What the tool printed.
        arch: What the file was compiled for; a library says so itself, a cubin does not.
    """
    found: list[KernelResources] = []
    name = ""
    for line in text.splitlines():
        if match := _ARCH.match(line):
            arch = match["arch"]
        elif match := _FUNCTION.match(line):
            name = match["name"]
        elif name and "REG:" in line:
            figures = {key: int(value) for key, value in _FIGURE.findall(line)}
            found.append(_usage(name, arch, figures))
            name = ""
    return tuple(found)


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
    """Return the kernels of what ptxas prints with ``-v``; it alone tells spills from arrays."""
    found: list[KernelResources] = []
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
            found.append(replace(current, registers=int(match[1]), static_shared_bytes=static))
            current = KernelResources("", "", 0)
    return tuple(found)


def of_unit(text: str, namespaces: Sequence[str]) -> dict[str, Resources]:
    """Return the most that any kernel of each namespace takes, from what ptxas printed with ``-v``.

    Kernels of several namespaces lie in one translation unit; a mangled name holds its namespace
    behind its length, as part of the function's name or of a template's argument. Shared memory is
    left open: a CUTLASS kernel asks for all of it at launch, which ptxas does not see.

    Args:
        text: What the compiler printed.
        namespaces: The namespaces; only those with a kernel are in the answer. An empty one stands
            for all kernels.
    """
    kernels = parse_ptxas(text)
    found: dict[str, Resources] = {}
    for name in namespaces:
        mangled = f"{len(name)}{name}" if name else ""
        own = [one for one in kernels if mangled in one.kernel]
        if own:
            found[name] = Resources(
                registers=max(one.registers for one in own),
                spills=max(one.spilled_bytes for one in own),
            )
    return found


@dataclass(frozen=True)
class TritonLaunch:
    """How Triton starts a kernel, from the ``.json`` beside its cubin.

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
        """Return a kernel with what only its launch tells."""
        return replace(kernel, dynamic_shared_bytes=self.shared_bytes, threads=self.warps * 32)


def parse_triton(text: str) -> TritonLaunch:
    """Return what the metadata of a Triton kernel says.

    Raises:
        ValueError: It is no such metadata.
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


def cuobjdump(nvcc: str | None = None) -> Path | None:
    """Return where cuobjdump is: beside nvcc, on the path, or inside Triton; None if nowhere.

    Args:
        nvcc: Path of the compiler; the one on the path if not given.
    """
    compiler = nvcc or shutil.which("nvcc")
    beside = Path(compiler).resolve().parent / "cuobjdump" if compiler else None
    if beside is not None and beside.is_file():
        return beside
    on_path = shutil.which("cuobjdump")
    if on_path:
        return Path(on_path)
    return triton_cuobjdump()


def triton_cuobjdump() -> Path | None:
    """Return the cuobjdump that Triton brings; one that is older cannot read Triton's cubins.

    From CUDA 13.1 in Triton 3.8; found without importing Triton, which takes 1 s.
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
    """Return the kernels of a cubin or shared library, or the reason why they are not known.

    Args:
        path: The file.
        arch: What a cubin was compiled for.
        tool: cuobjdump; looked for if not given.
    """
    return dumped("-res-usage", path, lambda text: parse_usage(text, arch), tool)


def dumped(
    option: str, path: Path, parse: Callable[[str], _Found], tool: Path | None = None
) -> _Found | str:
    """Return what is read from cuobjdump's output, or the reason why there is nothing.

    Args:
        option: What it is to print: ``-res-usage`` or ``-sass``.
        path: The cubin or shared library.
        parse: Reads what it prints; empty for no kernels.
        tool: cuobjdump; looked for if not given.
    """
    program = tool or cuobjdump()
    if program is None:
        return "cuobjdump was not found beside nvcc, on the path, or in Triton"
    try:
        done = subprocess.run(
            [program, option, path],
            capture_output=True,
            text=True,
            timeout=_TOOL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} did not run: {error}"
    found = parse(done.stdout)
    if done.returncode != 0 or not found:
        said = (done.stderr or done.stdout).strip().splitlines()
        return f"{path.name} shows no kernels: {said[-1] if said else 'no output'}"
    return found


def triton_usage(cubin: Path, tool: Path | None = None) -> KernelResources | str:
    """Return what a kernel in Triton's cache uses, or the reason why it is not known.

    Args:
        cubin: Its cubin; the metadata is the ``.json`` beside it.
        tool: cuobjdump; looked for if not given.
    """
    try:
        launch = parse_triton(cubin.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return str(error)
    kernels = usage(cubin, f"sm_{launch.arch}", tool)
    if isinstance(kernels, str):
        return kernels
    named = [one for one in kernels if one.kernel == launch.kernel]
    if not named:
        return f"{cubin.name} holds {kernels[0].kernel}, not {launch.kernel}"
    return launch.of(named[0])
