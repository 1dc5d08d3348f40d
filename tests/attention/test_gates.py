"""Which of the library's attention kernels can compute an attention, and why the others cannot."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from inductor_plugin.attention import flash_wheel
from inductor_plugin.attention.gates import PACKAGES, DispatchContext
from inductor_plugin.attention.library import KERNELS
from inductor_plugin.config import Config
from inductor_plugin.problem.attention import Attention, Mask
from tests.support.attention.problems import PLAIN

H100 = DispatchContext(capability=(9, 0), square=True, cudnn=92400)
H100_APART = replace(H100, square=False)
LONG = replace(PLAIN, queries=256, keys=64)
PACKED = replace(PLAIN, operands=("q", "k", "v", "cu_q", "cu_k"))
CAUSAL, AT_END = Mask(-1, 0), Mask(-1, 0, bottom_right=True)


def refused(
    name: str, attention: Attention = PLAIN, context: DispatchContext = H100, **facts: Any
) -> str:
    """Return why a kernel cannot compute an attention with these facts, empty if it can."""
    return KERNELS[name].why_not(replace(attention, **facts), context) or ""


@pytest.mark.parametrize(
    ("name", "attention", "setting", "reason"),
    [
        ("flash", PLAIN, H100, None),
        ("flash", replace(PLAIN, mask=CAUSAL), H100, None),
        ("flash", replace(PLAIN, mask=CAUSAL, keys=300), replace(H100, square=False), "begins at"),
        ("flash", replace(PLAIN, mask=AT_END, keys=300), replace(H100, square=False), None),
        ("flash", replace(PLAIN, kv_heads=2), H100, None),
        ("flash", replace(PLAIN, kv_heads=3), H100, "no multiple of 3"),
        ("flash", replace(PLAIN, dtype="float32"), H100, "float32"),
        ("flash", replace(PLAIN, head_dim=60, value_dim=60), H100, "multiples of 8"),
        ("flash", replace(PLAIN, value_dim=128), H100, "values of 128"),
        ("flash", replace(PLAIN, operands=("q", "k", "v", "bias")), H100, "a bias"),
        ("flash", replace(PLAIN, softcap=3.0), H100, "soft cap"),
        ("flash", PLAIN, replace(H100, capability=(7, 5)), "7.5"),
        ("flash", PLAIN, DispatchContext(), "not known"),
        (
            "flash",
            replace(PLAIN, backward=True, head_dim=256, value_dim=256),
            replace(H100, capability=(8, 9)),
            "do not fit",
        ),
        ("flash_window", replace(PLAIN, mask=Mask(100, 0, bottom_right=True)), H100, None),
        ("flash_window", replace(LONG, mask=Mask(10, 0, True)), H100_APART, None),
        ("flash_window", replace(LONG, mask=Mask(10, -1, True)), H100_APART, "more queries"),
        ("flash_window", replace(LONG, mask=Mask(-1, 64, True)), H100_APART, "more queries"),
        ("flash_window", replace(PLAIN, mask=Mask(10, -1, True)), H100_APART, None),
        (
            "flash_window",
            replace(PLAIN, mask=Mask(10, -1, True)),
            replace(H100_APART, dynamic=True),
            "beyond all keys",
        ),
        ("flash_window", replace(PLAIN, mask=Mask(10, -1)), replace(H100, dynamic=True), None),
        ("flash_varlen", replace(PACKED, mask=Mask(10, -1, True)), H100_APART, "beyond all keys"),
        ("flash_varlen", replace(PACKED, mask=Mask(10, 0, True)), H100_APART, None),
        ("efficient", PLAIN, H100, None),
        ("efficient", replace(PLAIN, dtype="float32", head_dim=60, value_dim=60), H100, None),
        ("efficient", replace(PLAIN, kv_heads=2), H100, "share a key head"),
        (
            "efficient",
            replace(PLAIN, mask=AT_END),
            replace(H100, square=False),
            "ends at the last key",
        ),
        ("efficient", replace(PLAIN, mask=Mask(9, 9)), H100, "a window"),
        (
            "efficient",
            replace(PLAIN, operands=("q", "k", "v", "bias")),
            replace(H100, aligned_bias=False),
            "not aligned",
        ),
        ("efficient", PLAIN, replace(H100, bias_dtype="float32", wide_bias=False), None),
        (
            "efficient",
            replace(PLAIN, operands=("q", "k", "v", "bias")),
            replace(H100, bias_dtype="bfloat16"),
            None,
        ),
        (
            "efficient",
            replace(PLAIN, operands=("q", "k", "v", "bias")),
            replace(H100, bias_dtype="float32"),
            "a float32 bias of bfloat16 operands",
        ),
        (
            "efficient",
            replace(PLAIN, operands=("q", "k", "v", "bias")),
            replace(H100, wide_bias=False),
            "the same for all keys",
        ),
        (
            "efficient",
            replace(PLAIN, backward=True),
            replace(H100, deterministic=True),
            "deterministic",
        ),
        ("cudnn", replace(PLAIN, kv_heads=2, mask=CAUSAL), H100, None),
        (
            "cudnn",
            replace(PLAIN, operands=("q", "k", "v", "bias")),
            replace(H100, bias_dtype="float32"),
            "a float32 bias of bfloat16 operands",
        ),
        ("cudnn", PLAIN, replace(H100, cudnn=0), "no cuDNN"),
        ("cudnn", PLAIN, replace(H100, dynamic=True), "a plan for each"),
        ("cudnn", PLAIN, replace(H100, deterministic=True), "deterministic"),
        ("cudnn", replace(PLAIN, head_dim=256, value_dim=256), H100, None),
        (
            "cudnn",
            replace(PLAIN, head_dim=256, value_dim=256),
            replace(H100, capability=(8, 0)),
            "up to 128",
        ),
        ("cudnn", replace(PLAIN, keys=1), H100, "a single key"),
        ("cudnn", replace(PLAIN, backward=True, keys=192), H100, "NaN"),
        ("cudnn", replace(PLAIN, backward=True, keys=192), replace(H100, cudnn=92600), None),
        ("flash3", PLAIN, H100, "cannot be imported"),
        ("flash3", PLAIN, replace(H100, packages=frozenset({"flash_attn_interface"})), None),
        ("flash4", PLAIN, replace(H100, packages=frozenset({"flash_attn.cute"})), None),
        (
            "flash3",
            PLAIN,
            replace(H100, capability=(8, 0), packages=frozenset({"flash_attn_interface"})),
            "(9,)",
        ),
    ],
)
def test_who_can_compute_what(
    name: str, attention: Attention, setting: DispatchContext, reason: str | None
) -> None:
    refusal = KERNELS[name].why_not(attention, setting)
    assert (refusal is None) if reason is None else (reason in str(refusal)), refusal


BIASED = ("q", "k", "v", "bias")
WIDE: dict[str, Any] = {"head_dim": 256, "value_dim": 256}
WHEELS = replace(H100, packages=frozenset({"flash_attn_interface", "flash_attn.cute"}))
OFFERED = [name for name, kernel in KERNELS.items() if kernel.replaces]


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn"])
def test_a_kernel_runs_on_the_first_gpu_that_has_it(name: str) -> None:
    assert refused(name, context=replace(H100, capability=(8, 0))) == ""
    assert "compute capability 7.5, it needs 8.0" in refused(
        name, context=replace(H100, capability=(7, 5))
    )


@pytest.mark.parametrize("name", ["flash", "efficient", "cudnn", "flash3", "flash4"])
def test_a_scale_that_is_not_positive_is_refused(name: str) -> None:
    assert refused(name, context=WHEELS, scale=1e-6) == ""
    for scale in (0.0, -0.125):
        assert f"a scale of {scale}" in refused(name, context=WHEELS, scale=scale)


def test_types_are_those_of_the_kernel() -> None:
    for name in ("flash", "cudnn"):
        assert refused(name, dtype="float16") == ""
        assert refused(name, dtype="float32") == "float32 operands"
    assert refused("efficient", dtype="float32") == ""
    assert refused("efficient", dtype="float64") == "float64 operands"
    for name in ("flash3", "flash4"):
        assert refused(name, context=WHEELS, dtype="float32") == "float32 operands"


@pytest.mark.parametrize(
    ("name", "dtype", "dims", "refusal"),
    [
        ("flash", "bfloat16", (256, 256), ""),
        ("flash", "bfloat16", (264, 264), "multiples of 8 up to 256"),
        ("efficient", "float32", (60, 64), ""),
        ("efficient", "float32", (62, 64), "multiples of 4"),
        ("efficient", "bfloat16", (60, 64), "multiples of 8"),
        ("efficient", "bfloat16", (64, 60), "multiples of 8"),
        ("cudnn", "bfloat16", (64, 60), "multiples of 8"),
        ("cudnn", "bfloat16", (64, 264), "up to 256"),
        ("flash3", "bfloat16", (256, 256), ""),
        ("flash3", "bfloat16", (264, 264), "heads of 264"),
        ("flash3", "bfloat16", (60, 60), "heads of 60"),
        ("flash3", "bfloat16", (64, 128), "different length"),
    ],
)
def test_heads_are_those_of_the_kernel(
    name: str, dtype: str, dims: tuple[int, int], refusal: str
) -> None:
    why = refused(name, context=WHEELS, dtype=dtype, head_dim=dims[0], value_dim=dims[1])
    assert refusal in why
    assert bool(refusal) == bool(why)


def test_gradients_of_wide_heads_fit_three_gpus() -> None:
    wide: dict[str, Any] = {"backward": True, **WIDE}
    for capability in ((8, 0), (9, 0), (10, 0)):
        assert refused("flash", context=replace(H100, capability=capability), **wide) == ""
    small = replace(H100, capability=(8, 9))
    assert "do not fit this GPU" in refused("flash", context=small, **wide)
    assert refused("flash", context=small, **WIDE) == ""
    assert refused("flash", context=small, backward=True, head_dim=192, value_dim=192) == ""


@pytest.mark.parametrize("name", ["efficient", "cudnn"])
def test_a_mask_that_begins_at_the_first_key_has_no_window(name: str) -> None:
    assert refused(name, mask=CAUSAL) == ""
    assert refused(name, mask=CAUSAL, context=replace(H100, square=False)) == ""
    assert refused(name, mask=AT_END) == ""
    assert refused(name, mask=AT_END, context=replace(H100, square=False)) != ""
    for mask in (Mask(-1, 3), Mask(3, 0), Mask(3, -1)):
        assert refused(name, mask=mask) == "a window"


@pytest.mark.parametrize("name", ["flash", "flash_window", "flash3"])
def test_a_mask_that_ends_at_the_last_key_begins_at_the_first_of_square_ones(name: str) -> None:
    apart = replace(WHEELS, square=False)
    assert refused(name, context=apart) == ""
    assert refused(name, mask=AT_END, context=apart) == ""
    assert refused(name, mask=CAUSAL, context=WHEELS) == ""
    assert "begins at the first key" in refused(name, mask=CAUSAL, context=apart)


@pytest.mark.parametrize("name", OFFERED)
def test_a_kernel_takes_the_mask_whose_diagonal_is_where_the_table_says(name: str) -> None:
    apart = replace(WHEELS, square=False)
    assert (refused(name, mask=AT_END, context=apart) == "") is KERNELS[name].diagonal_at_end
    assert (refused(name, mask=CAUSAL, context=apart) == "") is not KERNELS[name].diagonal_at_end


def test_a_kernel_that_is_offered_has_a_backend_of_the_option() -> None:
    (option,) = (each for each in fields(Config) if each.name == "attention_backends")
    backends = {kernel.backend for kernel in KERNELS.values() if kernel.replaces}
    assert backends <= {*option.metadata["choices"]}
    assert {kernel.backend for kernel in KERNELS.values() if not kernel.replaces} == {""}


def test_a_kernel_of_a_package_needs_the_module_that_its_call_imports() -> None:
    kernels = [kernel for kernel in KERNELS.values() if kernel.defined_by == flash_wheel.__name__]
    assert {kernel.name for kernel in kernels} == PACKAGES.keys()
    for name, module in PACKAGES.items():
        assert refused(name, context=replace(H100, packages=frozenset({module}))) == ""
        others = replace(H100, packages=frozenset(PACKAGES.values()) - {module})
        assert "cannot be imported" in refused(name, context=others)


def test_a_bias_and_a_cap_are_for_some_kernels() -> None:
    rough = replace(WHEELS, aligned_bias=False)
    for name in ("flash", "flash3", "flash4"):
        assert refused(name, context=WHEELS, operands=BIASED) == "a bias"
    for name in ("efficient", "cudnn"):
        assert refused(name, operands=BIASED) == ""
        assert "not aligned" in refused(name, context=rough, operands=BIASED)
        assert refused(name, context=rough) == ""
    for name in ("flash", "efficient", "cudnn"):
        assert refused(name, softcap=3.0) == "a soft cap"


def test_what_has_to_be_deterministic_leaves_efficient_its_forward() -> None:
    steady = replace(H100, deterministic=True)
    assert refused("efficient", context=steady) == ""
    assert "deterministic" in refused("efficient", context=steady, backward=True)
    assert refused("flash", context=steady, backward=True) == ""


@pytest.mark.parametrize(("cudnn", "refusal"), [(91000, ""), (90900, "up to 128")])
def test_wide_heads_need_a_newer_cudnn(cudnn: int, refusal: str) -> None:
    why = refused("cudnn", context=replace(H100, cudnn=cudnn), **WIDE)
    assert refusal in why
    assert bool(refusal) == bool(why)


@pytest.mark.parametrize(
    ("context", "facts", "hit"),
    [
        (H100, {"keys": 64}, True),
        (H100, {"keys": 128}, False),
        (H100, {"keys": 256}, False),
        (H100, {"keys": 192, "mask": CAUSAL}, False),
        (H100, {"keys": 192, "backward": False}, False),
        (replace(H100, capability=(8, 0)), {"keys": 192}, False),
        (replace(H100, cudnn=92599), {"keys": 192}, True),
        (replace(H100, cudnn=92600), {"keys": 192}, False),
    ],
)
def test_gradients_that_cudnn_may_spoil_are_those_of_its_bug(
    context: DispatchContext, facts: dict[str, Any], hit: bool
) -> None:
    attention = replace(PLAIN, **{"backward": True, **facts})
    assert ("may make NaN" in refused("cudnn", attention, context)) is hit


def test_a_package_is_for_the_gpus_it_names() -> None:
    for name, majors in (("flash3", (9,)), ("flash4", (9, 10))):
        for major in (8, 9, 10, 12):
            why = refused(name, context=replace(WHEELS, capability=(major, 0)))
            assert (why == "") == (major in majors)
        assert "major compute capability" in refused(name, context=replace(WHEELS, capability=None))
        assert refused(name, context=WHEELS, backward=True) == "gradients"


def test_the_option_names_the_backends_that_are_asked() -> None:
    flash_alone = replace(WHEELS, backends=("FLASH",))
    for name in ("flash", "flash_window", "flash3", "flash4"):
        assert refused(name, context=flash_alone) == ""
    assert refused("cudnn", context=flash_alone) == "attention_backends is FLASH, without CUDNN"
    others = replace(WHEELS, backends=("CUDNN", "EFFICIENT"))
    assert refused("efficient", context=others) == ""
    assert refused("flash3", context=others) == (
        "attention_backends is CUDNN,EFFICIENT, without FLASH"
    )
