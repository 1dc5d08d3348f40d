"""An `Epilogue` as text: one line of JSON in generated code, all facts in a record.

`encode` keeps the computation without sizes. `dump` keeps everything a script needs to repeat it:

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
"""Version of the text that `dump` writes; `load` refuses any other."""


@dataclass(frozen=True)
class ParsedEpilogue:
    """An epilogue as a record keeps it.

    Attributes:
        epilogue: With its sizes. Reads of one buffer have one name: ``operand0`` is the first after
            the product's own operands.
        sizes: Sizes of the tensors it writes, as stored: D transposed, or with a dimension split.
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
        "reads": [[read.pattern, read.dtype] for read in epilogue.reads],
        "steps": [[step.op, list(step.arguments), _number(step.value)] for step in epilogue.steps],
        "writes": [[write.pattern, write.dtype] for write in epilogue.writes],
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
    """Return an epilogue in full, one line for each read, write and step.

    Args:
        epilogue: The epilogue.
        sizes: Sizes of the tensors it writes, in the order of its writes.
    """
    product = {"size": epilogue.size, "readers": epilogue.readers}
    rare = {"reduction": epilogue.reduction, "atomic": epilogue.atomic, "mutates": epilogue.mutates}
    product |= {name: value for name, value in rare.items() if value}
    lines = {
        "version": TEXT_VERSION,
        "product": f"{epilogue.dtype} {epilogue.product} {_pairs(product)}",
    }
    operands = epilogue.operands
    for index, read in enumerate(epilogue.reads):
        lines[f"read {index}"] = _access_line(read, {"operand": operands.index(read.buffer)})
    for index, (write, size) in enumerate(zip(epilogue.writes, sizes, strict=True)):
        lines[f"write {index}"] = _access_line(write, {"size": size})
    for index, step in enumerate(epilogue.steps):
        value = "" if step.value is None else f" = {step.value}"
        lines[f"step {index}"] = " ".join([step.op, *map(str, step.arguments)]) + value
    return lines


def load(lines: Mapping[str, str]) -> ParsedEpilogue:
    """Return the epilogue that `dump` has written.

    Raises:
        ValueError: The text has another version, or is damaged.
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


def _access_line(access: Access, more: Mapping[str, Any]) -> str:
    facts = {**more, "elements": access.elements, "stride": access.stride, "offset": access.offset}
    facts |= {"dynamic": True} if access.dynamic else {}
    return f"{access.dtype} {access.pattern} {_pairs(facts)}"


def _access(line: str, named: str) -> Access:
    dtype, pattern, facts = _parts(line)
    return Access(
        pattern=pattern,
        dtype=dtype,
        elements=int(facts["elements"]),
        stride=_numbers(facts["stride"]),
        offset=int(facts["offset"]),
        buffer=f"{named}{facts['operand']}" if "operand" in facts else "",
        dynamic="dynamic" in facts,
    )


def _step(line: str) -> Step:
    head, _, text = line.partition(" = ")
    op, *arguments = head.split()
    return Step(op, tuple(map(int, arguments)), _read_value(op, text))


def _read_value(op: str, text: str) -> int | float | str | bool | None:
    """Return a step's value: a number if the text is one, otherwise the text (a symbolic size)."""
    if not text or op not in ("load", "store", "constant"):
        return text or None
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _pairs(facts: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_plain_text(value)}" for name, value in facts.items())


def _plain_text(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, cast("Sequence[int]", value)))
    return str(value)


def _parts(line: str) -> tuple[str, Pattern, dict[str, str]]:
    """Return dtype, pattern and the ``name=value`` pairs of a line."""
    dtype, pattern, *rest = line.split()
    pairs = (pair.partition("=") for pair in rest)
    return dtype, cast("Pattern", pattern), {name: value for name, _, value in pairs}


def _numbered(lines: Mapping[str, str], kind: str) -> list[str]:
    """Return the lines of a kind in the order of their numbers."""
    count = sum(name.partition(" ")[0] == kind for name in lines)
    return [lines[f"{kind} {index}"] for index in range(count)]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _number(value: object) -> object:
    """Return a value as JSON has it: infinities and NaN by name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _value(op: str, value: Any) -> Any:
    return float(value) if op == "constant" and isinstance(value, str) else value
