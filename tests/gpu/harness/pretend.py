"""A pytest plugin: this process believes that it has a Hopper, as far as collecting tests and building kernels go."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import torch

from tests.gpu.harness import results

FACTS = {"gpu": "pretended", "driver": "", "torch": "", "triton": "", "dry": True, "sources": ""}


def pytest_load_initial_conftests() -> None:
    """Answer for the device that is not there."""
    torch.cuda.is_available = lambda: True
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    torch.cuda.synchronize = lambda device=None: None
    results.machine = lambda: FACTS
