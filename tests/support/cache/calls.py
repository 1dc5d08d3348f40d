"""Records of calls that a script can make again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inductor_plugin.cache.record import Record
from inductor_plugin.problem.epilogue import Access, Epilogue, Step
from inductor_plugin.problem.epilogue_text import dump
from tests.support.cache.records import decision, measured, record

OPERAND: dict[str, Any] = {
    "size": [2, 2],
    "stride": [2, 1],
    "dtype": "float32",
    "device": "cpu",
    "offset": 0,
    "layout": "strided",
    "constant": False,
}


def known(op: str, count: int, operand: dict[str, Any] = OPERAND, **arguments: str) -> Record:
    """Return a record whose call can be rebuilt."""
    problem = {
        "schema": 2,
        "op": op,
        "inputs": [operand] * count,
        "output": operand,
        "arguments": [[name, text] for name, text in arguments.items()],
        "epilogue": "",
        "dynamic": [],
    }
    shape = "x".join(map(str, operand["size"]))
    bare = record(measured("fast", 1.0), op=op, decision=decision("fast"))
    describe = f"{op}({', '.join([shape] * count)})"
    return replace(bare, problem=problem, describe=describe, rejected={"cutlass": "no"})


def fused() -> Record:
    row = Access("row", "float32", 2, (0, 1), 0, "operand0")
    epilogue = Epilogue(
        size=(2, 2),
        dtype="float32",
        steps=(
            Step("product", (), None),
            Step("load", (), 0),
            Step("add", (0, 1), None),
            Step("to_dtype", (2,), "float16"),
            Step("store", (3,), 0),
        ),
        reads=(row,),
        writes=(Access("full", "float16", 4, (2, 1), 0),),
        readers=0,
    )
    bare = known("mm", 3)
    inputs = [OPERAND, OPERAND, {**OPERAND, "size": [2], "stride": [1]}]
    problem = {**bare.problem, "inputs": inputs, "epilogue": "add-1"}
    written = dump(epilogue, [(2, 2)])
    return replace(bare, problem=problem, describe="mm(2x2, 2x2, 2) + add", epilogue=written)
