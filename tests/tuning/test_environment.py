"""What a timing depends on."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from inductor_plugin.cache import digest_of
from inductor_plugin.config import Config
from inductor_plugin.errors import DeviceError
from inductor_plugin.ops import launch
from inductor_plugin.tuning import environment
from inductor_plugin.tuning.environment import worker_settings
from inductor_plugin.tuning.runtime import Runtime
from inductor_plugin.worker.child import main
from inductor_plugin.worker.devices import cpu, cuda
from tests.support.fakes.devices import Clock, described


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """Put torch's settings back."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.use_deterministic_algorithms(False)


def test_a_cpu_environment_is_stable_and_has_a_digest() -> None:
    first, second = environment.environment("cpu"), environment.environment("cpu")
    assert first == second
    assert digest_of(first) == digest_of(second)
    assert json.loads(json.dumps(first)) == first
    assert first["device"]["type"] == "cpu"
    assert first["device"]["name"]
    assert first["software"]["torch"] == str(torch.__version__)


def test_another_number_of_threads_is_another_environment() -> None:
    torch.set_num_threads(1)
    facts = environment.environment("cpu")
    torch.set_num_threads(2)
    other = environment.environment("cpu")
    assert (facts["device"]["threads"], other["device"]["threads"]) == (1, 2)
    assert digest_of(facts) != digest_of(other)


@pytest.mark.usefixtures("usual")
def test_openmp_s_variables_count_where_they_are_set_and_cores_where_they_are_too_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    facts = environment.environment("cpu")["device"]
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert environment.environment("cpu")["device"] == {**facts, "openmp": "OMP_WAIT_POLICY=active"}
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setattr(cpu, "own_cores", lambda: frozenset({7}))
    assert environment.environment("cpu")["device"] == {**facts, "cores": 1}


def test_settings_that_change_numbers_change_the_environment() -> None:
    torch.set_float32_matmul_precision("highest")
    plain = digest_of(environment.environment("cpu"))
    torch.set_float32_matmul_precision("medium")
    medium = digest_of(environment.environment("cpu"))
    torch.set_float32_matmul_precision("highest")
    torch.use_deterministic_algorithms(True)
    assert len({plain, medium, digest_of(environment.environment("cpu"))}) == 3


def test_a_caller_may_change_what_it_gets() -> None:
    environment.environment("cpu")["device"]["name"] = "another"
    assert environment.environment("cpu")["device"]["name"] != "another"


CPU_NAMES = {
    "device": {"type", "name", "capability", "arch", "threads"},
    "software": {"torch", "mkl", "onednn", "openmp"},
    "numerics": {"float32_matmul_precision", "deterministic"},
}
GPU_NAMES = {
    "device": {"type", "name", "capability", "multiprocessors", "memory_bytes"},
    "software": {"torch", "cuda", "cudnn", "driver", "cublas", "triton", "cutlass"},
    "numerics": CPU_NAMES["numerics"] | {"cudnn_allow_tf32", "fp16_reduced", "bf16_reduced"},
}
OLD_CPU = "d61b30871ed0243c22b8cb18de8e159e0dfd403ba66252f4d47bdb0177a6bfe9"
OLD_GPU = "14b2cea6ce9750fe5aaf846de5a2929972cbcf9e1934ea6c982245ccded91fed"
"""Digests of the environments of `old_machine`, as commit 53e12c1 (version 0.1) computes them."""
BUILD = """
  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel(R) 64 architecture applications
  - Intel(R) MKL-DNN v3.7.1 (Git Hash 8d263e693366ef8db40acc569cc7d8edf644556d)
  - OpenMP 201511 (a.k.a. OpenMP 4.5)
"""
PACKAGES = {"nvidia-cublas": "13.0.2.14", "triton": "3.8.0", "nvidia-cutlass": "4.2.1.0"}


def installed_version(*names: str) -> str:
    return PACKAGES[names[0]]


