from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from inductor_plugin.cache import open_store
from inductor_plugin.cache.transfer.archive import import_archive
from inductor_plugin.cache.transfer.installed import take_installed
from inductor_plugin.cache.transfer.wheel import PACK_FILE
from inductor_plugin.cli import doctor
from inductor_plugin.errors import CacheRefusedError
from inductor_plugin.kernels.nvcc import NoToolkit, Toolkit
from inductor_plugin.problem.target import Target, target
from tests.support.cache.packs import TRUST, install, pack_file, stale
from tests.support.cache.records import give_away


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return install(tmp_path, monkeypatch)


def test_every_finding_that_is_not_ok_says_what_to_do(cache_dir: Path):
    findings = doctor.examine(cache_dir)
    assert {finding.state for finding in findings} <= {"ok", "off", "broken"}
    assert [
        finding.name for finding in findings if finding.state != "ok" and not finding.remedy
    ] == []
    assert (
        json.loads(json.dumps([finding.to_dict() for finding in findings]))[0]["name"] == "python"
    )
    assert all(finding.name in doctor.render(findings) for finding in findings)
    assert not cache_dir.exists()


@pytest.mark.parametrize(
    ("version", "state", "detail"),
    [
        ((3, 11, 7), "ok", "one by one"),
        ((3, 11, 9), "ok", r"3\.11\.9$"),
        ((3, 14, 0), "broken", "not supported"),
        ((3, 9, 0), "broken", "not supported"),
    ],
)
def test_python_is_judged_by_its_version(version: tuple[int, int, int], state: str, detail: str):
    finding = doctor.python(version)
    assert finding.state == state
    assert re.search(detail, finding.detail)


def test_a_wrong_variable_is_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INDUCTOR_PLUGIN_POLICE", "tune")
    finding = doctor.options()
    assert finding.state == "broken"
    assert "INDUCTOR_PLUGIN_POLICY" in finding.detail


def test_options_that_differ_from_their_defaults_are_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INDUCTOR_PLUGIN_MAX_CANDIDATES", "3")
    assert doctor.options().detail == "max_candidates=3"


def test_a_switch_that_cannot_act_is_broken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INDUCTOR_PLUGIN_ENABLE", "1")
    assert "is on" in doctor.switch().detail
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert doctor.switch().remedy == "unset TORCH_DEVICE_BACKEND_AUTOLOAD"


def test_a_checkout_that_is_not_installed_is_not_broken(monkeypatch: pytest.MonkeyPatch):
    def none(**_: str) -> tuple[()]:
        return ()

    monkeypatch.setattr(doctor.importlib.metadata, "entry_points", none)
    finding = doctor.switch()
    assert finding.state == "off"
    assert "`import inductor_plugin.backend`" in finding.detail
    assert "pip install -e ." in finding.remedy


