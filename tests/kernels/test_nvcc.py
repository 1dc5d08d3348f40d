from __future__ import annotations

from pathlib import Path

import pytest

from inductor_plugin.kernels import nvcc as nvcc_module
from inductor_plugin.kernels.nvcc import NoToolkit, Toolkit, ToolkitPlace
from tests.support.cutlass.toolkit import toolkit_at

HEADERS = ("4.2.0", ("/cutlass/include", "/cutlass/util"))


def test_places_come_in_the_documented_order(tmp_path: Path) -> None:
    on_path = toolkit_at(tmp_path / "path")
    environ = {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    places = nvcc_module.places(str(tmp_path / "named"), environ, [tmp_path / "site"])
    assert [(place.origin, place.nvcc) for place in places] == [
        ("option", tmp_path / "named" / "bin" / "nvcc"),
        ("CUDA_HOME", tmp_path / "home" / "bin" / "nvcc"),
        ("PATH", on_path),
        ("wheels", tmp_path / "site" / "nvidia" / "cu13" / "bin" / "nvcc"),
    ]


def test_an_option_may_name_the_program_itself(tmp_path: Path) -> None:
    (place,) = nvcc_module.places(str(tmp_path / "bin" / "nvcc"), {"PATH": ""}, ())
    assert place == ToolkitPlace("option", tmp_path / "bin" / "nvcc")


def test_places_with_an_nvcc_are_tried(tmp_path: Path) -> None:
    nvcc = toolkit_at(tmp_path / "there")
    missing = ToolkitPlace("CUDA_HOME", tmp_path / "gone" / "bin" / "nvcc")
    assert nvcc_module.present([missing, ToolkitPlace("PATH", nvcc)]) == (
        ToolkitPlace("PATH", nvcc),
    )


def test_a_wrong_option_is_not_passed_over(tmp_path: Path) -> None:
    nvcc = toolkit_at(tmp_path / "there")
    wrong = ToolkitPlace("option", tmp_path / "gone" / "bin" / "nvcc")
    present = nvcc_module.present([wrong, ToolkitPlace("PATH", nvcc)], "gone")
    assert isinstance(present, NoToolkit)
    assert "option nvcc is 'gone'" in present.reason
    assert not present.missing
    named = nvcc_module.present([ToolkitPlace("option", nvcc), ToolkitPlace("PATH", nvcc)], "there")
    assert named == (ToolkitPlace("option", nvcc),)


def test_without_nvcc_the_reason_says_where_it_was_looked_for_and_what_to_install() -> None:
    present = nvcc_module.present([ToolkitPlace("CUDA_HOME", Path("/gone/bin/nvcc"))])
    assert isinstance(present, NoToolkit)
    assert "/gone/bin/nvcc (CUDA_HOME)" in present.reason
    assert nvcc_module.INSTALL_NVCC in present.reason
    assert present.missing


def says(nvcc: Path, version: str) -> Path:
    """Let a toolkit's nvcc say which version it is."""
    nvcc.write_text(f"#!/bin/sh\necho release {version[:4]}, V{version}\n")
    return nvcc


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package brings a toolkit."""

    def none(name: str) -> tuple[Path, ...]:
        return ()

    monkeypatch.setattr(nvcc_module, "package_folders", none)


@pytest.mark.usefixtures("no_packages")
def test_an_nvcc_that_cannot_be_used_is_passed_over_unless_it_was_named(tmp_path: Path) -> None:
    old = says(toolkit_at(tmp_path / "old", major=11), "11.8.89")
    good = says(toolkit_at(tmp_path / "good"), "13.0.88")
    environ = {"CUDA_HOME": str(tmp_path / "old"), "PATH": str(good.parent)}
    toolkit = nvcc_module.find("", environ, headers=HEADERS)
    assert isinstance(toolkit, Toolkit)
    assert (toolkit.nvcc, toolkit.origin) == (str(good), "PATH")
    named = nvcc_module.find(str(old), environ, headers=HEADERS)
    alone = nvcc_module.find("", {**environ, "PATH": ""}, headers=HEADERS)
    for refused in (named, alone):
        assert isinstance(refused, NoToolkit)
        assert "is CUDA 11.8.89, CUTLASS needs 12.3" in refused.what
        assert refused.remedy == nvcc_module.INSTALL_NVCC
        assert not refused.missing


def test_a_cutlass_of_another_major_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = tmp_path / "source" / "include" / "cutlass" / "version.h"
    header.parent.mkdir(parents=True)

    def the_package(name: str) -> tuple[Path, ...]:
        return (tmp_path,)

    monkeypatch.setattr(nvcc_module, "package_folders", the_package)
    for major, minor in ((3, 9), (5, 0)):
        header.write_text(
            f"#define CUTLASS_MAJOR {major}\n#define CUTLASS_MINOR {minor}\n#define CUTLASS_PATCH 1\n"
        )
        headers = nvcc_module.cutlass_headers()
        assert isinstance(headers, NoToolkit)
        assert f"nvidia-cutlass {major}.{minor}.1 is installed, kernels need 4.x" in headers.reason
        assert nvcc_module.INSTALL_CUTLASS in headers.reason
    header.write_text(header.read_text().replace("MAJOR 5", "MAJOR 4"))
    assert not isinstance(nvcc_module.cutlass_headers(), NoToolkit)
    header.unlink()
    headers = nvcc_module.cutlass_headers()
    assert isinstance(headers, NoToolkit)
    assert "holds no CUTLASS headers" in headers.what


@pytest.mark.parametrize("lib", ["lib64", "lib"])
def test_a_toolkit_brings_its_headers_and_runtime(tmp_path: Path, lib: str) -> None:
    nvcc = toolkit_at(tmp_path / "cuda", lib=lib)
    toolkit = nvcc_module.assemble(ToolkitPlace("PATH", nvcc), "13.0.88", HEADERS, ())
    assert isinstance(toolkit, Toolkit)
    root = tmp_path / "cuda"
    assert toolkit.include_dirs == (
        *HEADERS[1],
        str(root / "include"),
        str(root / "include" / "cccl"),
    )
    assert toolkit.cudart == str(root / lib / "libcudart.so.13")
    assert toolkit.release == (13, 0)


def test_wheels_may_hold_the_runtime_of_a_slim_toolkit(tmp_path: Path) -> None:
    nvcc = tmp_path / "slim" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.touch()
    toolkit_at(tmp_path / "site" / "nvidia" / "cu13", lib="lib")
    toolkit = nvcc_module.assemble(
        ToolkitPlace("PATH", nvcc), "13.0.88", HEADERS, [tmp_path / "site"]
    )
    assert isinstance(toolkit, Toolkit)
    assert toolkit.cudart.startswith(str(tmp_path / "site"))


def test_what_a_toolkit_lacks_is_named(tmp_path: Path) -> None:
    old = toolkit_at(tmp_path / "old")
    bare = toolkit_at(tmp_path / "bare", cccl=False)
    other = toolkit_at(tmp_path / "other", major=12)
    for nvcc, version, wanted in (
        (old, "11.8.89", "CUTLASS needs 12.3"),
        (bare, "13.0.88", "nvidia-cuda-cccl"),
        (other, "13.0.88", "libcudart.so.13"),
    ):
        toolkit = nvcc_module.assemble(ToolkitPlace("PATH", nvcc), version, HEADERS, ())
        assert isinstance(toolkit, NoToolkit)
        assert wanted in toolkit.reason


def test_the_oldest_release_is_accepted(tmp_path: Path) -> None:
    nvcc = toolkit_at(tmp_path / "oldest", major=12)
    for version, accepted in (("12.3.107", True), ("12.2.140", False)):
        toolkit = nvcc_module.assemble(ToolkitPlace("PATH", nvcc), version, HEADERS, ())
        assert isinstance(toolkit, Toolkit) is accepted


def test_a_script_that_calls_nvcc_leads_to_its_toolkit(tmp_path: Path) -> None:
    toolkit_at(tmp_path / "cuda")
    script = tmp_path / "bin" / "nvcc"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {tmp_path}/cuda/bin/nvcc "$@"\n')
    toolkit = nvcc_module.assemble(ToolkitPlace("PATH", script), "13.0.88", HEADERS, ())
    assert isinstance(toolkit, Toolkit)
    assert toolkit.nvcc == str(script)
    assert toolkit.cudart == str(tmp_path / "cuda" / "lib64" / "libcudart.so.13")


def test_a_version_is_read_from_what_nvcc_prints(tmp_path: Path) -> None:
    text = "Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/compiler.0"
    assert nvcc_module.parse_version(text) == "13.0.88"
    assert nvcc_module.parse_version("nothing") is None
    broken = tmp_path / "nvcc"
    broken.write_text("#!/bin/sh\necho no licence\nexit 3\n")
    broken.chmod(0o755)
    version = nvcc_module.nvcc_version(broken)
    assert isinstance(version, NoToolkit)
    assert "ended with 3" in version.reason
    assert "no licence" in version.reason


def test_the_command_links_the_runtime_by_its_full_name_and_no_driver(tmp_path: Path) -> None:
    nvcc = toolkit_at(tmp_path / "cuda")
    toolkit = nvcc_module.assemble(ToolkitPlace("PATH", nvcc), "13.0.88", HEADERS, ())
    assert isinstance(toolkit, Toolkit)
    words = nvcc_module.command(toolkit, "sm_90a")
    assert words[0] == str(nvcc)
    assert "-gencode=arch=compute_90a,code=sm_90a" in words
    assert f"-Xlinker={tmp_path}/cuda/lib64/libcudart.so.13" in words
    assert "{source}" in words
    assert "{output}" in words
    # The pool names its sources .cpp.
    assert words.index("cu") < words.index("{source}")
    assert "-lcuda" not in words
    assert "-Xptxas=-v" in words
    assert "-Xptxas" not in toolkit.key_text("sm_90a")
    assert not any("EXTENDED_MMA" in word for word in words)


def test_the_key_knows_versions_and_flags_but_no_paths(tmp_path: Path) -> None:
    def key(folder: str, version: str, cutlass: str, arch: str) -> str:
        root = tmp_path / folder
        nvcc = root / "bin" / "nvcc" if root.exists() else toolkit_at(root)
        toolkit = nvcc_module.assemble(ToolkitPlace("PATH", nvcc), version, (cutlass, ("/c",)), ())
        assert isinstance(toolkit, Toolkit)
        return toolkit.key_text(arch)

    base = key("one", "13.0.88", "4.2.0", "sm_90a")
    assert key("two", "13.0.88", "4.2.0", "sm_90a") == base
    others = {
        key("one", "13.0.89", "4.2.0", "sm_90a"),
        key("one", "13.0.88", "4.2.1", "sm_90a"),
        key("one", "13.0.88", "4.2.0", "sm_80"),
    }
    assert len(others | {base}) == 4


def test_headers_are_found_without_importing_their_package() -> None:
    import sys

    headers = nvcc_module.cutlass_headers()
    if isinstance(headers, NoToolkit):
        assert nvcc_module.INSTALL_CUTLASS in headers.reason
        pytest.skip(headers.reason)
    version, folders = headers
    assert version.startswith("4.2")
    assert (Path(folders[0]) / "cutlass" / "gemm" / "gemm.h").is_file()
    assert (Path(folders[1]) / "cutlass" / "util" / "packed_stride.hpp").is_file()
    assert "cutlass_cppgen" not in sys.modules


def test_an_nvcc_of_another_cuda_than_torch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = toolkit_at(tmp_path / "cuda")
    nvcc.write_text("#!/bin/sh\necho release 13.0, V13.0.88\n")
    monkeypatch.setattr(nvcc_module, "cutlass_headers", lambda: HEADERS)
    assert isinstance(nvcc_module.find(str(nvcc), {}), Toolkit)
    assert isinstance(nvcc_module.find(str(nvcc), {}, major=13), Toolkit)
    toolkit = nvcc_module.find(str(nvcc), {}, major=12)
    assert isinstance(toolkit, NoToolkit)
    assert "is CUDA 13.0.88, but torch was built for CUDA 12" in toolkit.reason
    # The wheels of the extra bring CUDA 13: no help here.
    assert nvcc_module.INSTALL_NVCC not in toolkit.reason
    assert "toolkit of CUDA 12" in toolkit.remedy


def test_headers_of_the_standard_library_lie_beside_those_of_the_runtime_or_in_their_folder(
    tmp_path: Path,
) -> None:
    place = ToolkitPlace("PATH", toolkit_at(tmp_path, cccl=False))
    without = nvcc_module.assemble(place, "13.0.88", HEADERS, ())
    assert isinstance(without, NoToolkit)
    assert "no cuda/std headers" in without.what
    (tmp_path / "include" / "cuda" / "std").mkdir(parents=True)
    toolkit = nvcc_module.assemble(place, "13.0.88", HEADERS, ())
    assert isinstance(toolkit, Toolkit)
    assert toolkit.include_dirs == (*HEADERS[1], str(tmp_path / "include"))


def test_a_package_that_is_not_installed_has_no_folders() -> None:
    assert nvcc_module.package_folders("no_such_package_at_all") == ()
    assert nvcc_module.package_folders("this") == ()  # a module is no package
    (folder,) = nvcc_module.package_folders("pytest")
    assert folder == Path(pytest.__file__).parent


@pytest.mark.usefixtures("no_packages")
def test_where_none_can_be_used_the_reason_is_that_of_the_first(tmp_path: Path) -> None:
    home = says(toolkit_at(tmp_path / "home", major=11), "11.8.89")
    on_path = says(toolkit_at(tmp_path / "path", major=11), "11.2.67")
    environ = {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    refused = nvcc_module.find("", environ, headers=HEADERS)
    assert isinstance(refused, NoToolkit)
    assert refused.what == f"{home} is CUDA 11.8.89, CUTLASS needs 12.3"
