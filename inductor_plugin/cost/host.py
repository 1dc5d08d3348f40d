"""What a call costs where the host has to launch it: the longer of its times on device and host. Pure.

After a launch that takes the host longer than the kernel takes the device, the device waits for the next one: a kernel of
8 us with a launch of 20 us costs a model 20 us. In a CUDA graph the host launches nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

HOST_FIELD = "host_ms"
"""Field of a measurement's provenance: milliseconds the host took to launch a call; absent if not known."""

PYTHON_FIELD = "launched_by_python"
"""Field of a measurement's provenance: true where Python launched a kernel that has a call site (`ops.sites`)."""


def host_ms(provenance: Mapping[str, object]) -> float:
    """Return milliseconds the host took to launch a call, 0 if that is not known."""
    value = provenance.get(HOST_FIELD)
    return float(value) if isinstance(value, (int, float)) and value > 0 else 0.0


def costs(device_ms: Mapping[str, float], launches_ms: Mapping[str, float]) -> dict[str, float]:
    """Return milliseconds that each candidate costs, its time on the device where its launch is not known.

    If a candidate whose launch is not known could be the fastest, the times on the device decide for all.

    Args:
        device_ms: Milliseconds on the device.
        launches_ms: Milliseconds the host takes to launch; 0, or none, where it is not known.
    """
    known = {n: max(ms, launch) for n, ms in device_ms.items() if (launch := launches_ms.get(n))}
    best = min(known.values(), default=0.0)
    if any(ms < best for name, ms in device_ms.items() if name not in known):
        return dict(device_ms)
    return {**device_ms, **known}


def sample_costs(
    samples_ms: Mapping[str, Sequence[float]], launches_ms: Mapping[str, float]
) -> dict[str, tuple[float, ...]]:
    """Return what each sample costs, where its candidate's launch is known."""
    return {
        name: tuple(max(ms, launches_ms.get(name, 0.0)) for ms in samples)
        for name, samples in samples_ms.items()
    }
