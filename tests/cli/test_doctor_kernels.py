"""What doctor says of compilers, of CUTLASS and of packs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cache.transfer.archive import import_archive
from inductor_plugin.cache.transfer.installed import take_installed
from inductor_plugin.cache.transfer.kernels import admitted, copy_kernels
from inductor_plugin.cache.transfer.wheel import PACK_FILE
from inductor_plugin.cli import doctor
from inductor_plugin.kernels.nvcc import NoToolkit, Toolkit
from inductor_plugin.problem.target import Target, target
from tests.support.cache.packs import TRUST, install, pack_file, stale
from tests.support.cache.records import kernel_key, put_library
from tests.support.trust.payload import FRIEND
from tests.support.trust.payload import TRUST as TRUST_IN_FRIEND


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install(tmp_path, monkeypatch)


TOOLKIT = Toolkit("/cuda/bin/nvcc", "13.0.88", "PATH", (), "/cuda/lib64/libcudart.so.13", "")


def toolkit_is(monkeypatch: pytest.MonkeyPatch, toolkit: Toolkit | NoToolkit) -> None:
    def find(*_: object, **__: object) -> Toolkit | NoToolkit:
        return toolkit

    monkeypatch.setattr("inductor_plugin.kernels.nvcc.find", find)


def cutlass_is_installed(monkeypatch: pytest.MonkeyPatch, *, installed: bool) -> None:
    def package_folders(name: str) -> tuple[Path, ...]:
        return (Path("/site/cutlass_library"),) if installed else ()

    monkeypatch.setattr("inductor_plugin.kernels.nvcc.package_folders", package_folders)


def test_a_compiler_for_cutlass_kernels_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch):
    toolkit_is(monkeypatch, TOOLKIT)
    finding = doctor.nvcc()
    assert (finding.state, finding.remedy) == ("ok", "")
    assert finding.detail == "13.0.88 (/cuda/bin/nvcc, from PATH)"


@pytest.mark.parametrize(
    ("missing", "installed", "option", "state"),
    [
        (True, False, "", "off"),
        (True, True, "", "off"),
        (False, False, "", "off"),
        (False, True, "", "broken"),
        (False, False, "/old", "broken"),
    ],
)
def test_a_compiler_that_cannot_be_used_is_broken_where_somebody_wants_it(
    monkeypatch: pytest.MonkeyPatch, *, missing: bool, installed: bool, option: str, state: str
):
    toolkit_is(monkeypatch, NoToolkit("nvcc is CUDA 11.8, too old", "install another", missing))
    cutlass_is_installed(monkeypatch, installed=installed)
    finding = doctor.nvcc(option)
    assert (finding.state, finding.remedy) == (state, "install another")
    assert "CUDA 11.8, too old" in finding.detail


def test_the_compiler_is_judged_though_cutlass_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cutlass_is_installed(monkeypatch, installed=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    finding = doctor.nvcc()
    assert finding.state == "off"
    assert "no nvcc: looked at" in finding.detail
    assert "inductor-plugin[nvcc]" in finding.remedy
    finding = doctor.cutlass()
    assert finding.state == "off"
    assert "not installed" in finding.detail
    assert "inductor-plugin[cutlass]" in finding.remedy


def test_a_cutlass_that_cannot_be_used_is_broken(monkeypatch: pytest.MonkeyPatch):
    def reason() -> str:
        return "it cannot be imported"

    def headers() -> NoToolkit:
        return NoToolkit("nvidia-cutlass 3.9.0 is installed, kernels need 4.x", "pip install it")

    def good_headers() -> tuple[str, tuple[str, ...]]:
        return "4.2.0", ("/include",)

    monkeypatch.setattr(doctor, "why_not_generated", reason)
    monkeypatch.setattr("inductor_plugin.kernels.nvcc.cutlass_headers", headers)
    finding = doctor.cutlass()
    assert (finding.state, finding.remedy) == ("broken", "pip install it")
    assert "3.9.0" in finding.detail
    monkeypatch.setattr("inductor_plugin.kernels.nvcc.cutlass_headers", good_headers)
    finding = doctor.cutlass()
    assert finding.state == "broken"
    assert "it cannot be imported" in finding.detail
    monkeypatch.setattr(doctor, "why_not_generated", lambda: None)
    assert (doctor.cutlass().state, doctor.cutlass().remedy) == ("ok", "")


def test_numpy_is_told_of_and_not_needed(monkeypatch: pytest.MonkeyPatch):
    def find_spec(name: str) -> None:
        assert name == "numpy"

    monkeypatch.setattr("importlib.util.find_spec", find_spec)
    finding = doctor.numpy()
    assert (finding.state, finding.remedy) == ("off", "pip install numpy")


def test_kernels_are_generated_without_numpy(repository: Path):
    pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")
    script = (
        "import sys; sys.modules['numpy'] = None\n"
        "from inductor_plugin.templates.cutlass.source import why_not_generated\n"
        "print(why_not_generated())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=repository, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "None"


def test_the_option_that_names_a_compiler_is_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INDUCTOR_PLUGIN_NVCC", "/nowhere/nvcc")
    findings = {finding.name: finding for finding in doctor.examine()}
    assert findings["nvcc"].state == "broken"
    assert "/nowhere/nvcc" in findings["nvcc"].detail


def test_packs_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.packs(tmp_path / "nowhere").detail.startswith("none")
    folder = tmp_path / "cache"
    store = open_store(folder)
    import_archive(store, pack_file(tmp_path, "H200", "sm_90a"), trusted=True)
    packs = doctor.packs(folder)
    assert (packs.state, packs.detail) == ("ok", "H200 (1 kernels)")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    gpu_is(monkeypatch, "A100")
    packs = doctor.packs(folder)
    assert packs.state == "off"
    assert "this GPU is sm_80" in packs.detail
    assert "precompile --target" in packs.remedy
    (kernel,) = store.iter_kernels()
    kernel.path("kernel.so").write_bytes(b"x")
    packs = doctor.packs(folder)
    assert packs.state == "broken"
    assert "lost 1 of its 1 kernels" in packs.detail


def gpu_is(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def known_target(device: object) -> Target:
        return target(name)

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(doctor, "known_target", known_target)
    monkeypatch.setattr("inductor_plugin.inductor.graph.packs.cuda_major", lambda: 13)


@pytest.mark.parametrize(
    ("software", "said"),
    [
        ({"triton": "1.0"}, "Triton's are compiled anew"),
        ({"torch": "1.0"}, "its CUTLASS kernels serve"),
        ({"machine": "riscv64"}, "made on riscv64"),
    ],
)
def test_a_pack_made_otherwise_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, software: dict[str, str], said: str
) -> None:
    gpu_is(monkeypatch, "H200")
    for folder, how, state in (("fit", {}, "ok"), ("other", software, "off")):
        (tmp_path / folder).mkdir()
        file = pack_file(tmp_path / folder, "H200", "sm_90a", **how)
        import_archive(open_store(tmp_path / folder / "cache"), file, trusted=True)
        packs = doctor.packs(tmp_path / folder / "cache")
        assert (packs.state, said in packs.detail) == (state, state == "off")


def test_an_installed_pack_is_read_through(site: Path, tmp_path: Path) -> None:
    packs = doctor.packs(tmp_path / "cache")
    assert packs.state == "ok"
    assert packs.detail.startswith("RTX 4090 (1 kernels, signed by tests, installed: taken")
    (file,) = site.glob(f"*/{PACK_FILE}")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)
    packs = doctor.packs(tmp_path / "cache")
    assert packs.state == "broken"
    assert "the installed pack inductor_plugin_pack_rtx_4090_" in packs.detail
    assert "install its wheel again" in packs.remedy
    file.unlink()
    assert doctor.packs(tmp_path / "cache").state == "broken"


def test_an_installed_pack_that_lost_kernels_is_nothing_to_repair(
    site: Path,
    tmp_path: Path,
) -> None:
    store = open_store(tmp_path / "cache", trust=TRUST)
    assert take_installed(store) == []
    assert doctor.packs(tmp_path / "cache").detail == "RTX 4090 (1 kernels, signed by tests)"
    store.prune(max_bytes=0)
    packs = doctor.packs(tmp_path / "cache")
    assert packs.state == "ok"
    assert "taken into the cache at the first compile" in packs.detail


def test_a_pack_whose_key_was_withdrawn_is_not_said_to_be_signed(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert take_installed(open_store(tmp_path / "cache", trust=TRUST)) == []
    monkeypatch.delenv("INDUCTOR_PLUGIN_TRUSTED_KEYS")
    packs = doctor.packs(tmp_path / "cache")
    assert packs.detail == "RTX 4090 (1 kernels, 1 refused: see the finding `trust`)"


def test_an_entry_point_that_leads_nowhere_is_broken(site: Path, tmp_path: Path) -> None:
    stale(site, "gone.kernels")
    packs = doctor.packs(tmp_path / "cache")
    assert packs.state == "broken"
    assert "the installed pack stale cannot be used" in packs.detail
    assert "uninstall it" in packs.remedy


def test_an_unknown_gpu_is_off_and_told_what_works(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"name": "Tesla V100", "major": 7, "minor": 0, "multi_processor_count": 80}

    def properties(device: object) -> SimpleNamespace:
        return SimpleNamespace(**facts)

    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", properties)
    finding = doctor.gpu()
    assert finding.state == "off"
    assert "compute capability 7.0, whose tensor cores are not known" in finding.detail
    assert "library kernels and Triton templates are measured" in finding.remedy
    assert "no CUTLASS kernels and no packs" in finding.remedy
    facts.update(major=8)
    assert doctor.gpu().state == "ok"


def test_a_launch_library_that_came_by_a_signature_is_there_if_its_key_is_trusted(
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    entry = put_library(open_store(tmp_path / "theirs"))
    signed = replace(entry, signatures={FRIEND.public: FRIEND.sign(entry)})
    store = open_store(cache_dir, trust=TRUST_IN_FRIEND)
    copy_kernels(store, admitted(store, [signed], "x.pack", trusted=False))
    monkeypatch.setattr(doctor, "launch_library", kernel_key)
    monkeypatch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", FRIEND.public)
    assert doctor.launches(cache_dir).detail == "native, by the library in the cache"
    assert "not trusted" not in caplog.text
    monkeypatch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", "")
    assert doctor.launches(cache_dir).detail != "native, by the library in the cache"
