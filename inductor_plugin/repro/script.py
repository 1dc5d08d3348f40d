"""Writes a record as a Python script that repeats its call. Pure; only the script needs torch.

| record | script |
|---|---|
| a product, a convolution or an attention without an epilogue | the call as a user writes it, with an exact result to \
compare with. It can be sent to PyTorch: with ``--stock`` it needs torch alone, and Inductor compiles it without this plugin |
| a product with an epilogue | the call, then the epilogue replayed from the record (`inductor_plugin.replay`): \
the plugin decides on the fusion, so the script needs it anyway |
| a call that cannot be rebuilt, or whose record has texts that are no sizes, dtypes or numbers | metadata \
only, and the reason |

What comes from the record is data: it is written as literals (`repr`), into the docstring by `_prose`, and into the
call by `call.code`.
"""

from __future__ import annotations

import pprint
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from inductor_plugin.cache import Record, report
from inductor_plugin.cache.document import inner
from inductor_plugin.cache.record import GRAPH
from inductor_plugin.device import DEVICES
from inductor_plugin.errors import printable
from inductor_plugin.problem.epilogue_text import ParsedEpilogue, load
from inductor_plugin.problem.epilogue_views import NotReplayableError, jumps, plan
from inductor_plugin.problem.product import reduction_length
from inductor_plugin.problem.tolerance import tolerance
from inductor_plugin.repro.body import BARE, IMPORTS, RUN
from inductor_plugin.repro.call import CallText, NotReproducible, call_of
from inductor_plugin.repro.operand import ODD, OperandText, operands
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

_HOW = """
Run it to make the operands again, compile the call with the record's options, see which
kernel is chosen, and compare with the exact result. It ends with 0 if the numbers are
right, with 1 if they are not. `--policy tune` measures again, `--cache-dir` names a cache,
`--register module:Class` adds a template that is no part of the plugin. `--stock`, which goes
alone, compiles with Inductor instead, and needs no plugin unless the call has an epilogue."""


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
        inputs = [] if record.op == GRAPH else operands(record.problem, record.describe)
        rebuilt = _rebuilt(record, inputs)
    except (NotReproducible, NotReplayableError) as reason:
        refused = printable(str(reason))
    except ODD as error:
        refused = printable(f"its fields are not those of {record.op}: {error}")
    if refused:
        known = [operand.fields(f"operand_{at}", at + 1) for at, operand in enumerate(inputs)]
        rebuilt = _assigned({"OPERANDS": known, "REASON": refused}) + BARE
    head = _head(record, environment, refused)
    return Script(
        f"{head}{IMPORTS}{_import_of(environment)}\n{_facts(record, environment, cache_dir)}{rebuilt}",
        refused,
    )


def _import_of(environment: Mapping[str, Any]) -> str:
    """Return the import that makes a device known to torch; empty where torch knows it, or no package describes it here."""
    source = DEVICES.source(str(inner(environment, "device").get("type", "")))
    if source is None:
        return ""
    return f"\nimport {source.reference.partition(':')[0]}  # makes {source.name} known to torch\n"


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
    text = "\n".join(map(_prose, lines))
    return f'"""{text}\n"""\n'


def _prose(text: str) -> str:
    """Return a text for one line of a docstring, which it cannot end."""
    return printable(text).replace("\\", "\\\\").replace('"""', "'''")


def _facts(record: Record, environment: Mapping[str, Any], cache_dir: str) -> str:
    decision = record.valid_decision
    numerics = inner(environment, "numerics")
    threads = inner(environment, "device").get("threads", 0)
    return _assigned(
        {
            "DESCRIBE": printable(record.describe),
            "DIGEST": record.digest,
            "WINNER": decision.winner if decision else None,
            "CACHE_DIR": cache_dir,
            "OPTIONS": {"never_slower_margin": decision.margin} if decision else {},
            "THREADS": threads if isinstance(threads, int) else 0,
            "PRECISION": str(numerics.get("float32_matmul_precision", "highest")),
            "DETERMINISTIC": numerics.get("deterministic") is True,
            "PROBLEM": record.problem,
            "EPILOGUE": dict(record.epilogue) if record.problem.get("epilogue") else None,
        }
    )


def _assigned(facts: Mapping[str, object]) -> str:
    """Return facts as assignments of literals."""
    shown = {name: pprint.pformat(value, 1, 240, sort_dicts=False) for name, value in facts.items()}
    return "".join(f"{name} = {text}\n" for name, text in shown.items())


