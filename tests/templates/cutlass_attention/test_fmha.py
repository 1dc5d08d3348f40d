"""Which attentions CUTLASS takes, with which kernels, and how the wheel's text becomes theirs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.ops import imports_of
from inductor_plugin.problem import Problem
from inductor_plugin.problem.attention import Mask, attention_of
from inductor_plugin.problem.target import target
from inductor_plugin.template import CudaSource, Template
from inductor_plugin.templates import BUILTIN
from inductor_plugin.templates.cutlass import source as cutlass_source
from inductor_plugin.templates.cutlass_attention import fmha
from inductor_plugin.templates.cutlass_attention import source as attention_source
from inductor_plugin.templates.cutlass_attention.config import FmhaConfig
from inductor_plugin.templates.cutlass_attention.fmha import CutlassFmha, configs
from inductor_plugin.templates.cutlass_attention.patch import (
    BACKWARD,
    FORWARD,
    Edit,
    Header,
    patched,
)
from inductor_plugin.templates.cutlass_attention.source import source
from tests.support.attention.problems import attention, changed
from tests.support.repository import REPOSITORY

SOURCE = REPOSITORY / "templates" / "cutlass_attention" / "source"
TEMPLATE = CutlassFmha()


def rejected(problem: Problem) -> str:
    reason = TEMPLATE.reject(problem)
    assert reason is not None
    assert TEMPLATE.candidates(problem) == ()
    return reason


def named(problem: Problem) -> list[str]:
    assert TEMPLATE.reject(problem) is None
    return [candidate.name for candidate in TEMPLATE.candidates(problem)]


def test_it_is_a_template_and_registered() -> None:
    assert isinstance(TEMPLATE, Template)
    assert [template.name for template in BUILTIN].count("cutlass_fmha") == 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("dim", [32, 64, 96, 128, 192, 256])
def test_every_head_has_kernels_that_fit(dim: int, dtype: str) -> None:
    problem = attention(dim=dim, dtype=dtype)
    shortlist = configs(attention_of(problem), target("H100"))
    assert 2 <= len(shortlist) <= 3
    assert {config.dim for config in shortlist} == {next(d for d in (32, 64, 128, 256) if d >= dim)}
    assert {config.element for config in shortlist} == {"f16" if dtype == "float16" else "bf16"}
    assert all(config.shared_bytes <= target("H100").shared_per_block for config in shortlist)
    assert len(set(named(problem))) == len(shortlist)


@pytest.mark.parametrize("dim", [16, 64, 80, 128, 192, 256])
def test_every_head_of_8_bits_has_kernels_that_fit(dim: int) -> None:
    problem = attention(dim=dim, dtype="float8_e4m3fn")
    shortlist = configs(attention_of(problem), target("H100"))
    assert 2 <= len(shortlist) <= 3
    assert {config.dim for config in shortlist} == {next(d for d in (64, 128, 256) if d >= dim)}
    assert {config.element for config in shortlist} == {"e4m3"}
    assert all(config.shared_bytes <= target("H100").shared_per_block for config in shortlist)
    assert len(set(named(problem))) == len(shortlist)


def test_only_v_of_8_bits_is_turned() -> None:
    (text, *_) = (source(setting) for setting in configs(attention_of(attention()), target("H100")))
    assert "struct Turn " not in text
    assert "kWeightBits = 0;" in text
    narrow = attention_of(attention(dtype="float8_e4m3fn"))
    for config in configs(narrow, target("H100")):
        text = source(config)
        assert "struct Turn " in text
        assert "kWeightBits = 8;" in text
        assert text.count("scale * local_max - static_cast<MaxType>(kWeightBits)") == 2
        assert text.count("__logf(sum) - kWeightBits * ") == 1
        assert text.count("prepare_v(call, stream)) return status") == 1


@pytest.mark.parametrize(("dim", "rows"), [(32, [64, 128]), (64, [64]), (72, [64]), (128, [64])])
def test_the_backward_has_kernels_up_to_128(dim: int, rows: list[int]) -> None:
    shortlist = configs(attention_of(attention(dim=dim, backward=True)), target("H100"))
    assert [config.rows for config in shortlist] == rows
    assert all(config.backward and config.columns == 128 for config in shortlist)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (attention(gpu="A100"), "A100 is sm_80"),
        (attention(gpu="B200"), "B200 is sm_100a"),
        (replace(attention(), target=None), "NVIDIA GPUs"),
        (replace(attention(), op="mm"), "mm is no attention"),
        (attention(softcap=20.0), "no soft-cap"),
        (attention(dtype="float32"), "not for float32"),
        (attention(dtype="float8_e5m2"), "not for float8_e5m2"),
        (attention(dtype="float8_e4m3fn", backward=True), "has no gradient"),
        (attention(dtype="float8_e4m3fn", dim=72), "multiples of 16 up to 256, not 72"),
        (
            changed(attention(dtype="float8_e4m3fn"), "output", dtype="float8_e4m3fn"),
            "writes bfloat16",
        ),
        (
            changed(attention(dtype="float8_e4m3fn"), "k", offset=8),
            "k: it must begin at a multiple of 16",
        ),
        (attention(scale=0.0), "scale must be positive"),
        (attention(scale=-0.5), "scale must be positive"),
        (attention(dim=100), "not 100"),
        (attention(dim=264), "up to 256, not 264"),
        (attention(dim=136, backward=True), "backward heads are multiples of 8 up to 128"),
        (attention(heads=16, kv_heads=3), "16 heads of q cannot share 3"),
        (attention(queries=16, keys=4096), "16 queries"),
        (attention(batch=65536, heads=1, queries=32), "65535"),
        (changed(attention(), "v", dtype="float16"), "v is float16, q is bfloat16"),
        (changed(attention(), "output", dtype="float32"), "the result is float32"),
        (changed(attention(), "lse", dtype="bfloat16"), "lse is bfloat16"),
        (changed(attention(), "lse", stride=(32768, 2048, 2)), "lse: it must be dense"),
        (changed(attention(), "k", offset=4), "k: it must begin"),
        (changed(attention(), "k", stride=(4194304, 1, 16, 2048)), "last dimension"),
        (changed(attention(), "q", stride=(4194304, 262144, 132, 1)), "q: its strides"),
        (changed(attention(), "k", stride=(0, 262144, 128, 1)), "must not overlap"),
        (changed(attention(), "k", stride=(2**31, 262144, 128, 1)), "nor pass"),
        (changed(attention(backward=True), "dq", offset=1), "dq: it must begin"),
        (changed(attention(backward=True), "delta", offset=2), "delta: it must begin"),
        (changed(attention(), "v", size=(2, 16, 2048, 64)), "of one size"),
        (changed(attention(), "k", size=(2, 16, 0, 128)), "no keys"),
    ],
)
def test_what_it_cannot_run_has_a_reason(problem: Problem, reason: str) -> None:
    assert reason in rejected(problem)


def with_operands(problem: Problem, names: str) -> Problem:
    """Return a problem that has operands of these names too, one for each."""
    extra = tuple(names.split(","))
    by_name = dict(problem.arguments)
    listed = ",".join((*by_name["operands"].strip("'").split(","), *extra))
    arguments = tuple({**by_name, "operands": repr(listed)}.items())
    counts = replace(problem.inputs[-1], size=(3,), stride=(1,), dtype="int32")
    return replace(problem, inputs=(*problem.inputs, *[counts] * len(extra)), arguments=arguments)


def test_bias_and_lengths_have_a_reason() -> None:
    plain = attention(lse=False)
    assert "adds no bias" in rejected(with_operands(plain, "bias"))
    assert "cu_seqlens" in rejected(with_operands(plain, "cu_q,cu_k"))


@pytest.mark.parametrize("backward", [False, True])
def test_views_whose_rows_tma_can_move_are_taken(backward: bool) -> None:
    problem = attention(backward=backward)
    transposed = changed(problem, "q", stride=(4194304, 128, 2048, 1))
    assert TEMPLATE.reject(transposed) is None
    # The stride of an extent of 1 is never used.
    single = attention(batch=1, backward=backward)
    assert TEMPLATE.reject(changed(single, "k", stride=(3, 262144, 128, 1))) is None
    # Unless other sizes are to come.
    symbolic = changed(single, "k", stride=(3, 262144, 128, 1), divisors=(1, 16, 16, 1, 16))
    assert "k: its strides" in rejected(symbolic)


def test_a_call_says_what_is_not_compiled_in() -> None:
    mask = Mask(left=127, right=0, bottom_right=True)
    for problem, op in (
        (attention(mask=mask), "cutlass_fmha"),
        (attention(mask=mask, lse=False), "cutlass_fmha_output"),
        (attention(mask=mask, backward=True), "cutlass_fmha_backward"),
    ):
        kernels = [candidate.kernel for candidate in TEMPLATE.candidates(problem)]
        assert kernels
        for kernel in kernels:
            assert isinstance(kernel, CudaSource)
            assert kernel.op == f"inductor_plugin::{op}.out"
            assert kernel.arguments == (0.125, 127, 0, True)
            assert kernel.arch == "sm_90a"
            assert imports_of(kernel.op) == ("inductor_plugin.attention.cutlass",)


def test_masks_sizes_and_scales_share_a_kernel() -> None:
    def texts(problem: Problem) -> set[str]:
        kernels: Any = [candidate.kernel for candidate in TEMPLATE.candidates(problem)]
        return {kernel.text for kernel in kernels}

    other = attention(mask=Mask(right=0), scale=0.5, queries=777, keys=1234, heads=8, kv_heads=2)
    assert texts(attention()) == texts(other)


def test_the_order_follows_mask_and_tiles() -> None:
    large, few = attention(), attention(batch=1, heads=1)
    causal = attention(mask=Mask(right=0))
    narrow = attention(mask=Mask(left=30, right=0), queries=512, keys=8192)
    assert "128x128x128_pingpong" in named(large)[0]
    assert "128x128x128_cooperative" in named(few)[0]
    assert "128x128x128_cooperative" in named(causal)[0]
    assert "128x64x128" in named(narrow)[0]


def test_names_are_unique_and_stable() -> None:
    plain = FmhaConfig(backward=False, rows=128, columns=64, dim=128, element="bf16")
    others = [
        replace(plain, rows=64),
        replace(plain, columns=128),
        replace(plain, dim=64),
        replace(plain, element="f16"),
        replace(plain, schedule="pingpong"),
        replace(plain, stages=4),
        replace(plain, backward=True),
    ]
    assert plain.name == "cutlass_fmha_sm90_128x64x128_cooperative_bf16_stages5"
    assert replace(plain, backward=True).name == "cutlass_fmha_backward_sm90_128x64x128_bf16"
    assert len({plain.name, *(other.name for other in others)}) == len(others) + 1


def test_each_edit_is_found_as_often_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "a.hpp").write_text(
        "#pragma once\n#include <x>\nnamespace cutlass::fmha::collective {\none two two three\n}\n"
    )

    def text(*edits: Edit) -> str:
        return patched(Header("a.hpp", edits), tmp_path)

    assert text() == "namespace patched {\none two two three\n}\n"
    assert (
        text(Edit("one", "1"), Edit("two", "2", times=2)) == "namespace patched {\n1 2 2 three\n}\n"
    )
    assert text(Edit("one", "", until="three")) == "namespace patched {\nthree\n}\n"
    with pytest.raises(ValueError, match=r"a\.hpp has not 1 times 'two'"):
        text(Edit("two", "2"))
    with pytest.raises(ValueError, match="has not 1 times 'four'"):
        text(Edit("four", "4"))
    with pytest.raises(ValueError, match="has not once 'two'"):
        text(Edit("one", "", until="two"))


def test_a_wheel_of_another_text_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "examples" / "88_hopper_fmha" / "collective"
    folder.mkdir(parents=True)
    (folder / Path(FORWARD.path).name).write_text("namespace cutlass::fmha::collective {}")
    (tmp_path / "include").mkdir()

    def include() -> Path:
        return tmp_path / "include"

    monkeypatch.setattr(attention_source, "include_folder", include)
    attention_source.why_not_usable.cache_clear()
    try:
        reason = rejected(attention())
    finally:
        monkeypatch.undo()
        attention_source.why_not_usable.cache_clear()
    assert "nvidia-cutlass is another one" in reason
    assert FORWARD.path in reason


def test_without_the_wheel_a_kernel_of_a_pack_is_still_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing() -> None:
        return None

    monkeypatch.setattr(attention_source, "include_folder", missing)
    caches: list[Any] = [
        attention_source.why_not_usable,
        attention_source.installed,
        fmha._text,  # pyright: ignore[reportPrivateUsage]
    ]
    for cache in caches:
        cache.cache_clear()
    try:
        kernels: Any = [candidate.kernel for candidate in TEMPLATE.candidates(attention())]
    finally:
        monkeypatch.undo()
        for cache in caches:
            cache.cache_clear()
    assert kernels
    assert {kernel.text for kernel in kernels} == {""}
    assert all(kernel.symbol and kernel.interface for kernel in kernels)


def test_other_kernels_keep_their_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of the attention files is no reason to build matrix products anew."""
    for path in SOURCE.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = cutlass_source.interface(), attention_source.interface()
    monkeypatch.setattr(attention_source, "_SOURCE", tmp_path)

    def after() -> tuple[str, str]:
        cutlass_source.interface.cache_clear()
        attention_source.interface.cache_clear()
        return cutlass_source.interface(), attention_source.interface()

    try:
        assert after() == before
        (tmp_path / "call.h").write_text("//")
        changed_once = after()
        assert changed_once[0] == before[0]
        assert changed_once[1] != before[1]
    finally:
        monkeypatch.undo()
        after()


