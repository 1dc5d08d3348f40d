"""What works on this machine, what is off, why, and how to turn it on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch

from inductor_plugin.cache import Pack, open_store
from inductor_plugin.cache.guard import reason_to_refuse
from inductor_plugin.cache.transfer.installed import Mismatch, installed_packs, mismatch
from inductor_plugin.cache.transfer.wheel import read_pack
from inductor_plugin.config import (
    Config,
    default_cache_dir,
    enabled_by_environment,
    process_environment,
)
from inductor_plugin.errors import CacheError, OptionError, PackError, TargetError
from inductor_plugin.inductor.candidates.cuda import cuda_major
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.problem import UNKNOWN_GPU, known_target
from inductor_plugin.inductor.graph.packs import host_of
from inductor_plugin.kernels import nvcc as cuda_toolkit
from inductor_plugin.kernels.nvcc import NoToolkit, Toolkit
from inductor_plugin.templates.cutlass.source import generator_reason

State = Literal["ok", "off", "broken"]

_BIG_GPU_SMS = 68
_LOW_SPACE_BYTES = 2**30
_PROBE = '#include <Python.h>\n#include <omp.h>\nextern "C" int probe() { return omp_get_max_threads(); }\n'


@dataclass(frozen=True)
class Finding:
    """What was found out about one thing.

    Attributes:
        name: The thing.
        state: ``ok``; ``off``: not there, and everything else works without; ``broken``: there is
            something to repair.
        detail: What was found.
        remedy: What to do about it; empty when there is nothing to do.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""

    def to_dict(self) -> dict[str, str]:
        """Return the finding as plain JSON values."""
        return asdict(self)


def examine(cache_dir: Path | None = None) -> list[Finding]:
    """Look at everything the plugin depends on; changes nothing.

    Args:
        cache_dir: The cache directory to look at; the one in force by default.
    """
    return [
        python(sys.version_info[:3]),
        pytorch(),
        options(),
        switch(),
        compiler(),
        cpu(),
        gpu(),
        triton(),
        nvcc(_nvcc_option()),
        cutlass(),
        numpy(),
        packs(cache_dir or default_cache_dir()),
        cache(cache_dir or default_cache_dir()),
    ]


def render(findings: list[Finding]) -> str:
    """Return the findings as lines for people."""
    width = max(len(one.name) for one in findings)
    lines: list[str] = []
    for one in findings:
        lines.append(f"{one.state:6}  {one.name:{width}}  {one.detail}")
        if one.remedy:
            lines.append(f"{'':6}  {'':{width}}  -> {one.remedy}")
    return "\n".join(lines)


def python(version: tuple[int, int, int]) -> Finding:
    """Judge the Python that runs."""
    text = ".".join(map(str, version))
    if (3, 11, 0) <= version <= (3, 11, 8):
        return Finding(
            "python",
            "ok",
            f"{text}; stock Inductor compiles candidates one by one on 3.11.0 to 3.11.8, the "
            "plugin's workers do not",
        )
    if not (3, 10) <= version[:2] <= (3, 13):
        return Finding("python", "broken", f"{text} is not supported", "use Python 3.10 to 3.13")
    return Finding("python", "ok", text)


def pytorch() -> Finding:
    """Judge the torch that runs."""
    reason = compat.unsupported()
    if reason is not None:
        return Finding("torch", "broken", reason, "install a torch from 2.11 to 2.15")
    newest = ".".join(map(str, compat.NEWEST))
    if compat.torch_version() > compat.NEWEST:
        detail = f"{torch.__version__}; tested up to {newest}, has every hook that is needed"
        return Finding("torch", "ok", detail)
    return Finding("torch", "ok", str(torch.__version__))


def options() -> Finding:
    """Judge the variables that set options."""
    try:
        config = Config.load()
    except OptionError as error:
        return Finding("options", "broken", str(error), "correct or unset the variable")
    changed = [
        f"{name}={value}"
        for name, value in config.to_dict().items()
        if value != Config().to_dict()[name]
    ]
    return Finding("options", "ok", ", ".join(changed) or "all at their defaults")


