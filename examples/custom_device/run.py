"""Tunes a small model on the NPU. A second process measures nothing."""

import torch
import toy_npu.backend  # noqa: F401  makes the device known to torch

import inductor_plugin

torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(256, 384, bias=False), torch.nn.ReLU(), torch.nn.Linear(384, 64, bias=False)
).to("npu")
x = torch.randn(32, 256).to("npu")

compiled = torch.compile(model, options=inductor_plugin.options())
with torch.no_grad():
    error = (compiled(x).cpu() - model(x).cpu()).abs().max().item()
print("same numbers:", error < 1e-4)
stats = inductor_plugin.stats()
print(f"{stats.problems} products, {stats.record_hits} of them known")
print("candidates measured:", stats.benchmarked)
