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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from inductor_plugin.cache import Record, report
from inductor_plugin.problem.epilogue_text import load
from inductor_plugin.problem.tolerance import tolerance
from inductor_plugin.repro import gate
from inductor_plugin.repro.body import BARE, READ, RUN
from inductor_plugin.repro.call import CallText, call_of
from inductor_plugin.repro.epilogue import with_epilogue
from inductor_plugin.repro.operand import OperandText, operands, size_text
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
    dynamic: list[tuple[int, ...]] = []
    call: CallText | str = ""
    try:
        gate.describe(record.describe)
        dynamic = _dynamic(record.problem)
        inputs = operands(record.problem, record.describe)
        call = _call(record, inputs)
        if not isinstance(call, str):
            inputs = _with_weight(inputs, call, record.problem)
            rebuilt = "\n".join(
                (_operands(record, inputs, call), _calls(record, inputs, call), RUN)
            )
    except _ODD as error:
        call = f"its fields are not those of {record.op}: {error}"
    if isinstance(call, str):
        refused = report.printable(call)
        rebuilt = _metadata(record, inputs, refused)
    parts = (_head(record, environment, refused), _facts(record, environment, cache_dir, dynamic))
    return Script("\n".join((*parts, rebuilt)), refused)


def _metadata(record: Record, inputs: list[OperandText], refused: str) -> str:
    """Return the end of a script that only prints what the record has of the call."""
    nameless = CallText("None", tuple(f"operand_{index}" for index in range(len(inputs))))
    try:
        known = _operands(record, inputs, nameless)
    except _ODD:
        known = "OPERANDS = []\n"
    return "\n".join((known, f"REASON = {refused!r}\n", BARE))