def forget_machine() -> None:
    for cached in (cpu._machine, cpu.versions, cuda.facts, cuda.versions):
        cached.cache_clear()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have an H100; torch's own settings and the packages are those that are there."""
    properties = SimpleNamespace(
        name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", Mock(return_value=properties))
    forget_machine()
    yield
    forget_machine()


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no setting of OpenMP, no AMX, and a core for each of two threads: the environment has no field for what is unusual."""
    for name in [name for name in os.environ if name.startswith(("OMP_", "GOMP_", "KMP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(cpu, "own_cores", lambda: frozenset({0, 7}))
    monkeypatch.setattr(torch.cpu, "_init_amx", bool)
    torch.set_num_threads(2)


@pytest.fixture
def old_machine(gpu: None, usual: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each fact of this machine the value it has in `OLD_CPU` and `OLD_GPU`."""
    for owner, name, value in (
        (torch, "__version__", "2.14.1"),
        (torch.version, "cuda", "13.0"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "AVX512"),
        (torch.backends.cudnn, "version", lambda: 91900),
        (torch.__config__, "show", lambda: BUILD),
        (platform, "machine", lambda: "x86_64"),
        (cpu, "_name", lambda: "A processor (model 85)"),
        (cuda, "_driver", lambda: "580.65.06"),
        (cuda, "installed_version", installed_version),
    ):
        monkeypatch.setattr(owner, name, value)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_is_described_by_name_and_capability() -> None:
    device = environment.environment("cuda:0")["device"]
    assert (device["name"], device["capability"]) == ("NVIDIA H100", "9.0")


@pytest.mark.usefixtures("gpu", "usual")
@pytest.mark.parametrize(("device", "names"), [("cpu", CPU_NAMES), ("cuda:0", GPU_NAMES)])
def test_a_key_has_the_fields_of_records_of_version_0_1(
    device: str, names: dict[str, set[str]]
) -> None:
    """With one more, one less or another name, every record of every machine is unknown."""
    facts = environment.environment(device)
    assert {part: set(fields) for part, fields in facts.items()} == names


@pytest.mark.usefixtures("old_machine")
@pytest.mark.parametrize(("device", "digest"), [("cpu", OLD_CPU), ("cuda:0", OLD_GPU)])
def test_the_same_facts_have_the_digest_of_version_0_1(
    device: str, digest: str, cache_dir: Path
) -> None:
    """With the compiler's version, which a compile on a CPU adds."""
    software = {"cpp": "g++ (Debian 14.2.0-19) 14.2.0"} if device == "cpu" else {}
    runtime = Runtime()
    context = runtime.context(loaded(cache_dir, cache="off"), device, software)
    assert context.environment == digest
    runtime.forget()


def test_mixed_tf32_settings_count_as_the_strictest(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", refuse)
    assert environment.float32_precision("cpu") == "highest"


def reset_precision() -> None:
    """Set torch's newer settings of precision, which rule out the older ones, to their defaults."""
    backends: Any = torch.backends
    backends.fp32_precision = "none"
    for module in (backends.cuda.matmul, backends.mkldnn.matmul):
        module.fp32_precision = "none"
    for module in (backends.cudnn.conv, backends.cudnn.rnn):
        module.fp32_precision = "tf32"


@pytest.fixture
def default_precision() -> Iterator[None]:
    reset_precision()
    yield
    reset_precision()


@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize(
    ("setting", "value", "cpu", "gpu", "convolution"),
    [
        ("", "ieee", "highest", "highest", True),  # cuDNN has a setting of its own
        ("", "tf32", "high", "high", True),
        ("cuda.matmul", "tf32", "highest", "high", True),
        ("mkldnn.matmul", "bf16", "medium", "highest", True),
        ("cudnn.conv", "ieee", "highest", "highest", False),
    ],
)
def test_precision_by_torchs_newer_settings(
    setting: str, value: str, cpu: str, gpu: str, *, convolution: bool
) -> None:
    backend: Any = torch.backends
    for name in setting.split(".") if setting else ():
        backend = getattr(backend, name)
    backend.fp32_precision = value
    assert environment.float32_precision("cpu") == cpu
    assert environment.float32_precision("cuda") == gpu
    assert cuda.convolution_tf32() is convolution
    for device in ("cpu", "cuda:0"):
        settings = worker_settings(Config(), "bench", device)
        assert settings.float32_precision == (cpu if device == "cpu" else gpu)
        assert settings.cudnn_allow_tf32 is convolution
        assert (
            environment.numerics(device)["float32_matmul_precision"] == settings.float32_precision
        )


@pytest.mark.parametrize("allowed", [True, False])
def test_convolutions_have_a_precision_of_their_own(
    monkeypatch: pytest.MonkeyPatch, *, allowed: bool
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    assert cuda.convolution_tf32() is allowed


def test_provenance_names_the_host_and_on_a_gpu_the_clocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "clock_rate", Mock(return_value=1980))
    monkeypatch.setattr(torch.cuda, "power_draw", Mock(return_value=350_000))
    assert set(environment.provenance("cpu")) == {"host", "python"}
    noted = environment.provenance("cuda:0")
    assert (noted["sm_clock_mhz"], noted["power_w"]) == (1980, 350)


@pytest.mark.parametrize("error", [RuntimeError("no NVML"), IndexError("no visible device")])
def test_clocks_that_cannot_be_read_are_unknown(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever torch raises: it once ended the tuning of every problem on an H200 whose devices were hidden."""
    monkeypatch.setattr(torch.cuda, "clock_rate", Mock(side_effect=error))
    assert environment.provenance("cuda:0")["clocks"] == f"unknown ({type(error).__name__})"


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_a_library_that_may_not_split_k_is_another_one(name: str) -> None:
    """In the key of a GPU and in its worker; records of those who have not changed it are found as before."""
    matmul, flag = torch.backends.cuda.matmul, f"allow_{name}_reduced_precision_reduction"
    getter = getattr(torch._C, f"_get_cublas_{flag}")
    before = getter()
    plain = environment.numerics("cuda:0")
    assert not any(key.endswith("split_k") for key in plain)
    if not isinstance(before, tuple):
        pytest.skip("this torch has one flag only")
    try:
        setattr(matmul, flag, (False, False))
        assert environment.numerics("cuda:0")[f"{name}_split_k"] is False
        settings = worker_settings(Config(), "bench", "cuda:0")
        assert (False, False) in settings.reduced_precision
        setattr(matmul, flag, True)
        main._apply_torch_settings(dataclasses.replace(settings, device="cpu", kernel_folder=""))
        assert getter() == (False, False)
    finally:
        setattr(matmul, flag, before)
        torch.set_grad_enabled(True)


def test_a_worker_knows_the_cache_that_has_the_library_of_call_sites(tmp_path: Path) -> None:
    config = Config.load({"cache_dir": str(tmp_path)}, environ={})
    assert worker_settings(config, "bench", "cuda:0").kernel_folder == str(tmp_path)
    off = dataclasses.replace(config, cache="off")
    assert worker_settings(off, "bench", "cuda:0").kernel_folder == ""


def test_the_worker_of_another_device_starts_it_and_its_timer() -> None:
    started: list[str] = []
    clocks: list[Clock] = []

    def timer(device: str) -> Clock:
        clocks.append(Clock(device))
        return clocks[-1]

    try:
        with described(name="npu", start=started.append, timer=timer):
            settings = worker_settings(Config(), "bench", "npu:9")
            main._apply_torch_settings(settings)
            assert started == ["npu:9"]
            assert [clock.asked for clock in clocks] == [["synchronize"]]
            clocks[0].synchronize = Mock(side_effect=RuntimeError("NPU error\nat 7"))
            assert main.device_fault() == "NPU error"
            clocks[0].synchronize = Mock()
            assert main.device_fault() == ""
    finally:
        torch.set_grad_enabled(True)
    with pytest.raises(DeviceError, match="no package describes them"):
        main._apply_torch_settings(dataclasses.replace(settings, device_reference=""))


def test_the_worker_of_a_gpu_searches_kernels_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it each CUTLASS kernel would be launched by Python where it is measured."""
    added: list[Path] = []
    monkeypatch.setattr(torch.cuda, "set_device", Mock())
    monkeypatch.setattr(torch.cuda, "synchronize", Mock())

    def add(folder: Path, **_: str) -> None:
        added.append(folder)

    monkeypatch.setattr(launch, "add_kernel_folder", add)
    settings = worker_settings(Config(), "bench", "cpu")
    try:
        for device in ("cuda:0", "cpu"):
            there = dataclasses.replace(settings, device=device, kernel_folder=str(tmp_path))
            main._apply_torch_settings(there)
    finally:
        torch.set_grad_enabled(True)
    assert added == [tmp_path]


def loaded(path: Path, **options: Any) -> Config:
    return Config.load({"cache_dir": str(path), **options}, environ={})


def test_workers_share_the_settings_that_numbers_depend_on(cache_dir: Path) -> None:
    precision = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        torch.use_deterministic_algorithms(True, warn_only=True)
        settings = worker_settings(loaded(cache_dir, worker_idle_s=5), "bench", "cuda:1")
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(precision)
    assert (settings.kind, settings.device, settings.idle_s) == ("bench", "cuda:1", 5)
    assert settings.float32_precision == "high"
    assert settings.allow_tf32
    assert settings.deterministic
    assert settings.deterministic_warn_only
    assert settings.threads == torch.get_num_threads()


def test_a_worker_without_a_given_limit_gets_one_on_a_cpu_only(cache_dir: Path) -> None:
    assert worker_settings(loaded(cache_dir), "bench", "cpu").memory_bytes > 0
    assert worker_settings(loaded(cache_dir), "bench", "cuda:0").memory_bytes == 0
    limited = loaded(cache_dir, worker_memory_bytes="1GiB")
    assert worker_settings(limited, "bench", "cuda:0").memory_bytes == 1 << 30
