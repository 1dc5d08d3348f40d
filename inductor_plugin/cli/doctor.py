"""What works on this machine, what is off, why, and how to turn it on."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, cast

import torch

from inductor_plugin.cache import Pack, open_store
from inductor_plugin.cache.remote.files import open_files
from inductor_plugin.cache.transfer.installed import Mismatch, installed_packs, mismatch
from inductor_plugin.cache.transfer.wheel import read_pack
from inductor_plugin.cache.trust.policy import trust_or_nobody
from inductor_plugin.cli.devices import devices, templates
from inductor_plugin.cli.disk import cache, default_folder, second_cache
from inductor_plugin.cli.farm import farm
from inductor_plugin.cli.finding import Finding, State
from inductor_plugin.cli.trust.finding import admission, signed_by, trust, vouching_of
from inductor_plugin.config import (
    Config,
    default_cache_read,
    default_trusted_keys,
    enabled_by_environment,
    process_environment,
    unknown_variables,
)
from inductor_plugin.errors import CacheError, OptionError, PackError, TargetError, without_user
from inductor_plugin.inductor import native
from inductor_plugin.inductor.candidates.cuda import cuda_major
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.problem import UNKNOWN_GPU, known_target
from inductor_plugin.inductor.graph.packs import host_of
from inductor_plugin.kernels import nvcc as toolkits
from inductor_plugin.kernels.nvcc import NoToolkit, Toolkit
from inductor_plugin.ops.native.source import key as launch_library
from inductor_plugin.templates.cutlass.source import why_not_generated
from inductor_plugin.version import installed_version
from inductor_plugin.worker.affinity import own_cores, quotas

_BIG_GPU_SMS, _REMOTE_S = 68, 10.0
_PROBE = '#include <Python.h>\n#include <omp.h>\nextern "C" int probe() { return omp_get_max_threads(); }\n'


def examine(cache_dir: Path | None = None) -> list[Finding]:
    """Check everything the plugin depends on; nothing is changed.

    Args:
        cache_dir: The cache directory to check; by default the configured one.
    """
    folder = cache_dir or default_folder()
    return [
        python(sys.version_info[:3]),
        pytorch(),
        options(),
        switch(),
        compiler(),
        cpu(),
        gpu(),
        devices(),
        templates(),
        triton(),
        nvcc(_option("nvcc")),
        cutlass(),
        launches(folder),
        numpy(),
        packs(folder),
        trust(folder, default_trusted_keys(), _option("signing_key")),
        cache(folder),
        second_cache(default_cache_read(), default_trusted_keys()),
        remote(_option("remote_url")),
        farm(_option("compile_farm"), _option("bench_farm")),
    ]


def python(version: tuple[int, int, int]) -> Finding:
    """Check the version of Python."""
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
    """Check the version of torch."""
    reason = compat.why_not_supported()
    oldest = f"{compat.OLDEST[0]}.{compat.OLDEST[1]}"
    newest = f"{compat.NEWEST[0]}.{compat.NEWEST[1]}"
    if reason is not None:
        return Finding("torch", "broken", reason, f"install a torch from {oldest} to {newest}")
    if compat.torch_version() > compat.NEWEST:
        detail = f"{torch.__version__}; tested up to {newest}, has every hook that is needed"
        return Finding("torch", "ok", detail)
    return Finding("torch", "ok", str(torch.__version__))


def options() -> Finding:
    """Check the environment variables that set options."""
    try:
        config = Config.load()
    except OptionError as error:
        return Finding("options", "broken", str(error), "correct or unset the variable")
    unknown = unknown_variables()
    if unknown:
        return Finding("options", "broken", "; ".join(unknown), "correct or unset the variable")
    changed = [
        f"{name}={value}"
        for name, value in config.to_dict().items()
        if value != Config().to_dict()[name]
    ]
    return Finding("options", "ok", ", ".join(changed) or "all at their defaults")


def switch() -> Finding:
    """Check how the plugin can be switched on in this installation."""
    backends = importlib.metadata.entry_points(group="torch_dynamo_backends")
    if "inductor_plugin" not in {backend.name for backend in backends}:
        return Finding(
            "switch",
            "off",
            "the package is importable but not installed: torch knows its backend after `import "
            "inductor_plugin.backend` alone",
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
    """Build a small library the way Inductor builds C++ kernels."""
    configured = process_environment().get("CXX", "")
    path = next(filter(None, map(shutil.which, filter(None, (configured, "g++", "clang++")))), None)
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
    return Finding(name, "broken", f"{path}: {_first_error(failure)}", compiler_remedy(failure))


def compiler_remedy(failure: str) -> str:
    """Return what to do about a compiler that failed, from all it wrote."""
    if "Python.h" in failure:
        return "install Python's headers (python3-dev)"
    if re.search(r"omp\.h|openmp|l[gi]omp|libg?omp", failure, re.IGNORECASE):
        return "install OpenMP for the compiler (libgomp)"
    return "repair or reinstall this compiler, or set CXX to another one"


def cpu() -> Finding:
    """Report which vector instructions kernels for this CPU use."""
    cores = len(own_cores())
    capability = torch.backends.cpu.get_cpu_capability()
    detail = f"{platform.machine()}, {capability}, {cores} cores"
    if capability == "DEFAULT" and platform.machine() == "x86_64":
        remedy = "none on this CPU; library kernels are used"
        return Finding("CPU", "off", f"{detail}: no AVX2, so no C++ GEMM templates", remedy)
    quota, threads = min(quotas().values(), default=math.inf), torch.get_num_threads()
    if quota < threads:
        detail += f", and by quota the time of {quota:g} for {threads} threads"
        return Finding("CPU", "ok", detail, f"set OMP_NUM_THREADS={max(1, int(quota))}")
    return Finding("CPU", "ok", detail)


def gpu() -> Finding:
    """Report what autotuning can do on the first CUDA device."""
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
    """Check whether Triton templates can be used."""
    if importlib.util.find_spec("triton") is None:
        return Finding("triton", "off", "not installed: no Triton templates", "pip install triton")
    return Finding("triton", "ok", installed_version("triton") or "installed")


def nvcc(option: str = "") -> Finding:
    """Check for nvcc, the compiler of CUTLASS kernels, and for problems with an installed one.

    Args:
        option: The option ``nvcc``.
    """
    # The headers are a separate finding; any version is accepted here.
    toolkit = toolkits.find(option, process_environment(), cuda_major(), headers=("", ()))
    if isinstance(toolkit, Toolkit):
        return Finding("nvcc", "ok", f"{toolkit.version} ({toolkit.nvcc}, from {toolkit.origin})")
    # An old nvcc that is not requested needs no repair.
    requested = option or toolkits.package_folders("cutlass_library")
    state: State = "broken" if requested and not toolkit.missing else "off"
    return Finding("nvcc", state, f"no CUTLASS kernels: {toolkit.what}", toolkit.remedy)


def cutlass() -> Finding:
    """Check whether CUTLASS kernels can be generated: nvidia-cutlass, its version, its generator."""
    headers = toolkits.cutlass_headers()
    if isinstance(headers, NoToolkit):
        state: State = "off" if headers.missing else "broken"
        return Finding("cutlass", state, f"no CUTLASS kernels: {headers.what}", headers.remedy)
    reason = why_not_generated()
    if reason is not None:
        detail = f"no CUTLASS kernels: {reason}"
        return Finding("cutlass", "broken", detail, toolkits.INSTALL_CUTLASS)
    return Finding("cutlass", "ok", f"headers and generator of {headers[0]}")


def launches(folder: Path) -> Finding:
    """Check for the library that launches CUTLASS kernels without Python, or for what compiles it."""
    name = "launches"
    try:
        trust = trust_or_nobody(default_trusted_keys())  # it may have come by a signature
        kept = open_store(folder, read_only=True, trust=trust).kernel(launch_library().digest)
    except CacheError:  # another finding
        kept = None
    if kept is not None:
        return Finding(name, "ok", "native, by the library in the cache")
    reason = native.why_not_compiled()
    if reason is None:
        return Finding(
            name, "ok", "native; the library is compiled beside the first CUTLASS kernel"
        )
    detail = f"CUTLASS kernels are launched by Python, 50 us of host time a call: {reason}"
    return Finding(name, "off", detail, "install g++ and Python's headers (python3-dev)")


def numpy() -> Finding:
    """Check for NumPy; kernels are generated, compiled and measured without it."""
    if importlib.util.find_spec("numpy") is None:
        detail = "not installed: torch warns of it, and nvidia-cutlass counts it as needed"
        return Finding("numpy", "off", detail, "pip install numpy")
    return Finding("numpy", "ok", installed_version("numpy") or "installed")


def remote(url: str) -> Finding:
    """Ask the remote for an object that is not there."""
    name = "remote"
    if not url:
        return Finding(name, "ok", "none; remote_url names one")
    try:
        answer = open_files(url).read(["doctor"], [0], _REMOTE_S)[0]
    except CacheError as error:
        return Finding(name, "broken", str(error), "install it, or correct or unset remote_url")
    if isinstance(answer, (bytes, FileNotFoundError)):
        return Finding(name, "ok", f"{without_user(url)} answers")
    remedy = "check URL, endpoint and credentials; readers of S3 need s3:ListBucket, too"
    return Finding(name, "broken", f"{without_user(url)} does not answer: {answer}", remedy)


def packs(folder: Path) -> Finding:
    """Check the packs of precompiled kernels: complete, and for the GPU of this machine."""
    name = "packs"
    installed = installed_packs()
    results = {name: _read(name, file) for name, file in installed.files.items()}
    sound = [pack for pack in results.values() if isinstance(pack, Pack)]
    broken = [
        *installed.problems,
        *(reason for reason in results.values() if isinstance(reason, str)),
    ]
    try:
        store = open_store(folder, read_only=True)
        cached, incomplete = store.packs(), store.verify_packs()
    except CacheError as error:
        return Finding(name, "off", f"the cache cannot be read: {error}", "see the finding `cache`")
    # Kernels of an installed pack that are missing from the cache are imported again.
    broken += [line for line in incomplete if not any(pack.name in line for pack in sound)]
    in_cache = {pack.name for pack in cached if not any(pack.name in line for line in incomplete)}
    known = trust_or_nobody(default_trusted_keys())
    admissions = [
        (pack.name, admission(entry_point, installed.files[entry_point], known))
        for entry_point, pack in results.items()
        if isinstance(pack, Pack) and pack.name not in in_cache
    ]
    broken += [each.refusal for _, each in admissions if each.refusal]
    if broken:
        remedy = "import the pack again, or install its wheel again, or uninstall it"
        return Finding(name, "broken", "; ".join(broken), remedy)
    ready = {pack.name: pack for pack in cached if pack.name in in_cache}
    pending = {pack.name: pack for pack in sound if pack.name not in ready}
    vouching = vouching_of(store, ready.values(), known)
    signers = {pack_name: signed_by(each.signers) for pack_name, each in admissions}
    later = "installed: taken into the cache at the first compile"
    listed = [_described(pack, vouching[pack.name]) for pack in ready.values()]
    listed += [_described(pack, signers[pack.name], later) for pack in pending.values()]
    if not listed:
        return Finding(name, "ok", "none; `inductor-plugin precompile` makes one")
    reason = _mismatch([*ready.values(), *pending.values()])
    if reason is not None:
        return Finding(name, "off", reason.what, reason.remedy)
    return Finding(name, "ok", ", ".join(listed))


def _described(pack: Pack, *facts: str) -> str:
    """Return a pack for people; of the facts, those that are there."""
    known = filter(None, (f"{len(pack.kernels)} kernels", *facts))
    return f"{pack.target} ({', '.join(known)})"


def _read(name: str, file: Path) -> Pack | str:
    """Return an installed pack, or why it cannot be used."""
    try:
        return read_pack(file)
    except (PackError, CacheError, OSError) as error:
        return f"the installed pack {name} cannot be used: {error}"


def _mismatch(available: list[Pack]) -> Mismatch | None:
    """Return why the packs do not fully fit the GPU of this machine; None if they do."""
    if not torch.cuda.is_available():
        return None
    try:
        gpu_target = known_target(torch.device("cuda"))
    except TargetError:  # another finding
        return None
    return mismatch(available, host_of(gpu_target))


def _option(name: str) -> str:
    try:
        return str(getattr(Config.load(), name))
    except OptionError:  # another finding
        return ""


def _attempt(*command: str) -> str | None:
    """Run a command; return its error output if it failed."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode == 0:
        return None
    return done.stderr.strip() or f"status {done.returncode}"


def _first_error(text: str) -> str:
    """Return the first line of a compiler's output that has an error, else its first line."""
    return next((line for line in text.splitlines() if "error" in line), text.splitlines()[0])
