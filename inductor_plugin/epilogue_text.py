"""An `Epilogue` as one line of text, as generated code carries it: what it computes, not on which sizes."""

from __future__ import annotations

import json
import math
from typing import Any

from inductor_plugin.epilogue import Access, Epilogue, Step


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


def _number(value: object) -> object:
    """Return a value as JSON has it: infinities and NaN by name."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _value(op: str, value: Any) -> Any:
    return float(value) if op == "constant" and isinstance(value, str) else value
