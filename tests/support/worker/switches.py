"""Values of torch's switches that are not their defaults."""

from __future__ import annotations

from inductor_plugin.worker.switches import SWITCHES, Switch

_OTHERS = {
    "blas_library": "cublaslt",
    "cudnn_benchmark_limit": 3,
    "cudnn_depthwise_kernel": "native",
    "sdpa_priority": "0 1 2 3 4",
    "sm_carveout": 8,
}
SETTABLE = tuple(
    switch for switch in SWITCHES if switch.name not in ("flash_attention", "cublaslt_workspace")
)
"""All but those that need a package or a GPU; see test_switches_of_torch."""


def other(switch: Switch) -> object:
    """Return a value that is not the default."""
    if isinstance(switch.default, bool):
        return not switch.default
    return _OTHERS.get(switch.name, 3 << 20)