def _dynamic(problem: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """Return (operand, dimension, smallest, largest size) of each dynamic dimension."""
    names = ("operand", "dim", "low", "high")
    return [tuple(int(size[name]) for name in names) for size in problem.get("dynamic", ())]


def _call(record: Record, inputs: list[OperandText]) -> CallText | str:
    """Return the call of a record, or why it cannot be written."""
    if not record.problem.get("epilogue"):
        return call_of(record.problem, inputs)
    if not record.epilogue and not record.candidates:
        return "nothing was measured: two kernels run, for the reasons that `explain` shows"
    if not record.epilogue:
        return "an earlier version wrote the record, with no more of its epilogue than a signature"
    recorded = load(record.epilogue)
    more = len({access.buffer for access in recorded.epilogue.reads})
    product = call_of(record.problem, inputs[: len(inputs) - more])
    if isinstance(product, str):
        return product
    return with_epilogue(product, inputs, recorded, dynamic=bool(record.problem["dynamic"]))


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
    listed = not isinstance(written, int)  # a dynamic problem has only the rank
    plain = dict(zip(call.names, inputs, strict=False))
    if "weight" in plain:
        size = plain["weight"].size
    elif listed or "bias" in plain:
        columns = int(written[-1]) if listed else plain["bias"].size[0]
        size = (columns, inputs[0].size[-1])
    else:
        raise ValueError("neither an output's size nor a bias says how wide the packed weight is")
    stride = (size[1], 1)
    return [
        replace(operand, size=size, stride=stride) if operand.opaque else operand
        for operand in inputs
    ]


def _head(record: Record, environment: Mapping[str, Any], refused: str) -> str:
    lines = [
        f"One call, alone: {record.describe}.",
        "",
        f"Written by inductor-plugin {__version__} from record {record.place}.",
    ]
    if refused:
        lines += ["", f"The call cannot be rebuilt, so this is metadata only: {refused}."]
    else:
        lines += [
            "Run it to make the operands again, compile the call with the record's options, see which",
            "kernel is chosen, and compare with the exact result. It ends with 0 if the numbers are",
            "right, with 1 if they are not. `--policy tune` measures again, `--cache-dir` names a cache,",
            "`--register module:Class` adds a template that is no part of the plugin, `--stock` compiles",
            "with Inductor alone.",
        ]
    device = _mapping(environment, "device").get("name", "an unknown device")
    lines += ["", f"Measured on {device}:", ""]
    lines += [f"    {line}" for line in report.candidates_text(record).splitlines()]
    if record.rejected:
        lines += ["", "Not offered:", ""]
        lines += [f"    {name}: {why}" for name, why in sorted(record.rejected.items())]
    text = "\n".join(map(gate.prose, lines))
    return f'"""{text}\n"""\n\nimport sys\n\nimport torch\nimport torch.nn.functional as F\n'


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return fields inside others; none if they are something else."""
    inner = fields.get(name)
    return cast("Mapping[str, Any]", inner) if isinstance(inner, Mapping) else {}


def _facts(
    record: Record,
    environment: Mapping[str, Any],
    cache_dir: str,
    dynamic: Sequence[tuple[int, ...]],
) -> str:
    decision = record.decision
    options: dict[str, object] = {"never_slower_margin": decision.margin} if decision else {}
    numerics = _mapping(environment, "numerics")
    threads = _mapping(environment, "device").get("threads", 0)
    facts = {
        "DESCRIBE": report.printable(record.describe),
        "DIGEST": record.digest,
        "WINNER": decision.winner if decision else None,
        "CACHE_DIR": cache_dir,
        "OPTIONS": options,
        "THREADS": threads if isinstance(threads, int) else 0,
        "PRECISION": str(numerics.get("float32_matmul_precision", "highest")),
    }
    lines = [f"{name} = {value!r}" for name, value in facts.items()]
    lines += [
        "# (operand, dimension, smallest, largest size of the class the measurement stands for)",
        f"DYNAMIC = {list(dynamic)!r}",
        f"# All that the record keeps of the problem:\nPROBLEM = {_shown(record.problem)}",
    ]
    if record.problem.get("epilogue"):
        lines.append(f"# What follows the product:\nEPILOGUE = {_shown(dict(record.epilogue))}")
    else:
        lines.append("EPILOGUE = None")
    return "\n".join(lines) + "\n"


def _operands(record: Record, inputs: list[OperandText], call: CallText) -> str:
    lines = ["OPERANDS = ["]
    for index, (name, operand) in enumerate(zip(call.names, inputs, strict=True)):
        if call.gradient and name not in _PASSED:
            continue
        size = gate.prose(size_text(record.problem["inputs"][index]))
        lines.append(f"    # {name}: {size}")
        fields = _operand(name, operand, index)
        if call.lines and name in ("b", "d") and operand.dtype in _SCALED:
            fields["scale"] = round(operand.size[-2] ** -0.5, 6)
        lines.append(f"    {fields!r},")
    step = "None"
    for index, (name, operand) in enumerate(zip(call.names, inputs, strict=True)):
        if name == "do":
            step = repr(_operand(name, operand, index))
    return "\n".join([*lines, "]", f"STEP = {step}"]) + "\n"


def _operand(name: str, operand: OperandText, index: int) -> dict[str, Any]:
    return {
        "name": name,
        "size": operand.size,
        "stride": operand.stride,
        "offset": operand.offset,
        "elements": operand.elements,
        "dtype": operand.dtype,
        "device": operand.device,
        "seed": index + 1,
        "constant": operand.constant,
    }


def _calls(record: Record, inputs: list[OperandText], call: CallText) -> str:
    names = [name for name in call.names if not call.gradient or name in _PASSED]
    parameters = ", ".join(names)
    output = gate.dtype(record.problem["output"]["dtype"])
    integers = not (call.dtype or output).startswith(("float", "bfloat", "complex"))
    longest = max((operand.size[-1] for operand in inputs if operand.size), default=1)
    tf32 = inputs[0].device != "cpu"
    precision = max(
        tolerance(dtype, inputs[0].dtype, longest, tf32=tf32) for dtype in call.outputs or (output,)
    )
    body = call.exact or call.body
    if integers:
        body = "a @ b"
    lines = [
        f"FREEZING = {any(operand.constant for operand in inputs)}",
        f"GRADIENT = {call.gradient}",
        f"OUTPUT = torch.{call.dtype or output}",
        "WIDE = torch.float64",
        f"EXACT_INTEGERS = {integers}",
        f"JUMPS = {call.jumps}",
        f"TOLERANCE = {max(precision, _JUMPING) if call.jumps else precision!r}",
        f"TIMES_EAGER = {_TIMES_EAGER if call.lines else 0.0}",
    ]
    if call.lines:
        lines += ["", "import inductor_plugin", "", "epilogue = inductor_plugin.replay(EPILOGUE)"]
    if call.readers > 1:
        lines.append(READ.replace("DIGEST", gate.digest(record.digest[:12])).rstrip("\n"))
    for name, text, rest in (("call", call.body, call.lines), ("exact", body, call.exact_lines)):
        first = f"product = {text}" if rest else f"return {text}"
        lines += ["", "", f"def {name}({parameters}):"]
        lines += [f"    {line}" for line in (first, *rest)]
    return "\n".join([*lines, ""])


def _shown(value: Any) -> str:
    return pprint.pformat(value, width=100, sort_dicts=False)
