"""Compiles a function whose generated code checks what its kernels write."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def checked(function: Callable[..., Any], cache_dir: Path, **options: Any) -> Callable[..., Any]:
    options = {"cache_dir": str(cache_dir), "check_outputs": "nonfinite", **options}
    dynamic = options.pop("dynamic", None)
    return torch.compile(function, backend="inductor_plugin", options=options, dynamic=dynamic)