def _rebuilt(record: Record, inputs: Sequence[OperandText]) -> str:
    """Return the part of a script that makes the call.

    Raises:
        NotReproducible: It cannot be rebuilt.
        NotReplayableError: Its epilogue cannot.
    """
    if record.op == GRAPH:
        raise NotReproducible("it is a whole graph, not a call; compile its model")
    recorded = _epilogue_of(record)
    epilogue = recorded.epilogue if recorded else None
    own = len(inputs) - len(epilogue.operands if epilogue else ())
    call = call_of(record.problem, inputs[:own])
    inputs = _with_weight(inputs, call, record.problem)
    names = (*call.names, *(f"operand{index}" for index in range(len(inputs) - own)))
    every = [
        operand.fields(name, index + 1)
        for index, (name, operand) in enumerate(zip(names, inputs, strict=True))
    ]
    if recorded:
        plan(recorded, every[own:])
    passed = [fields for fields in every if not call.gradient or fields["name"] in _PASSED]
    for fields in passed:
        if epilogue and fields["name"] in ("b", "d") and fields["dtype"] in _SCALED:
            fields["scale"] = round(max(fields["size"][-2], 1) ** -0.5, 6)
    dynamic = ("operand", "dim", "low", "high")
    output = epilogue.dtype if epilogue else record.problem["output"]["dtype"]
    outputs = [write.dtype for write in epilogue.writes] if epilogue else [output]
    if odd := [name for name in (output, *outputs) if not re.fullmatch(r"\w+", name, re.ASCII)]:
        raise NotReproducible(f"{odd[0]!r} is no dtype")
    stepped = epilogue is not None and any(map(jumps, epilogue.steps))
    longest = reduction_length(record.op, inputs[:own])
    precision = max(_tolerance(inputs, longest, outputs), _JUMPING if stepped else 0.0)
    facts = {
        "OPERANDS": passed,
        "STEP": next((fields for fields in every if fields["name"] == "do"), None),
        "DYNAMIC": [
            tuple(int(n[name]) for name in dynamic) for n in record.problem.get("dynamic", ())
        ],
        "FREEZING": any(operand.constant for operand in inputs),
        "GRADIENT": call.gradient,
        "EXACT_INTEGERS": not output.startswith(("float", "bfloat", "complex")),
        "JUMPS": stepped,
        "TOLERANCE": precision,
        "TIMES_EAGER": _TIMES_EAGER if epilogue else 0.0,
    }
    parameters = ", ".join(fields["name"] for fields in passed)
    return (
        f"{_assigned(facts)}{_functions(call, parameters, names[own:], fused=bool(epilogue))}{RUN}"
    )


def _epilogue_of(record: Record) -> ParsedEpilogue | None:
    """Return the epilogue of a record, if it has one.

    Raises:
        NotReproducible: The record does not keep it.
        ValueError: Its text is damaged.
    """
    if not record.problem.get("epilogue"):
        return None
    if record.epilogue:
        return load(record.epilogue)
    if not record.candidates:
        raise NotReproducible(
            "nothing was measured: two kernels run, for the reasons that `explain` shows"
        )
    raise NotReproducible(
        "an earlier version wrote the record, with no more of its epilogue than a signature"
    )


def _tolerance(inputs: Sequence[OperandText], longest: int, outputs: Sequence[str]) -> float:
    dtype, tf32 = inputs[0].dtype, inputs[0].device != "cpu"
    return max(tolerance(output, dtype, longest, tf32=tf32) for output in outputs)


def _functions(call: CallText, parameters: str, operands: Sequence[str], *, fused: bool) -> str:
    body, exact, text = call.body, call.exact, ""
    if fused:
        first = len(call.names)
        text = f"\nimport inductor_plugin\n\nafter = inductor_plugin.replay(EPILOGUE, OPERANDS[{first}:])\n"
        rest = "".join(f", {name}" for name in operands)
        body, exact = f"after({body}{rest})", f"after({exact}{rest}, wide=torch.float64)"
    for name, value in (("call", body), ("exact", exact)):
        text += f"\n\ndef {name}({parameters}):\n    return {value}\n"
    return text + "\n"


def _with_weight(
    inputs: Sequence[OperandText], call: CallText, problem: Mapping[str, Any]
) -> Sequence[OperandText]:
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
