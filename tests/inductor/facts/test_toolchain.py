"""How Inductor compiles, as values."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from torch._inductor import config as inductor_config

from inductor_plugin.inductor.facts import toolchain
from inductor_plugin.inductor.facts.toolchain import (
    CppToolchain,
    compiler_version,
    cpp_toolchain,
)

TOOLCHAIN = CppToolchain(("g++",), "g++ 12", "-O3", "avx512")


@pytest.mark.parametrize("name", ["compiler", "flags", "target"])
def test_each_fact_changes_the_digest(name: str) -> None:
    assert replace(TOOLCHAIN, **{name: "another"}).digest != TOOLCHAIN.digest


def test_paths_do_not_change_the_digest() -> None:
    assert replace(TOOLCHAIN, command=("/elsewhere/g++",)).digest == TOOLCHAIN.digest
    assert {field_.name for field_ in fields(TOOLCHAIN)} == {
        "command",
        "compiler",
        "flags",
        "target",
    }


def test_facts_do_not_run_into_each_other() -> None:
    first = replace(TOOLCHAIN, compiler="a", flags="bc")
    assert replace(TOOLCHAIN, compiler="ab", flags="c").digest != first.digest


def test_the_command_has_a_place_for_source_and_output() -> None:
    result = cpp_toolchain()
    assert sum("{source}" in word for word in result.command) == 1
    assert sum("{output}" in word for word in result.command) == 1
    assert "-w" in result.command


def test_flags_hold_what_changes_code_and_no_paths() -> None:
    result = cpp_toolchain()
    assert "-O3" in result.flags.split() or "-O2" in result.flags.split()
    assert "/" not in result.flags.split("=")[0]
    assert not any(word.startswith(("-I", "-L", "/")) for word in result.flags.split())
    assert torch.__version__ in result.compiler


def test_a_patched_option_of_inductor_is_another_toolchain() -> None:
    plain = cpp_toolchain()
    with inductor_config.patch({"cpp.enable_unsafe_math_opt_flag": True}):
        patched = cpp_toolchain()
    assert patched.digest != plain.digest
    assert cpp_toolchain() == plain


def test_a_machine_without_a_compiler_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(toolchain, "get_cpp_compiler", missing)
    compiler_version.cache_clear()
    assert compiler_version() == "none"
    compiler_version.cache_clear()


def test_triton_is_told_each_devices_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda-x")
    first, second = (dict(toolchain.triton_variables(torch.device("cuda", i))) for i in range(2))
    assert first["CUDA_HOME"] == "/usr/local/cuda-x"
    assert first["TORCHINDUCTOR_CACHE_DIR"] == second["TORCHINDUCTOR_CACHE_DIR"]
    assert first["TRITON_CACHE_DIR"] != second["TRITON_CACHE_DIR"]
    # A worker refuses variables of the plugin that are no options.
    assert not any(name.startswith("INDUCTOR_PLUGIN_") for name in first)
