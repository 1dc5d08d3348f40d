"""How many values of an epilogue wait in registers at once, for each element of the tile. Pure.

A chain of simple operations is done for one element after the other, and nothing waits. A value takes a
register (half of one where it has 16 bits) in each element of a thread's part of the tile where

- it is needed before and after a function of CUDA's library (erf, tanh ...): those are computed for all
  elements at once;
- it is loaded before a column operand is turned: that goes through shared memory, behind barriers;
- there are several outputs, which are computed together and stored one after the other;
- operands are asked for ahead of their use.
"""

from __future__ import annotations

from inductor_plugin.problem.epilogue import BYTES, Epilogue

HALF = 0.5
"""Register of a value with 16 bits."""
AHEAD = 2
"""Operands that are asked for ahead of their use."""
ROW = 0.25
"""Register of a row operand that is asked for ahead: elements of one column share it."""
NARROW = {"float8_e4m3fn": 0.75, "float8_e5m2": 0.75, "int8": 0.5, "uint8": 0.5}
"""Registers of an output of 8 bits, four elements of which are put together."""
OPERANDS, OUTPUT = 0.25, 0.25
"""Registers of operands, and of each further output, that a function of CUDA's library holds up."""
SIMPLE = 0.375
"""Register of a simple output: part of the elements are computed before their store."""
LOOP = 1.0
"""Register that a persistent kernel holds more while columns are turned: its sums are not rounded yet."""

LIBRARY: dict[str, float] = {
    **dict.fromkeys(("erf", "erfc", "tanh", "sinh", "cosh", "sin", "cos", "tan"), 1.0),
    **dict.fromkeys(("asin", "acos", "atan", "asinh", "acosh", "atanh"), 1.0),
    "log1p": 1.25,
    **dict.fromkeys(("pow", "atan2", "hypot", "fmod", "lgamma", "digamma", "erfinv"), 2.25),
}
"""Registers an element takes inside a function of CUDA's library: the value, or its parts as well."""
SPECIAL = frozenset({"exp", "exp2", "expm1", "sigmoid", "log", "log2", "truediv", "rsqrt", "sqrt"})
"""Operations whose results come late, so that several outputs' are under way together."""
_LATE = SPECIAL | LIBRARY.keys()
_ARITHMETIC = ("mul", "add", "sub", "fma")
_LEAVES = ("product", "load")


def live_values(epilogue: Epilogue, *, persistent: bool = False, chained: bool = False) -> float:
    """Return how many registers an element of the tile takes at most, whatever the order.

    Args:
        epilogue: What is fused.
        persistent: Whether the kernel goes on with another tile.
        chained: Whether functions of CUDA's library overlap that need each other.
    """
    merged = epilogue.merged
    columns = _across_columns(merged)
    if columns and persistent:
        columns += LOOP
    return max(_across_library(merged, chained=chained), columns, _across_stores(merged))


def asked_ahead(epilogue: Epilogue, plenty: float = 0.0) -> float:
    """Return how many an element takes where they are there: operands are asked for ahead of their use.

    Args:
        epilogue: What is fused.
        plenty: Registers an element takes with anything to ask for, where there are many.
    """
    shares = [
        ROW if read.pattern == "row" else HALF
        for read in epilogue.reads
        if read.pattern in ("full", "row")
    ]
    shares += [NARROW[write.dtype] for write in epilogue.writes if write.dtype in NARROW]
    return max(HALF + sum(sorted(shares)[-AHEAD:]), plenty if _waits(epilogue.merged) else 0.0)


def longest_chain(epilogue: Epilogue) -> int:
    """Return how many additions and multiplications an element needs one after the other."""
    depth: list[int] = []
    for step in epilogue.merged.steps:
        before = max((depth[at] for at in step.arguments), default=0)
        depth.append(before + (step.op in _ARITHMETIC))
    return max(depth, default=0)


def _across_library(epilogue: Epilogue, *, chained: bool) -> float:
    """Return what waits for a function of CUDA's library, the function's own values included."""
    steps = epilogue.steps
    calls = [at for at, step in enumerate(steps) if step.op in LIBRARY]
    if not calls:
        return 0.0
    most = 0.0
    for at in calls:
        later = [it for it in calls if it > at]
        # Two functions that do not need each other are computed side by side.
        apart = [it for it in later if chained or at not in needed(epilogue, it)]
        beside = LIBRARY[steps[apart[0]].op] if apart else 0.0
        most = max(most, _waiting(epilogue, at) + LIBRARY[steps[at].op] + beside)
    held = OPERANDS * any(one.pattern != "scalar" for one in epilogue.reads)
    return most + held + OUTPUT * (len(_stores(epilogue)) - 1)


def _waiting(epilogue: Epilogue, at: int) -> int:
    """Return how many values are there before a step and needed after it.

    What is simple is computed from its leaves when it is needed, and a value that has not been loaded
    occupies no register.
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
    """Return what is loaded while column operands are turned: all of it, as wide as it is."""
    if not any(one.pattern == "column" for one in epilogue.reads):
        return 0.0
    shares = [
        min(BYTES.get(one.dtype, 4), 4) / 4 for one in epilogue.reads if one.pattern != "scalar"
    ]
    return HALF + sum(shares)


def _across_stores(epilogue: Epilogue) -> float:
    """Return what is under way where there are several outputs."""
    stores = _stores(epilogue)
    if len(stores) < 2:
        return 0.0
    live = HALF + HALF * sum(one.pattern == "full" for one in epilogue.reads)
    for at in stores:
        special = any(epilogue.steps[one].op in _LATE for one in needed(epilogue, at))
        live += 1.0 if special else SIMPLE
    return live


def _waits(epilogue: Epilogue) -> bool:
    """Return whether anything is asked for ahead where registers are plenty.

    A lone operand of the product's size and type comes as the product is stored, and waits not.
    """
    large = [one for one in epilogue.reads if one.pattern == "full"]
    special = (at for at, one in enumerate(epilogue.steps) if one.op in SPECIAL)
    return (
        len(large) > 1
        or any(BYTES.get(one.dtype, 4) != BYTES.get(epilogue.dtype, 4) for one in large)
        or any(one.pattern == "row" for one in epilogue.reads)
        or any(one.dtype in NARROW for one in epilogue.writes)
        or any(_waiting(epilogue, at) for at in special)
    )


def needed(epilogue: Epilogue, value: int) -> set[int]:
    """Return the steps that a value is computed by, its own included."""
    found: set[int] = set()
    todo = [value]
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo.extend(epilogue.steps[one].arguments)
    return found


def _stores(epilogue: Epilogue) -> list[int]:
    return [at for at, one in enumerate(epilogue.steps) if one.op == "store"]
