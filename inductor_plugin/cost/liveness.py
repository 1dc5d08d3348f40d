"""Number of an epilogue's values that are live in registers at once, per element of the tile. Pure.

A chain of simple operations is computed element by element, and no value stays live. A value occupies a
register (half a register if it has 16 bits) for each element of a thread's part of the tile if

- it is used before and after a call of libdevice (erf, tanh ...): those are computed for all elements
  at once;
- it is loaded before a column operand changes its layout, through shared memory and barriers;
- there are several outputs, which are computed together and stored one after the other;
- operands are prefetched.
"""

from __future__ import annotations

from inductor_plugin.problem.definition import item_bytes
from inductor_plugin.problem.epilogue import Epilogue

HALF = 0.5
"""Registers of a value with 16 bits."""
AHEAD = 2
"""Number of operands that are prefetched."""
ROW = 0.25
"""Registers of a row operand that is prefetched: elements of one column share it."""
NARROW = {"float8_e4m3fn": 0.75, "float8_e5m2": 0.75, "int8": 0.5, "uint8": 0.5}
"""Registers of an output of 8 bits, four elements of which are packed."""
OPERANDS, OUTPUT = 0.25, 0.25
"""Registers of operands, and of each further output, that are live across a call of libdevice."""
SIMPLE = 0.375
"""Registers of a simple output: part of the elements are computed before their store."""
LOOP = 1.0
"""Additional registers of a persistent kernel while columns change layout: its sums are not rounded yet."""

LIBRARY: dict[str, float] = {
    **dict.fromkeys(("erf", "erfc", "tanh", "sinh", "cosh", "sin", "cos", "tan"), 1.0),
    **dict.fromkeys(("asin", "acos", "atan", "asinh", "acosh", "atanh"), 1.0),
    "log1p": 1.25,
    **dict.fromkeys(("pow", "atan2", "hypot", "fmod", "lgamma", "digamma", "erfinv"), 2.25),
}
"""Registers of an element inside a libdevice function: the value and its intermediate values."""
SPECIAL = frozenset({"exp", "exp2", "expm1", "sigmoid", "log", "log2", "truediv", "rsqrt", "sqrt"})
"""Operations of long latency, so that those of several outputs overlap."""
_LATE = SPECIAL | LIBRARY.keys()
_ARITHMETIC = ("mul", "add", "sub", "fma")
_LEAVES = ("product", "load")


def live_values(epilogue: Epilogue, *, persistent: bool = False, chained: bool = False) -> float:
    """Return the most registers of an element of the tile that any schedule needs.

    Args:
        epilogue: The epilogue that is fused.
        persistent: Whether the kernel continues with another tile.
        chained: Whether dependent libdevice functions overlap.
    """
    merged = epilogue.merged
    columns = _across_columns(merged)
    if columns and persistent:
        columns += LOOP
    return max(_across_library(merged, chained=chained), columns, _across_stores(merged))


def asked_ahead(epilogue: Epilogue, plenty: float = 0.0) -> float:
    """Return the registers of an element if enough are free to prefetch operands.

    Args:
        epilogue: The epilogue that is fused.
        plenty: Registers of an element if there is anything to prefetch and registers are plentiful.
    """
    shares = [
        ROW if read.pattern == "row" else HALF
        for read in epilogue.reads
        if read.pattern in ("full", "row")
    ]
    shares += [NARROW[write.dtype] for write in epilogue.writes if write.dtype in NARROW]
    return max(HALF + sum(sorted(shares)[-AHEAD:]), plenty if _prefetches(epilogue.merged) else 0.0)


def longest_chain(epilogue: Epilogue) -> int:
    """Return the length of the longest chain of dependent additions and multiplications."""
    depth: list[int] = []
    for step in epilogue.merged.steps:
        before = max((depth[at] for at in step.arguments), default=0)
        depth.append(before + (step.op in _ARITHMETIC))
    return max(depth, default=0)


def _across_library(epilogue: Epilogue, *, chained: bool) -> float:
    """Return the registers live across a call of libdevice, those of the function included."""
    steps = epilogue.steps
    calls = [at for at, step in enumerate(steps) if step.op in LIBRARY]
    if not calls:
        return 0.0
    most = 0.0
    for at in calls:
        later = [it for it in calls if it > at]
        # Two independent functions are computed together.
        apart = [it for it in later if chained or at not in needed(epilogue, it)]
        overlapping = LIBRARY[steps[apart[0]].op] if apart else 0.0
        most = max(most, _live_across(epilogue, at) + LIBRARY[steps[at].op] + overlapping)
    held = OPERANDS * any(read.pattern != "scalar" for read in epilogue.reads)
    return most + held + OUTPUT * (len(_stores(epilogue)) - 1)


def _live_across(epilogue: Epilogue, at: int) -> int:
    """Return how many values exist before a step and are used after it.

    Simple values are recomputed from their leaves when they are used, and a value that has not been
    loaded occupies no register.
    """
    steps = epilogue.steps
    last = {value: late for late, step in enumerate(steps) for value in step.arguments}
    needs = [needed(epilogue, step) for step in range(at + 1)]
    here = {value for value in range(at) if last.get(value, 0) > at}
    late = {value for value in here if any(steps[step].op in _LATE for step in needs[value])}
    read = {step for step in needs[at] if steps[step].op in _LEAVES}
    simple = here - late
    leaves = {leaf for value in simple for leaf in needs[value] & read}
    return len(late) + min(len(simple), len(leaves))


def _across_columns(epilogue: Epilogue) -> float:
    """Return the registers live while column operands change layout: all loaded operands."""
    if not any(read.pattern == "column" for read in epilogue.reads):
        return 0.0
    shares = [
        min(item_bytes(read.dtype), 4) / 4 for read in epilogue.reads if read.pattern != "scalar"
    ]
    return HALF + sum(shares)


def _across_stores(epilogue: Epilogue) -> float:
    """Return the registers live where there are several outputs."""
    stores = _stores(epilogue)
    if len(stores) < 2:
        return 0.0
    live = HALF + HALF * sum(read.pattern == "full" for read in epilogue.reads)
    for at in stores:
        special = any(epilogue.steps[step].op in _LATE for step in needed(epilogue, at))
        live += 1.0 if special else SIMPLE
    return live


def _prefetches(epilogue: Epilogue) -> bool:
    """Return whether anything is prefetched where registers are plentiful.

    A single operand of the product's size and dtype is loaded as the product is stored, not before.
    """
    large = [read for read in epilogue.reads if read.pattern == "full"]
    special = (at for at, step in enumerate(epilogue.steps) if step.op in SPECIAL)
    return (
        len(large) > 1
        or any(item_bytes(read.dtype) != item_bytes(epilogue.dtype) for read in large)
        or any(read.pattern == "row" for read in epilogue.reads)
        or any(write.dtype in NARROW for write in epilogue.writes)
        or any(_live_across(epilogue, at) for at in special)
    )


def needed(epilogue: Epilogue, value: int) -> set[int]:
    """Return the steps that a value depends on, its own included."""
    steps: set[int] = set()
    todo = [value]
    while todo:
        step = todo.pop()
        if step not in steps:
            steps.add(step)
            todo.extend(epilogue.steps[step].arguments)
    return steps


def _stores(epilogue: Epilogue) -> list[int]:
    return [at for at, step in enumerate(epilogue.steps) if step.op == "store"]