def switch() -> Finding:
    """Tell how the plugin can be switched on in this installation."""
    backends = importlib.metadata.entry_points(group="torch_dynamo_backends")
    if "inductor_plugin" not in {one.name for one in backends}:
        return Finding(
            "switch",
            "broken",
            "the package is importable but not installed, so torch finds no backend of its name",
            "run `pip install -e .` in the repository, or `pip install inductor-plugin`",
        )
    detail = 'backend="inductor_plugin" is known to torch.compile'
    try:
        enabled = enabled_by_environment()
    except OptionError as error:
        return Finding("switch", "broken", str(error), "correct or unset the variable")
    if process_environment().get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0" and enabled:
        return Finding(
            "switch",
            "broken",
            f"{detail}, but TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps INDUCTOR_PLUGIN_ENABLE from "
            "having an effect",
            "unset TORCH_DEVICE_BACKEND_AUTOLOAD",
        )
    state = "on" if enabled else "not set"
    return Finding("switch", "ok", f"{detail}; INDUCTOR_PLUGIN_ENABLE is {state}")


def compiler() -> Finding:
    """Build a small library as Inductor's C++ kernels are built."""
    wanted = process_environment().get("CXX", "")
    path = next(filter(None, map(shutil.which, filter(None, (wanted, "g++", "clang++")))), None)
    name = "C++ compiler"
    if path is None:
        return Finding(
            name, "broken", "no g++ or clang++ on the path", "install g++, or set CXX to a compiler"
        )
    include = sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(_PROBE, encoding="utf-8")
        library = str(Path(folder, "probe.so"))
        failure = _attempt(
            path, "-shared", "-fPIC", "-fopenmp", f"-I{include}", str(source), "-o", library
        )
    if failure is None:
        return Finding(name, "ok", path)
    remedy = "install OpenMP for the compiler (libgomp)"
    if "Python.h" in failure:
        remedy = "install Python's headers (python3-dev)"
    return Finding(name, "broken", f"{path}: {failure}", remedy)