class TestText:
    """What is generated from the installed wheel."""

    @pytest.fixture(autouse=True)
    def _the_wheel(self) -> None:
        pytest.importorskip("cutlass_library", reason="needs nvidia-cutlass")

    def test_the_wheel_is_the_one_the_edits_are_for(self) -> None:
        assert attention_source.why_not_usable() is None

    @pytest.mark.parametrize("header", [FORWARD, BACKWARD])
    def test_edited_text_keeps_its_license(self, header: Header) -> None:
        include = attention_source.include_folder()
        assert include is not None
        text = patched(header, include / ".." / "examples" / "88_hopper_fmha")
        assert "SPDX-License-Identifier: BSD-3-Clause" in text
        assert "#include" not in text
        assert "Fusion{}" not in text.partition("namespace patched {")[2]

    def test_includes_come_first_and_nothing_is_left_open(self) -> None:
        config = FmhaConfig(backward=True, rows=64, columns=128, dim=128, element="f16")
        text = attention_source.source(config)
        lines = text.splitlines()
        last = max(at for at, line in enumerate(lines) if line.startswith("#include"))
        assert all(line.startswith("#include") for line in lines[:last])
        assert "@" not in text.partition("SPDX")[0]
        assert (
            text.count(f'extern "C" __attribute__((visibility("default"))) int32_t {config.name}(')
            == 1
        )
        assert "cutlass::half_t" in text
