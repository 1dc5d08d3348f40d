"""Differences between torch 2.11 and 2.15; no other module checks torch's version."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

import sympy  # pyright: ignore[reportMissingTypeStubs]
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor_config
from torch._inductor import ir, select_algorithm
from torch._inductor import lowering as inductor_lowering
from torch._inductor.graph import GraphLowering
from torch._inductor.utils import clear_on_fresh_cache
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn.attention import SDPBackend

from inductor_plugin.errors import NAME

_ALGEBRA: Any = sympy  # untyped
_SIZES: ContextVar[dict[Any, int] | None] = ContextVar("sizes", default=None)

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


def why_not_supported() -> str | None:
    """Return why the plugin cannot work with this torch, or None if it can.

    A torch newer than the tested versions is accepted if it has the hooks the plugin needs.
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
            f"{NAME}it is tested up to torch {NEWEST[0]}.{NEWEST[1]}, this is "
            f"{torch.__version__}; where its hooks changed, stock Inductor is used",
            RuntimeWarning,
            stacklevel=3,
        )


def is_patched(name: str) -> bool:
    """Return whether a patch of Inductor's options that is in force names an option.

    The value alone does not tell: before torch 2.15 a patch that ends leaves the value from before it as if it had been
    set. But since 2.13 a patch in force has that value in a context variable. With 2.11 no patch can be found.

    Args:
        name: Inductor's option. From torch 2.15 on an assignment counts, too.
    """
    if torch_version() >= (2, 15):
        untyped: Any = inductor_config
        return not untyped._is_default(name)
    beginning = f"{inductor_config.__name__}.ConfigPatch["
    return any(
        name in before
        for variable, stack in copy_context().items()
        if variable.name.startswith(beginning)
        for before in stack
    )


def selected(node: ir.TensorBox, choice: ir.ChoiceCaller | None, kwargs: dict[str, Any]) -> Any:
    """Return what `autotune_select_algorithm` returns in this torch.

    torch 2.11 returns only the node unless ``return_choice`` is passed; later versions return a pair.
    """
    if torch_version() < (2, 13):
        return (node, choice) if kwargs.get("return_choice") else node
    return node, choice


def boxed(node: Any) -> Any:
    """Return a node as the TensorBox that lowerings expect."""
    box: Any = ir.TensorBox  # untyped
    if isinstance(node, ir.TensorBox):
        return node
    return box(node if isinstance(node, (ir.StorageBox, ir.BaseView)) else ir.StorageBox(node))


def hints(expressions: Sequence[Any]) -> tuple[int, ...]:
    """Return the sizes to measure for possibly symbolic expressions; inside `at_sizes` those sizes."""
    sizes = _SIZES.get()
    if sizes:
        expressions = [_ALGEBRA.sympify(expression).subs(sizes) for expression in expressions]
    return tuple(int(x) for x in V.graph.sizevars.optimization_hints(expressions))


@contextmanager
def at_sizes(sizes: Mapping[Any, int]) -> Generator[None]:
    """Make `hints` return other sizes inside the block.

    Args:
        sizes: Symbols and the sizes they have there.
    """
    token = _SIZES.set(dict(sizes))
    try:
        yield
    finally:
        _SIZES.reset(token)


def bounds(symbol: Any) -> tuple[int, int]:
    """Return the smallest and the largest size that a symbol may have."""
    sizevars: Any = V.graph.sizevars
    known: Any = sizevars.shape_env.bound_sympy(symbol)
    low, high = (
        int(bound) if isinstance(bound, _ALGEBRA.Integer) else None
        for bound in (known.lower, known.upper)
    )
    return low or 0, sys.maxsize if high is None else high


def is_marked_dynamic(extent: Any) -> bool:
    """Return whether the user has marked a size dynamic (`torch._dynamo.mark_dynamic`): a guard that fixes it fails the compile.

    Args:
        extent: A size as `sizevars.simplify` returns it.
    """
    sizevars: Any = V.graph.sizevars
    env, symbols = sizevars.shape_env, extent.free_symbols
    return any(
        symbols & env.replace(expression).free_symbols
        for tracked in env.tracked_fakes or ()
        if isinstance(tracked.fake, torch.Tensor)
        for size, constraint in zip(
            tracked.fake.size(),
            getattr(tracked.symbolic_context, "constraint_sizes", None) or (),
            strict=False,
        )
        if isinstance(size, torch.SymInt) and not getattr(constraint, "warn_only", True)
        # A nested tensor's ragged size has none.
        if (expression := getattr(size.node, "expr", None)) is not None
    )


