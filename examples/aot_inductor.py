"""AOTInductor: a package with the kernels that were chosen, which runs without Python and without this plugin."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from torch import nn

import inductor_plugin

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 10)).eval()
x = torch.randn(32, 128)

with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    path = torch._inductor.aoti_compile_and_package(
        torch.export.export(model, (x,)),
        package_path=str(Path(folder, "model.pt2")),
        inductor_configs=inductor_plugin.options(freezing=True),
    )
    # Here in Python; in C++ torch::inductor::AOTIModelPackageLoader loads the same file.
    program = torch._inductor.aoti_load_package(path)
    difference = (program(x) - model(x)).abs().max().item()
    print(f"package of {Path(path).stat().st_size / 1024:.0f} KiB")

seen = inductor_plugin.stats()
print(f"{seen.problems} products, {seen.benchmarked} candidates measured")
print(f"largest difference to eager: {difference:.1e}")
assert difference < 1e-3
