"""One process that compiles a small graph on the device, and prints what the plugin had to do."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false, reportMissingTypeStubs=false
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportCallIssue=false

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch

import inductor_plugin

# Registers the name in a checkout, where it is not installed.
importlib.import_module("inductor_plugin.backend")


def main() -> None:
    """Compile, compare, report; the cache directory is the only argument."""
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(a, b).relu(), b.t())

    options: dict[str, Any] = {"cache_dir": sys.argv[1], "max_candidates": 4, "table": "off"}
    answer = torch.compile(function, backend="inductor_plugin", options=options)(a, b).float()
    expected = function(a.float(), b.float())
    error = (answer - expected).square().mean().sqrt() / expected.square().mean().sqrt()
    json.dump({"error": float(error), **inductor_plugin.stats().to_dict()}, sys.stdout)


if __name__ == "__main__":
    main()