def test_the_compiler_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fake = tmp_path / "bad-c++"
    fake.write_text("#!/bin/sh\necho 'fatal error: Python.h: not found' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    finding = doctor.compiler()
    assert finding.state == "broken"
    assert "Python's headers" in finding.remedy


@pytest.mark.parametrize(
    ("failure", "remedy"),
    [
        ("p.cpp:2:10: fatal error: omp.h: No such file or directory", "install OpenMP"),
        ("/usr/bin/ld: cannot find -lgomp\ncollect2: error: ld returned 1", "install OpenMP"),
        ("clang: error: unsupported option '-fopenmp'", "install OpenMP"),
        ("g++: internal compiler error: Killed (program cc1plus)", "repair or reinstall"),
        ("p.cpp:1:10: fatal error: Python.h: No such file", "install Python's headers"),
    ],
)
def test_the_remedy_is_for_what_the_compiler_wrote(failure: str, remedy: str):
    assert doctor.compiler_remedy(failure).startswith(remedy)


def test_a_machine_without_compiler_is_told_to_install_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    finding = doctor.compiler()
    assert (finding.state, finding.remedy) == ("broken", "install g++, or set CXX to a compiler")


def test_a_cache_that_others_can_write_is_broken(tmp_path: Path):
    tmp_path.chmod(0o777)
    finding = doctor.cache(tmp_path)
    assert finding.state == "broken"
    assert "mode 0777" in finding.detail
    tmp_path.chmod(0o700)
    assert doctor.cache(tmp_path).state == "ok"


@pytest.mark.parametrize("folder", ["", "kernels"])
@pytest.mark.parametrize("how", ["group", "everyone", "owner"])
def test_a_cache_that_is_refused_when_it_is_opened_is_broken(
    folder: str, how: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    open_store(cache_dir).layout.kernels.mkdir(mode=0o700)
    assert doctor.cache(cache_dir).state == "ok"
    if how == "owner":
        give_away(cache_dir / folder, monkeypatch)
    else:
        (cache_dir / folder).chmod(0o770 if how == "group" else 0o707)
    with pytest.raises(CacheRefusedError) as refused:
        open_store(cache_dir)
    finding = doctor.cache(cache_dir)
    assert finding.state == "broken"
    assert str(refused.value).endswith(f"{finding.detail}; {finding.remedy}")


def test_a_cache_that_is_no_folder_is_broken(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()
    for path in (file, file / "below"):
        finding = doctor.cache(path)
        assert f"{file} is not a folder" in finding.detail
        assert finding.remedy == "set INDUCTOR_PLUGIN_CACHE_DIR to a folder of your own"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc")
def test_a_file_system_that_keeps_no_files_is_not_short_of_space():
    finding = doctor.cache(Path("/proc/inductor-plugin"))
    assert (finding.state, finding.remedy) == (
        "broken",
        "set INDUCTOR_PLUGIN_CACHE_DIR to a folder you can write",
    )


def test_a_disk_that_is_almost_full_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    full = SimpleNamespace(total=2**40, used=2**40, free=2**20)

    def disk_usage(_path: Path) -> SimpleNamespace:
        return full

    monkeypatch.setattr("shutil.disk_usage", disk_usage)
    assert doctor.cache(tmp_path).remedy == "free some space, or move the cache"


def test_a_second_cache_is_checked(cache_dir: Path, tmp_path: Path):
    assert doctor.second_cache(None).state == "ok"
    open_store(cache_dir)
    finding = doctor.second_cache(cache_dir)
    assert (finding.state, finding.detail) == (
        "ok",
        f"{cache_dir}, read only: 0 records, 0 kernels",
    )
    missing = doctor.second_cache(tmp_path / "none")
    assert (missing.state, missing.remedy) == ("broken", "correct or unset cache_read")
    cache_dir.chmod(0o777)
    refused = doctor.second_cache(cache_dir)
    assert refused.state == "broken"
    assert refused.remedy.endswith(f"chmod go-w {cache_dir}")


def test_a_remote_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert doctor.remote("").state == "ok"
    assert doctor.remote(f"file://{tmp_path}").detail == f"file://{tmp_path} answers"
    (tmp_path / "doctor").mkdir()
    assert doctor.remote(f"file://{tmp_path}").state == "broken"
    monkeypatch.setitem(sys.modules, "s3fs", None)
    assert 'pip install "inductor-plugin[s3]"' in doctor.remote("s3://bucket").detail


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_cache_that_cannot_be_written_is_broken(tmp_path: Path):
    tmp_path.chmod(0o500)
    finding = doctor.cache(tmp_path / "below")
    assert finding.state == "broken"
    assert "cannot be written" in finding.detail


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

    monkeypatch.setattr(doctor, "generator_reason", reason)
    monkeypatch.setattr("inductor_plugin.kernels.nvcc.cutlass_headers", headers)
    finding = doctor.cutlass()
    assert (finding.state, finding.remedy) == ("broken", "pip install it")
    assert "3.9.0" in finding.detail
    monkeypatch.setattr("inductor_plugin.kernels.nvcc.cutlass_headers", good_headers)
    finding = doctor.cutlass()
    assert finding.state == "broken"
    assert "it cannot be imported" in finding.detail
    monkeypatch.setattr(doctor, "generator_reason", lambda: None)
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
        "from inductor_plugin.templates.cutlass.source import generator_reason\n"
        "print(generator_reason())"
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
    assert packs.detail.startswith("RTX 4090 (1 kernels, installed: taken")
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
    assert doctor.packs(tmp_path / "cache").detail == "RTX 4090 (1 kernels)"
    store.prune(max_bytes=0)
    packs = doctor.packs(tmp_path / "cache")
    assert packs.state == "ok"
    assert "taken into the cache at the first compile" in packs.detail


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
