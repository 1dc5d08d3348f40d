"""Writes a record as a Python script that repeats its call. Pure; only the script needs torch.

| record | script |
|---|---|
| a product, a convolution or an attention without an epilogue | the call as a user writes it. With ``--stock`` \
Inductor compiles it without this plugin, so that faults of PyTorch can be reported there |
| a product with an epilogue | the call, and the epilogue replayed from the record (`inductor_plugin.replay`): \
the plugin decides on the fusion, so the script needs it anyway |
| a call that cannot be rebuilt, or whose record has texts that are no sizes, dtypes or numbers | metadata \
only, and the reason |

What comes from the record is data: only what `gate` returns becomes code.
"""

from __future__ import annotations

import pprint
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from inductor_plugin.cache import Record, report
from inductor_plugin.cache.document import inner
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.problem.epilogue_text import load
from inductor_plugin.problem.tolerance import tolerance
from inductor_plugin.repro import gate
from inductor_plugin.repro.body import BARE, IMPORTS, READ, RUN
from inductor_plugin.repro.call import CallText, Refused, call_of
from inductor_plugin.repro.epilogue import EpilogueText, epilogue_of
from inductor_plugin.repro.operand import OperandText, operands
from inductor_plugin.version import __version__

_PASSED = frozenset({"q", "k", "v", "bias"})
"""Operands passed to an attention; it writes the others, or its gradient reads them."""
_SCALED = frozenset({"float16", "bfloat16", "float32", "float64"})
"""Dtypes of factors that are scaled before an epilogue, so that products are of order one: there an
activation is not linear, and nothing overflows."""
_TIMES_EAGER = 2.0
"""Accepted error of a product with an epilogue, as a multiple of eager's: if two kernels won, they round in
between as eager does, and an exponential may amplify that without bound."""
_JUMPING = 1e-2
"""Accepted error if a value next to a threshold may fall on either side: errors are then root mean squares,
to which few elements contribute little. If all elements are off by one step, int8 has more than 0.03."""

_ODD = (KeyError, ValueError, TypeError, AttributeError, IndexError, SyntaxError, RecursionError)
"""Errors of reading fields that are not those of the operator: a record can hold anything."""
_HOW = """
Run it to make the operands again, compile the call with the record's options, see which
kernel is chosen, and compare with the exact result. It ends with 0 if the numbers are
right, with 1 if they are not. `--policy tune` measures again, `--cache-dir` names a cache,
`--register module:Class` adds a template that is no part of the plugin, `--stock` compiles
with Inductor alone."""


@dataclass(frozen=True)
class Script:
    """A generated script.

    Attributes:
        text: The script.
        refused: Why it has metadata only; empty if it makes the call.
    """

    text: str
    refused: str


def script(record: Record, environment: Mapping[str, Any], cache_dir: str) -> Script:
    """Return the script of a record.

    Args:
        record: The record.
        environment: The fields of its environment.
        cache_dir: The cache of the record, in which the script looks for it.
    """
    refused = rebuilt = ""
    inputs: list[OperandText] = []
    try:
        _check_op(record)
        gate.describe(record.describe)
        inputs = operands(record.problem, record.describe)
        rebuilt = _rebuilt(record, inputs)
    except Refused as reason:
        refused = report.printable(str(reason))
    except _ODD as error:
        refused = report.printable(f"its fields are not those of {record.op}: {error}")
    if refused:
        known = [operand.fields(f"operand_{at}", at + 1) for at, operand in enumerate(inputs)]
        rebuilt = _assigned({"OPERANDS": known, "REASON": refused}) + BARE
    head = _head(record, environment, refused)
    return Script(f"{head}{IMPORTS}\n{_facts(record, environment, cache_dir)}{rebuilt}", refused)


def _check_op(record: Record) -> None:
    if record.op == GRAPH:
        raise Refused("it is a whole graph, not a call; compile its model")


def _head(record: Record, environment: Mapping[str, Any], refused: str) -> str:
    lines = [
        f"One call, alone: {record.describe}.",
        "",
        f"Written by inductor-plugin {__version__} from record {record.place}.",
    ]
    metadata = f"The call cannot be rebuilt, so this is metadata only: {refused}."
    lines += ["", metadata] if refused else _HOW.splitlines()
    device = inner(environment, "device").get("name", "an unknown device")
    lines += ["", f"Measured on {device}:", ""]
    lines += [f"    {line}" for line in report.candidates_text(record).splitlines()]
    if record.rejected:
        lines += ["", "Not offered:", ""]
        lines += [f"    {name}: {why}" for name, why in sorted(record.rejected.items())]
    text = "\n".join(map(gate.prose, lines))
    return f'"""{text}\n"""\n'


def _facts(record: Record, environment: Mapping[str, Any], cache_dir: str) -> str:
    decision = record.valid_decision
    numerics = inner(environment, "numerics")
    threads = inner(environment, "device").get("threads", 0)
    return _assigned(
        {
            "DESCRIBE": report.printable(record.describe),
            "DIGEST": record.digest,
            "WINNER": decision.winner if decision else None,
            "CACHE_DIR": cache_dir,
            "OPTIONS": {"never_slower_margin": decision.margin} if decision else {},
            "THREADS": threads if isinstance(threads, int) else 0,
            "PRECISION": str(numerics.get("float32_matmul_precision", "highest")),
            "PROBLEM": record.problem,
            "EPILOGUE": dict(record.epilogue) if record.problem.get("epilogue") else None,
        }
    )


