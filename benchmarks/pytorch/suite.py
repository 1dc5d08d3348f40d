"""Which of PyTorch's test files run, and the two arms they run in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.child import child_environment

REPOSITORY = Path(__file__).resolve().parents[2]
STOCK, PLUGIN = "stock", "plugin"
ARMS = (STOCK, PLUGIN)
_OURS = "INDUCTOR_PLUGIN_"
_PRODUCTS = "mm or linear or conv or attention or sdpa or matmul or lstm or einsum or mlp"


@dataclass(frozen=True)
class Suite:
    """A file of PyTorch's tests.

    Attributes:
        file: Its name, in test/inductor.
        chosen: Expression for pytest's ``-k``; empty for all tests.
        environment: Variables of the plugin's arm.
        is_copied: Whether it tests a GPU: a copy of it that names the CPU runs instead (`cpu_copy`).
    """

    file: str
    chosen: str = ""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    is_copied: bool = False

    @property
    def name(self) -> str:
        """The file that runs, without its ending."""
        return self.file.removesuffix(".py") + ("_cpu" if self.is_copied else "")


_WITHOUT_ATEN = {f"{_OURS}GEMM_BACKENDS": "CPP"}
"""For tests that make ATen's kernels 1000 times slower inside Inductor's own selection: this option is its equal."""
SUITES = (
    Suite("test_cpu_select_algorithm.py", environment=_WITHOUT_ATEN),
    # "_tma", not "tma": the name of TestMaxAutotune contains that.
    Suite("test_max_autotune.py", "not (_tma or triton or blackwell)", is_copied=True),
    Suite("test_select_algorithm.py", is_copied=True),
    Suite("test_mkldnn_pattern_matcher.py"),
    Suite("test_inductor_freezing.py"),
    Suite("test_fused_attention.py"),
    Suite("test_aot_inductor.py", f"cpu and ({_PRODUCTS})"),
    Suite("test_torchinductor.py", f"Cpu and ({_PRODUCTS})"),
    Suite("test_torchinductor_dynamic_shapes.py", f"Cpu and ({_PRODUCTS})"),
    Suite("test_cpu_cpp_wrapper.py", _PRODUCTS, _WITHOUT_ATEN),  # the same tests, among others
    Suite("test_cpu_repro.py", _PRODUCTS),
    Suite("test_binary_folding.py"),
    Suite("test_efficient_conv_bn_eval.py"),
    Suite("test_pattern_matcher.py", _PRODUCTS),
    Suite("test_custom_post_grad_passes.py"),
    Suite("test_custom_lowering.py"),
    Suite("test_auto_functionalize.py", _PRODUCTS),
    Suite("test_standalone_compile.py"),
)


def environment(arm: str, suite: Suite, folder: Path, tests: Path) -> dict[str, str]:
    """Return the variables of one file in one arm.

    Args:
        arm: One of `ARMS`; both autotune.
        suite: The file.
        folder: Where the caches of the arm are.
        tests: PyTorch's folder ``test``, which its files import from.
    """
    paths = [tests, tests / "inductor", REPOSITORY]
    shared = child_environment(
        OMP_NUM_THREADS="1",
        PYTHONPATH=os.pathsep.join(map(str, paths)),
        TORCHINDUCTOR_CACHE_DIR=str(folder / arm / "inductor"),
    )
    if arm == STOCK:
        return {**shared, "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
    # PyTorch's tests count what is tuned, and a problem that another test had is not tuned again: no cache.
    ours = {
        "ENABLE": "1",
        "CACHE": "off",
        "CACHE_DIR": str(folder / arm / "plugin"),
        "PROGRESS": "off",
    }
    return {
        **shared,
        **{f"{_OURS}{name}": text for name, text in ours.items()},
        **suite.environment,
    }
