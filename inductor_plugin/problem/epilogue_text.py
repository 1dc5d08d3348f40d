"""An `Epilogue` as text: in one line as generated code carries it, and in full as a record keeps it.

`encode` says what is computed, not on which sizes. `dump` says all that a script needs to do it again:

    version   1
    product   bfloat16 full size=1024,2048 readers=0
    read 0    bfloat16 row operand=0 elements=2048 stride=0,1 offset=0
    write 0   bfloat16 full size=1024,2048 elements=2097152 stride=2048,1 offset=0
    step 0    product
    step 1    load = 0
    step 2    add 0 1
    step 3    store 2 = 0
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

from inductor_plugin.problem.epilogue import Access, Epilogue, Pattern, Step

TEXT_VERSION = "1"
"""Of what `dump` writes; text of another version is not read."""


@dataclass(frozen=True)
class ParsedEpilogue:
    """An epilogue as a record keeps it.

    Attributes:
        epilogue: With its sizes. Reads of one buffer have one name: ``operand0`` is the first behind
            the product's own operands.
        sizes: Of what it writes, as it lies in memory: D turned, or with a dimension split.
    """

    epilogue: Epilogue
    sizes: tuple[tuple[int, ...], ...]


def encode(epilogue: Epilogue) -> str:
    """Return an epilogue as JSON; sizes, strides and names are left out.

    Example: ``{"dtype":"bfloat16","readers":0,"reads":[["row","bfloat16"]], ...}``.
    """
    plain = {
        "dtype": epilogue.dtype,
        "readers": epilogue.readers,
        "reads": [[one.pattern, one.dtype] for one in epilogue.reads],
        "steps": [[one.op, list(one.arguments), _number(one.value)] for one in epilogue.steps],
        "writes": [[one.pattern, one.dtype] for one in epilogue.writes],
    }
    return json.dumps(plain, separators=(",", ":"), sort_keys=True, allow_nan=False)


def decode(text: str) -> Epilogue:
    """Return the epilogue that `encode` has written; it has no sizes."""
    plain: dict[str, Any] = json.loads(text)
    return Epilogue(
        size=(),
        dtype=plain["dtype"],
        steps=tuple(
            Step(op, tuple(arguments), _value(op, value)) for op, arguments, value in plain["steps"]
        ),
        reads=tuple(Access(pattern, dtype, 0) for pattern, dtype in plain["reads"]),
        writes=tuple(Access(pattern, dtype, 0) for pattern, dtype in plain["writes"]),
        readers=plain["readers"],
    )


def dump(epilogue: Epilogue, sizes: Sequence[Sequence[int]]) -> dict[str, str]:
    """Return an epilogue in full, one line for each thing it reads, writes and computes.

    Args:
        epilogue: The epilogue.
        sizes: Of what it writes, in the order of its writes.
    """
    product = {"size": epilogue.size, "readers": epilogue.readers}
    rare = {"reduction": epilogue.reduction, "atomic": epilogue.atomic, "mutates": epilogue.mutates}
    product |= {name: value for name, value in rare.items() if value}
    lines = {
        "version": TEXT_VERSION,
        "product": f"{epilogue.dtype} {epilogue.product} {_pairs(product)}",
    }
    operands = list(dict.fromkeys(one.buffer for one in epilogue.reads))
    for index, one in enumerate(epilogue.reads):
        lines[f"read {index}"] = _access_line(one, {"operand": operands.index(one.buffer)})
    for index, (one, size) in enumerate(zip(epilogue.writes, sizes, strict=True)):
        lines[f"write {index}"] = _access_line(one, {"size": size})
    for index, step in enumerate(epilogue.steps):
        value = "" if step.value is None else f" = {step.value}"
        lines[f"step {index}"] = " ".join([step.op, *map(str, step.arguments)]) + value
    return lines


def load(lines: Mapping[str, str]) -> ParsedEpilogue:
    """Return what `dump` has written.

    Raises:
        ValueError: It is of another version, or damaged.
    """
    if lines.get("version") != TEXT_VERSION:
        raise ValueError(f"its epilogue is noted in form {lines.get('version')!r}, not 1")
    try:
        dtype, pattern, product = _parts(lines["product"])
        reads = [_access(line, "operand") for line in _numbered(lines, "read")]
        writes = [_access(line, "write") for line in _numbered(lines, "write")]
        sizes = tuple(_numbers(_parts(line)[2]["size"]) for line in _numbered(lines, "write"))
        return ParsedEpilogue(
            Epilogue(
                size=_numbers(product["size"]),
                dtype=dtype,
                steps=tuple(_step(line) for line in _numbered(lines, "step")),
                reads=tuple(reads),
                writes=tuple(writes),
                readers=int(product["readers"]),
                reduction=product.get("reduction", ""),
                product=pattern,
                atomic="atomic" in product,
                mutates="mutates" in product,
            ),
            sizes,
        )
    except (KeyError, IndexError) as error:
        raise ValueError(f"its note of the epilogue lacks {error}") from error


def _access_line(one: Access, more: Mapping[str, Any]) -> str:
    told = {**more, "elements": one.elements, "stride": one.stride, "offset": one.offset}
    told |= {"dynamic": True} if one.dynamic else {}
    return f"{one.dtype} {one.pattern} {_pairs(told)}"


def _access(line: str, named: str) -> Access:
    dtype, pattern, told = _parts(line)
    return Access(
        pattern=pattern,
        dtype=dtype,
        elements=int(told["elements"]),
        stride=_numbers(told["stride"]),
        offset=int(told["offset"]),
        buffer=f"{named}{told['operand']}" if "operand" in told else "",
        dynamic="dynamic" in told,
    )


def _step(line: str) -> Step:
    head, _, text = line.partition(" = ")
    op, *arguments = head.split()
    return Step(op, tuple(map(int, arguments)), _read_value(op, text))


def _read_value(op: str, text: str) -> int | float | str | bool | None:
    """Return a step's value: its number if it has one, a size that is none as its name."""
    if not text or op not in ("load", "store", "constant"):
        return text or None
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _pairs(told: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_plain_text(value)}" for name, value in told.items())


def _plain_text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, cast("Sequence[int]", value)))
    return str(value)


def _parts(line: str) -> tuple[str, Pattern, dict[str, str]]:
    """Return dtype, pattern and the named rest of a line."""
    dtype, pattern, *rest = line.split()
    pairs = (one.partition("=") for one in rest)
    return dtype, cast("Pattern", pattern), {name: value for name, _, value in pairs}


def _numbered(lines: Mapping[str, str], kind: str) -> list[str]:
    """Return the lines of a kind in the order of their numbers."""
    count = sum(name.partition(" ")[0] == kind for name in lines)
    return [lines[f"{kind} {index}"] for index in range(count)]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one)


def _number(value: object) -> object:
    """Return a value as JSON has it: infinities and NaN by name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _value(op: str, value: Any) -> Any:
    return float(value) if op == "constant" and isinstance(value, str) else value
