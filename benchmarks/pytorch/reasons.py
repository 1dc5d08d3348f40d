"""Why tests of PyTorch differ though the plugin is right. It decides no result, so results stay valid when it changes."""

from __future__ import annotations

from collections.abc import Mapping

_NO_KERNEL = "it allows Triton alone, which has no kernel for a CPU: Inductor raises NoValidChoicesError, the plugin takes the library kernel"
_IN_AOT = "test_aot_inductor.py::AOTInductorTestABICompatibleCpu::test_"
_IN_AUTOTUNE = "test_max_autotune_cpu.py::TestMaxAutotune::test_"
KNOWN: Mapping[str, str] = dict.fromkeys(
    (
        f"{_IN_AOT}addmm_multiple_dynamic_cpu",
        f"{_IN_AOT}bmm_multiple_dynamic_cpu",
        f"{_IN_AUTOTUNE}autotune_conv1x1",
        f"{_IN_AUTOTUNE}cat_addmm",
        f"{_IN_AUTOTUNE}inf_timing_multi_template_False",
        f"{_IN_AUTOTUNE}inf_timing_multi_template_True",
    ),
    _NO_KERNEL,
)
"""The reason by a test's id."""