def cpu() -> Finding:
    """Tell which vector instructions kernels for this CPU use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    capability = torch.backends.cpu.get_cpu_capability()
    detail = f"{platform.machine()}, {capability}, {cores} cores"
    if capability == "DEFAULT" and platform.machine() == "x86_64":
        remedy = "none on this CPU; library kernels are used"
        return Finding("CPU", "off", f"{detail}: no AVX2, so no C++ GEMM templates", remedy)
    return Finding("CPU", "ok", detail)


def gpu() -> Finding:
    """Tell what autotuning can do on the first CUDA device."""
    name = "CUDA device"
    if torch.version.cuda is None:
        remedy = "install a CUDA build of torch to tune for NVIDIA GPUs"
        return Finding(name, "off", "this torch is built without CUDA", remedy)
    if not torch.cuda.is_available():
        remedy = "run on a machine with an NVIDIA GPU and driver; the CPU is tuned meanwhile"
        return Finding(name, "off", "torch sees no device", remedy)
    properties = cast("Any", torch.cuda).get_device_properties(0)
    sms: int = properties.multi_processor_count
    detail = f"{properties.name}, sm_{properties.major}{properties.minor}, {sms} SMs"
    try:
        known_target(torch.device("cuda", 0))
    except TargetError as error:
        return Finding(name, "off", f"{detail}: {error}", f"none on this GPU; {UNKNOWN_GPU}")
    if sms < _BIG_GPU_SMS:
        return Finding(
            name,
            "off",
            f"{detail}: Inductor uses Triton GEMM templates from {_BIG_GPU_SMS} SMs on",
            "none on this GPU; library kernels and Triton's other kernels are used",
        )
    return Finding(name, "ok", detail)


def triton() -> Finding:
    """Tell whether Triton templates can be used."""
    if importlib.util.find_spec("triton") is None:
        return Finding("triton", "off", "not installed: no Triton templates", "pip install triton")
    return Finding("triton", "ok", _version("triton") or "installed")


def nvcc(option: str = "") -> Finding:
    """Tell whether there is a compiler for CUTLASS kernels, and what is wrong with one that is there.

    Args:
        option: The option ``nvcc``.
    """
    # The headers are another finding: any will do here.
    found = cuda_toolkit.find(option, process_environment(), cuda_major(), headers=("", ()))
    if isinstance(found, Toolkit):
        return Finding("nvcc", "ok", f"{found.version} ({found.nvcc}, from {found.origin})")
    # An old nvcc that nobody wants to use is nothing to repair.
    wanted = option or cuda_toolkit.package_folders("cutlass_library")
    state: State = "broken" if wanted and not found.missing else "off"
    return Finding("nvcc", state, f"no CUTLASS kernels: {found.what}", found.remedy)


def cutlass() -> Finding:
    """Tell whether CUTLASS kernels can be generated: nvidia-cutlass, its version and its generator."""
    found = cuda_toolkit.cutlass_headers()
    if isinstance(found, NoToolkit):
        state: State = "off" if found.missing else "broken"
        return Finding("cutlass", state, f"no CUTLASS kernels: {found.what}", found.remedy)
    reason = generator_reason()
    if reason is not None:
        detail = f"no CUTLASS kernels: {reason}"
        return Finding("cutlass", "broken", detail, cuda_toolkit.INSTALL_CUTLASS)
    return Finding("cutlass", "ok", f"headers and generator of {found[0]}")


def numpy() -> Finding:
    """Tell whether NumPy is there; kernels are generated, compiled and measured without it."""
    if importlib.util.find_spec("numpy") is None:
        detail = "not installed: torch warns of it, and nvidia-cutlass counts it as needed"
        return Finding("numpy", "off", detail, "pip install numpy")
    return Finding("numpy", "ok", _version("numpy") or "installed")


def packs(folder: Path) -> Finding:
    """Judge the kernels that were compiled ahead of time: whole, and for the GPU that is here."""
    name = "packs"
    found = installed_packs()
    read = [_read(one, file) for one, file in found.files.items()]
    sound = [one for one in read if isinstance(one, Pack)]
    broken = [*found.problems, *(one for one in read if isinstance(one, str))]
    try:
        store = open_store(folder, create=False)
        noted = store.packs()
        lacking = store.verify_packs()
    except CacheError as error:
        return Finding(name, "off", f"the cache cannot be read: {error}", "see the finding `cache`")
    # What an installed pack has lost in the cache is taken from it again.
    broken += [one for one in lacking if not any(pack.name in one for pack in sound)]
    if broken:
        remedy = "import the pack again, or install its wheel again, or uninstall it"
        return Finding(name, "broken", "; ".join(broken), remedy)
    ready = {one.name: one for one in noted if not any(one.name in line for line in lacking)}
    coming = {one.name: one for one in sound if one.name not in ready}
    listed = [f"{one.target} ({len(one.kernels)} kernels)" for one in ready.values()]
    listed += [
        f"{one.target} ({len(one.kernels)} kernels, installed: taken into the cache at the first compile)"
        for one in coming.values()
    ]
    if not listed:
        return Finding(name, "ok", "none; `inductor-plugin precompile` makes one")
    reason = _mismatch([*ready.values(), *coming.values()])
    if reason is not None:
        return Finding(name, "off", reason.what, reason.remedy)
    return Finding(name, "ok", ", ".join(listed))


def _read(name: str, file: Path) -> Pack | str:
    """Return an installed pack, or what is wrong with it."""
    try:
        return read_pack(file)
    except (PackError, CacheError, OSError) as error:
        return f"the installed pack {name} cannot be used: {error}"


def _mismatch(found: list[Pack]) -> Mismatch | None:
    """Return why packs are of no full use for the GPU that is here, None if they are."""
    if not torch.cuda.is_available():
        return None
    try:
        gpu_here = known_target(torch.device("cuda"))
    except TargetError:  # another finding
        return None
    return mismatch(found, host_of(gpu_here))


def cache(folder: Path) -> Finding:
    """Judge a cache directory: whether it can be trusted and written, and its free space."""
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{folder}, {free / 2**30:.1f} GiB free"
    if existing != folder:
        detail += ", not there yet"
    elif not folder.is_dir():
        remedy = "set INDUCTOR_PLUGIN_CACHE_DIR to a folder of your own"
        return Finding("cache", "broken", f"{folder} is not a folder", remedy)
    elif refusal := reason_to_refuse(folder):
        return Finding("cache", "broken", refusal.what, refusal.remedy)
    if not os.access(existing, os.W_OK | os.X_OK):
        remedy = "set INDUCTOR_PLUGIN_CACHE_DIR to a folder you can write"
        return Finding("cache", "broken", f"{detail}; {existing} cannot be written", remedy)
    if free < _LOW_SPACE_BYTES:
        return Finding("cache", "broken", detail, "free some space, or move the cache")
    return Finding("cache", "ok", detail)


def _nvcc_option() -> str:
    try:
        return Config.load().nvcc
    except OptionError:  # another finding
        return ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _attempt(*command: str) -> str | None:
    """Run a command; return its last line of error output if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.split(
        "\n"
    )
    return lines[0].strip() or f"status {done.returncode}"
