"""What differs between torch 2.11 and 2.15, in one place; nothing else asks for a version."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor import ir, select_algorithm
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

OLDEST = (2, 11)
NEWEST = (2, 15)

_NEEDED: tuple[tuple[object, str], ...] = (
    (select_algorithm, "AlgorithmSelectorCache"),
    (select_algorithm, "get_algorithm_selector_cache"),
    (select_algorithm, "ExternKernelCaller"),
    (ir, "MultiTemplateBuffer"),
    (GraphLowering, "_update_scheduler"),
    (inductor_config, "post_grad_custom_post_pass"),
)


def torch_version() -> tuple[int, int]:
    """Return (major, minor) of the torch that runs."""
    major, minor = str(torch.__version__).split(".")[:2]
    return int(major), int(minor)


def unsupported() -> str | None:
    """Return why the plugin cannot work with this torch, or None if it can.

    A torch newer than tested is judged by what it has: the hooks the plugin stands on.
    """
    version = torch_version()
    if version < OLDEST:
        return f"torch {torch.__version__} is older than {OLDEST[0]}.{OLDEST[1]}; upgrade torch"
    missing = [f"{owner.__name__}.{name}" for owner, name in _NEEDED if not hasattr(owner, name)]  # type: ignore[attr-defined]
    if missing:
        return f"torch {torch.__version__} lacks {', '.join(missing)}; upgrade inductor-plugin"
    return None


def warn_if_untested() -> None:
    """Warn once about a torch newer than the newest tested one."""
    if torch_version() > NEWEST:
        warnings.warn(
            f"inductor-plugin is tested up to torch {NEWEST[0]}.{NEWEST[1]}, this is "
            f"{torch.__version__}; where its hooks changed, stock Inductor is used",
            RuntimeWarning,
            stacklevel=3,
        )


def selected(node: ir.TensorBox, choice: ir.ChoiceCaller | None, kwargs: dict[str, Any]) -> Any:
    """Return what `autotune_select_algorithm` returns in this torch.

    torch 2.11 returns the node alone unless ``return_choice`` is given; later ones return a pair.
    """
    if torch_version() < (2, 13):
        return (node, choice) if kwargs.get("return_choice") else node
    return node, choice


def hints(expressions: Sequence[Any]) -> tuple[int, ...]:
    """Return the sizes to measure for possibly symbolic expressions."""
    return tuple(int(x) for x in V.graph.sizevars.optimization_hints(expressions))


def strides(node: Any) -> Sequence[Any]:
    """Return the strides that will run: those of the recorded layout constraint, where there is one.

    torch 2.11 has no such record; there the node's own strides are what runs.
    """
    constrained: Callable[[Any], Sequence[Any]] | None = getattr(
        select_algorithm, "get_strides_with_layout_constraints", None
    )
    return constrained(node) if constrained is not None else node.get_stride()


def uses_multi_kernel_hints() -> bool:
    """Return True if the user asked for one kernel per size hint, which stock handles."""
    return bool(getattr(inductor_config, "multi_kernel_hints", None))