def _assigned(facts: Mapping[str, object]) -> str:
    """Return facts as assignments of literals."""
    shown = {name: pprint.pformat(value, 1, 240, sort_dicts=False) for name, value in facts.items()}
    return "".join(f"{name} = {text}\n" for name, text in shown.items())


def _rebuilt(record: Record, inputs: list[OperandText]) -> str:
    """Return the part of a script that makes the call.

    Raises:
        Refused: It cannot be rebuilt.
    """
    problem, epilogue = record.problem, None
    if problem.get("epilogue"):
        if not record.epilogue and not record.candidates:
            raise Refused(
                "nothing was measured: two kernels run, for the reasons that `explain` shows"
            )
        if not record.epilogue:
            raise Refused(
                "an earlier version wrote the record, with no more of its epilogue than a signature"
            )
        recorded = load(record.epilogue)
        own = len(inputs) - len({access.buffer for access in recorded.epilogue.reads})
        call = call_of(problem, inputs[:own])
        epilogue = epilogue_of(recorded, inputs[own:])
    else:
        call = call_of(problem, inputs)
    inputs = _with_weight(inputs, call, problem)
    names = (*call.names, *(epilogue.names if epilogue else ()))
    every = [
        operand.fields(name, index + 1)
        for index, (name, operand) in enumerate(zip(names, inputs, strict=True))
    ]
    passed = [fields for fields in every if not call.gradient or fields["name"] in _PASSED]
    for fields in passed:
        if epilogue and fields["name"] in ("b", "d") and fields["dtype"] in _SCALED:
            fields["scale"] = round(fields["size"][-2] ** -0.5, 6)
    dynamic = ("operand", "dim", "low", "high")
    output = epilogue.dtype if epilogue else gate.dtype(problem["output"]["dtype"])
    precision = _tolerance(inputs, epilogue.outputs if epilogue else (output,))
    facts = {
        "OPERANDS": passed,
        "STEP": next((fields for fields in every if fields["name"] == "do"), None),
        "DYNAMIC": [tuple(int(n[name]) for name in dynamic) for n in problem.get("dynamic", ())],
        "FREEZING": any(operand.constant for operand in inputs),
        "GRADIENT": call.gradient,
        "EXACT_INTEGERS": not output.startswith(("float", "bfloat", "complex")),
        "JUMPS": bool(epilogue and epilogue.jumps),
        "TOLERANCE": max(precision, _JUMPING) if epilogue and epilogue.jumps else precision,
        "TIMES_EAGER": _TIMES_EAGER if epilogue else 0.0,
    }
    parameters = ", ".join(fields["name"] for fields in passed)
    functions = _functions(call, epilogue, parameters)
    return f"{_assigned(facts)}OUTPUT = torch.{output}\n{functions}{RUN}"


def _tolerance(inputs: list[OperandText], outputs: tuple[str, ...]) -> float:
    longest = max((operand.size[-1] for operand in inputs if operand.size), default=1)
    dtype, tf32 = inputs[0].dtype, inputs[0].device != "cpu"
    return max(tolerance(output, dtype, longest, tf32=tf32) for output in outputs)


def _functions(call: CallText, epilogue: EpilogueText | None, parameters: str) -> str:
    body, exact, text = call.body, call.exact, ""
    if epilogue:
        text = "\nimport inductor_plugin\n\nepilogue = inductor_plugin.replay(EPILOGUE)\n"
        text += READ if epilogue.readers > 1 else ""
        operands = ", ".join(("", *epilogue.names))
        lines = "\n    ".join(epilogue.lines)
        text += f"\n\ndef after(product{operands}, wide=None):\n    {lines}\n"
        body, exact = f"after({body}{operands})", f"after({exact}{operands}, wide=WIDE)"
    for name, value in (("call", body), ("exact", exact)):
        text += f"\n\ndef {name}({parameters}):\n    return {value}\n"
    return text + "\n"


def _with_weight(
    inputs: list[OperandText], call: CallText, problem: Mapping[str, Any]
) -> list[OperandText]:
    """Return the operands with opaque ones replaced by a plain weight.

    Raises:
        ValueError: The weight's extents are not known.
    """
    if not any(operand.opaque for operand in inputs):
        return inputs
    written: Any = problem["output"]["size"]
    plain = dict(zip(call.names, inputs, strict=False))
    if "weight" in plain:
        size = plain["weight"].size
    elif not isinstance(written, int):
        size = (int(written[-1]), inputs[0].size[-1])
    elif "bias" in plain:  # of a dynamic problem's output only the rank is known
        size = (plain["bias"].size[0], inputs[0].size[-1])
    else:
        raise ValueError("neither an output's size nor a bias says how wide the packed weight is")
    return [
        replace(operand, size=size, stride=(size[1], 1)) if operand.opaque else operand
        for operand in inputs
    ]
