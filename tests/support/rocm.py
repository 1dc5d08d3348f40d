"""An AMD MI300X that is not here, described as a package would: lowers products for it and compiles their kernels.

`python -m tests.support.rocm FOLDER` does so in a process that takes its torch for one of ROCm from the start, since Inductor
registers other templates then, and prints what it has compiled. No kernel is run.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

from inductor_plugin.config import Config
from inductor_plugin.device import Device, Target, register
from inductor_plugin.worker.event_timer import EventTimer

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

MI300X = Target(
    name="MI300X",
    device_name="AMD Instinct MI300X",
    arch="gfx942",
    capability=(9, 4),
    multiprocessors=304,
    clock_mhz=2100,
    max_clock_mhz=2100,
    memory_bytes=192 * GIB,
    memory_bandwidth=5.3e12,
    memory_clock_mhz=2600,
    memory_bus_bits=8192,
    l2_bytes=4 * MIB,
    shared_per_multiprocessor=64 * KIB,
    shared_per_block=64 * KIB,
    registers_per_multiprocessor=128 * KIB,
    threads_per_multiprocessor=2048,
    threads_per_block=1024,
    blocks_per_multiprocessor=32,
    rates=(("bfloat16", 1307e12), ("float16", 1307e12), ("float32", 163e12), ("int8", 2615e12)),
    sources=(
        "https://www.amd.com/en/products/accelerators/instinct/mi300/mi300x.html",
        "https://rocm.docs.amd.com/en/latest/reference/gpu-arch-specs.html",
    ),
    warp_size=64,
)
"""The vector registers of a compute unit are 512 KiB, and those of its matrix cores 512 KiB more; each XCD has its own L2."""

FACTS = {"gcnArchName": "gfx942:sramecc+:xnack-"}
"""What torch's properties of it have besides the figures of the target."""

DEVICE = Device(
    lambda _device: {"name": MI300X.device_name, "arch": MI300X.arch},
    lambda: {"rocm": str(torch.version.hip)},
    EventTimer,
    target=lambda _device: MI300X,
    triton=True,
    draws=True,
)


def products() -> Any:
    """Return a model of products, and its inputs."""
    layers = (
        torch.nn.Linear(2048, 4096, bias=False, dtype=torch.bfloat16),
        torch.nn.GELU(),
        torch.nn.Linear(4096, 1024, dtype=torch.bfloat16),
    )
    return torch.nn.Sequential(*layers), [(torch.empty(16, 2048, dtype=torch.bfloat16),)]


def main(folder: Path) -> None:
    """Lower and compile, and print each problem with what was offered, compiled, failed and refused."""
    torch.version.hip = "6.4.43482"  # before Inductor is imported
    from inductor_plugin.aot.fake_device import as_target
    from inductor_plugin.aot.lower import lower_model

    register("hip", "tests.support.rocm:DEVICE")
    options = {"policy": "build", "cache_dir": str(folder), "progress": "off"}
    with as_target(MI300X, facts=FACTS):
        lowered = lower_model(products, Config.load(options, environ={}))
    findings = [
        {
            "problem": each.problem,
            "offered": Counter(each.offered),
            "kernels": len(each.kernels),
            "failed": each.failed,
            "rejected": dict(each.rejected),
        }
        for each in lowered
    ]
    print(json.dumps(findings))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