def count_autotuning() -> None:
    """Count a call whose candidates are measured where stock Inductor counts it."""
    counters["inductor"]["select_algorithm_autotune"] += 1


def count_precompiling(built: int, failed: int) -> None:
    """Count the candidates of a call as stock Inductor counts those that it compiles before it measures; 2.11 to 2.15 do.

    Args:
        built: Those that were compiled, or found compiled in a cache.
        failed: Those that could not be.
    """
    counts = {
        "precompile": int(bool(built or failed)),
        "num_precompiles": built,
        "num_precompilation_exceptions": failed,
    }
    for name, count in counts.items():
        if count:
            counters["inductor"][f"select_algorithm_{name}"] += count


@functools.cache
def call_on_fresh_cache(function: Callable[[], None]) -> None:
    """Let Inductor call a function where it drops its own caches in memory (``fresh_cache``, ``clear_caches``)."""
    clear_on_fresh_cache(_Clearing(function))


@dataclass(frozen=True)
class _Clearing:
    """Has the method that `clear_on_fresh_cache` asks for."""

    cache_clear: Callable[[], None]


def strides(node: Any) -> Sequence[Any]:
    """Return the strides at run time: those of the recorded layout constraint, if there is one.

    torch 2.11 records no constraint; the node's own strides are used.
    """
    constrained: Callable[[Any], Sequence[Any]] | None = getattr(
        select_algorithm, "get_strides_with_layout_constraints", None
    )
    return constrained(node) if constrained is not None else node.get_stride()


def uses_multi_kernel_hints() -> bool:
    """Return True if the user asked for one kernel per size hint, which stock Inductor handles."""
    return bool(getattr(inductor_config, "multi_kernel_hints", None))


def is_unbacked(expression: Any) -> bool:
    """Return whether an extent depends on data and is unknown while compiling."""
    return bool(free_unbacked_symbols(expression))


def varlen_calls_cudnn(arguments: Mapping[str, Any]) -> bool | None:
    """Return whether torch's varlen operator calls cuDNN; None if it decides at run time.

    Args:
        arguments: Its arguments. torch 2.11 never calls cuDNN; from 2.15 on an argument decides.
    """
    if "backend" in arguments:
        return arguments["backend"] == SDPBackend.CUDNN_ATTENTION.value
    return False if torch_version() < (2, 13) else None


def select(
    name: str,
    choices: list[Any],
    nodes: Sequence[Any],
    layout: ir.Layout,
    generated: Mapping[int, Callable[[Any], torch.Tensor]],
) -> tuple[Any, ir.ChoiceCaller]:
    """Return the output node of the chosen kernel and the choice, decided immediately."""
    untyped: Any = select_algorithm
    extra = {"return_choice": True} if torch_version() < (2, 13) else {}
    return untyped.autotune_select_algorithm(
        name,
        choices,
        list(nodes),
        layout,
        input_gen_fns=dict(generated),
        return_multi_template=False,
        **extra,
    )


def replace_lowering(op: Any, lower: Callable[..., Any]) -> Callable[[], None]:
    """Call ``lower`` first for an operator; where it returns None, call the previous lowering.

    torch 2.13 has a table for this; in 2.11 Inductor's own entry is wrapped.

    Returns:
        A function that restores the previous lowering.
    """
    table: dict[Any, Any] | None = getattr(inductor_lowering, "user_lowerings", None)
    if table is not None:
        before = table.get(op)
        stock: Callable[..., Any] = before or (lambda *_args, **_kwargs: None)
    else:
        table = inductor_lowering.lowerings
        if op not in table:
            # A custom operator: register the fallback that Inductor creates on first use.
            untyped: Any = inductor_lowering
            tag = untyped.get_layout_constraint_tag(op, with_default=True)
            constraint = untyped.tag_to_layout_constraint(tag)
            untyped.make_fallback(op, layout_constraint=constraint, warn=False)
        before = stock = table[op]

    def lowered(*args: Any, **kwargs: Any) -> Any:
        result = lower(*args, **kwargs)
        return stock(*args, **kwargs) if result is None else result

    table[op] = lowered

    def restore() -> None:
        if table.get(op) is not lowered:
            return
        if before is None:
            del table[op]
        else:
            table[op] = before

    return restore
