"""Static proofs of the synchronisation of Blackwell kernels by sentryward, beside their runs here.

    python -m tests.emulator.suite.proofs [--family sm100 ...] [--limit-s 600] [--built]

It needs `pip install sentryward` (0.1.1), which proves that barriers and accesses of a kernel for sm_100 have an order in all schedules,
of each launch that the suite makes, with its tensor maps and the values that its control flow depends on. What it cannot decide it calls
``unsupported``, and that is what the table says, then.
The table is written after each case, and a stopped run goes on where it was.
"""

from __future__ import annotations

import argparse
import bisect
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inductor_plugin.errors import KernelError
from tests.emulator.fault import FaultError
from tests.emulator.kernels import build
from tests.emulator.machine.schedule import EAGER
from tests.emulator.ptx.syntax import PtxError
from tests.emulator.runtime.launch import Launch
from tests.emulator.runtime.runtime import Runtime
from tests.emulator.suite.entry import Entry, entries
from tests.emulator.suite.row import replace_file
from tests.emulator.tensor import tensor_map
from tests.emulator.tensor.tensor_map import TensorMap
from tests.support.repository import REPOSITORY

TABLE = REPOSITORY / "benchmarks" / "results" / "emulator_proofs.json"
_SCHEMA = "spverify.kernel-input/v1"
_LIMIT_S, _MEMORY_MIB = 60, 3000
_GRACE_S = 60
"""Seconds that sentryward may take beyond its own limit."""
_TYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}
_MOST_ROUNDS = 12
"""How often a launch is asked about: five are usual."""
_ELEMENTS = {
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "int32": "s32",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
}
_SWIZZLES = {0: "none", 1: "32B", 2: "64B", 3: "128B"}
"""Elements and swizzles of `tensor_map` in sentryward's words."""
_MAP_ALIGNMENT = 64
NO_ANSWER = "no answer"
"""Result of a proof that sentryward did not end: it is tried again."""
FAMILIES = ("sm100", "tree", "triton")
"""Those that have kernels for Blackwell."""


@dataclass(frozen=True)
class Proof:
    """What sentryward says of a launch.

    Attributes:
        case: The case of the suite whose launch it is.
        launch: Its number, from 0, among the different launches of the case.
        kernel: Name of the kernel, or of the Triton template.
        source: Digest of the kernel's source.
        result: ``race_free``, ``unsupported`` ...
        reasons: Codes of its diagnostics, each once.
        synchronization: Whether all barriers are used alike in every schedule: ``passed``, ``failed``, or why it is not known.
        memory: Whether accesses of the same memory have an order, likewise.
        scalars: Parts of the parameters whose values it was given, since the control flow depends on them: the proof is of these.
        maps: Tensor maps that it was given.
    """

    case: str
    launch: int
    kernel: str
    source: str
    result: str
    reasons: tuple[str, ...]
    synchronization: str = ""
    memory: str = ""
    scalars: int = 0
    maps: int = 0


def read(path: Path = TABLE) -> dict[str, list[Proof]]:
    """Return the proofs of a table by case; none if there is no table."""
    proofs: dict[str, list[Proof]] = {}
    if path.exists():
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for row in data["rows"]:
            fields: dict[str, Any] = {**row, "reasons": tuple(row["reasons"])}
            proof = Proof(**fields)
            proofs.setdefault(proof.case, []).append(proof)
    return proofs


def write(proofs: dict[str, list[Proof]], path: Path = TABLE) -> None:
    """Write a table with the number of each result first."""
    rows = [proof for case in sorted(proofs) for proof in proofs[case]]
    counts = dict(sorted(Counter(proof.result for proof in rows).items()))
    lines = ",\n".join(f"  {json.dumps(asdict(proof))}" for proof in rows)
    replace_file(path, f'{{\n "results": {json.dumps(counts)},\n "rows": [\n{lines}\n ]\n}}\n')


def blackwell() -> list[Entry]:
    """Return the cases whose kernels it is about."""
    return [
        entry for entry in entries().values() if entry.gpu == "B200" and entry.family in FAMILIES
    ]


def outdated(proofs: dict[str, list[Proof]], cases: Sequence[Entry]) -> list[str]:
    """Return what a table has not, or of other sources than today's, and what it has of no case, one line each.

    Args:
        proofs: The table.
        cases: Those that it has to have.
    """
    lines = [f"{entry.name}: no answer of its source" for entry in left(cases, proofs)]
    lines += [f"{name}: no case" for name in sorted(set(proofs) - {each.name for each in cases})]
    for name, mine in proofs.items():
        if sorted(proof.launch for proof in mine) != list(range(len(mine))):
            lines.append(f"{name}: a launch is missing, or there twice")
    return lines


def left(chosen: Iterable[Entry], proofs: dict[str, list[Proof]]) -> list[Entry]:
    """Return the cases without proofs of their source, and those without an answer."""
    return [entry for entry in chosen if not _done(entry, proofs.get(entry.name, []))]


def _done(entry: Entry, proofs: Sequence[Proof]) -> bool:
    return bool(proofs) and all(
        proof.source == entry.source and proof.result != NO_ANSWER for proof in proofs
    )


def different(launches: Iterable[Launch]) -> list[Launch]:
    """Return one launch of each kernel and shape."""
    kinds = {(each.text, each.name, each.shape, each.shared_bytes): each for each in launches}
    return list(kinds.values())


def answer(command: Sequence[str], limit_s: float = _LIMIT_S + _GRACE_S) -> dict[str, Any]:
    """Run sentryward; return its report, or one with `NO_ANSWER` and why."""
    try:
        done = subprocess.run(command, capture_output=True, check=False, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return _silence(f"not within {limit_s:g} s")
    if not done.stdout.strip():
        return _silence(done.stderr.strip()[-200:])
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _silence(why: str) -> dict[str, Any]:
    return {"result": NO_ANSWER, "diagnostics": [{"code": why}]}


def reasons(report: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the codes of a report's diagnostics, each once."""
    return tuple(sorted({str(each.get("code", "")) for each in report.get("diagnostics", [])}))


def scalars(report: Mapping[str, Any], parameters: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Return the parts of parameters that the control flow depends on, as a report says, with their values, as sentryward takes them.

    Args:
        report: Its report.
        parameters: The bytes of each parameter, by its name.
    """
    details = [each.get("details", {}) for each in report.get("diagnostics", [])]
    wanted = [part for each in details for part in each.get("required_parameters", [])]
    listed: list[dict[str, Any]] = []
    for part in wanted:
        name, offset, size = part["parameter"], part["offset"], part["bytes"]
        value = parameters.get(name, b"")[offset : offset + size]
        if len(value) == size and size in _TYPES:
            number = int.from_bytes(value, "little")
            each = {"parameter": name, "offset": offset, "type": _TYPES[size], "value": number}
            listed += [] if each in listed else [each]
    return listed


def descriptors(parameters: Mapping[str, bytes]) -> list[dict[str, Any]]:
    """Return the tensor maps among parameters, as sentryward takes them; those of memory that overlaps are of one object.

    Maps with what sentryward has no word for are left out.

    Args:
        parameters: The bytes of each parameter, by its name.
    """
    maps = [
        (name, offset, tensor)
        for name, data in parameters.items()
        for offset, tensor in _maps_in(data)
    ]
    begins = _objects(_range_of(tensor) for _, _, tensor in maps)
    return [_descriptor(name, offset, tensor, begins) for name, offset, tensor in maps]


def _maps_in(data: bytes) -> Iterator[tuple[int, TensorMap]]:
    """Yield the offset of each map in a parameter, and the map."""
    room = np.zeros(len(data) + _MAP_ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _MAP_ALIGNMENT
    room[begin : begin + len(data)] = np.frombuffer(data, np.uint8)
    for offset in range(0, len(data) - tensor_map.SIZE + 1, _MAP_ALIGNMENT):
        with suppress(FaultError):
            tensor = tensor_map.at(room.ctypes.data + begin + offset)
            if tensor.element in _ELEMENTS and tensor.swizzle in _SWIZZLES and not tensor.nan:
                yield offset, tensor


def _range_of(tensor: TensorMap) -> tuple[int, int]:
    """Return the first byte of a tensor, and the one behind its last."""
    last = sum(
        (size - 1) * stride for size, stride in zip(tensor.sizes, tensor.strides, strict=True)
    )
    return tensor.address, tensor.address + last + tensor.item


def _objects(ranges: Iterable[tuple[int, int]]) -> list[int]:
    """Return where each object begins: a range, or several that overlap."""
    begins: list[int] = []
    end = 0
    for first, behind in sorted(ranges):
        if not begins or first >= end:
            begins.append(first)
        end = max(end, behind)
    return begins


def _descriptor(name: str, offset: int, tensor: TensorMap, begins: Sequence[int]) -> dict[str, Any]:
    """Return a map with the place of its tensor in one of the objects that begin there."""
    number = bisect.bisect_right(begins, tensor.address) - 1
    return {
        "parameter": name,
        "offset": offset,
        "object": f"object{number}",
        "base_byte_offset": tensor.address - begins[number],
        "element_type": _ELEMENTS[tensor.element],
        "swizzle": _SWIZZLES[tensor.swizzle],
        "interleave": "none",
        "oob_fill": "zero",
        "rank": len(tensor.sizes),
        "global_shape": list(tensor.sizes),
        "global_strides_bytes": list(tensor.strides[1:]),
        "box_shape": list(tensor.box),
        "element_strides": [1] * len(tensor.sizes),
    }


def proof_of(
    entry: Entry,
    number: int,
    launch: Launch,
    folder: Path,
    ask: Callable[[Sequence[str]], dict[str, Any]] = answer,
) -> Proof:
    """Ask sentryward about a launch; give it the values that each of its answers lacks, and ask again."""
    ptx, facts = folder / "kernel.ptx", folder / "input.json"
    ptx.write_text(launch.text, encoding="utf-8")
    command = [sys.executable, "-m", "sentryward", str(ptx), "--input", str(facts)]
    command += ["--timeout", str(_LIMIT_S), "--memory-limit-mib", str(_MEMORY_MIB)]
    shape = {
        "grid_dim": list(launch.shape.grid),
        "block_dim": list(launch.shape.block),
        "cluster_dim": list(launch.shape.cluster),
        "dynamic_shared_bytes": launch.shared_bytes,
    }
    given: dict[str, Any] = {"schema": _SCHEMA, "entry": launch.name, "launch": shape}
    given["arguments"] = known = list[dict[str, Any]]()
    given["tma_descriptors"] = maps = descriptors(launch.parameters)
    report: dict[str, Any] = {}
    for _ in range(_MOST_ROUNDS):
        facts.write_text(json.dumps(given), encoding="utf-8")
        report = ask(command)
        new = [part for part in scalars(report, launch.parameters) if part not in known]
        known += new
        if not new:
            break
    checks: Mapping[str, str] = report.get("checks", {})
    return Proof(
        entry.name,
        number,
        entry.kernel,
        entry.source,
        str(report.get("result", "")),
        reasons(report),
        checks.get("synchronization", ""),
        checks.get("memory", ""),
        len(known),
        len(maps),
    )


def proofs_of(runtime: Runtime, entry: Entry) -> list[Proof]:
    """Run a case, and ask sentryward about each of its launches.

    Raises:
        FaultError: The kernel does what no GPU allows.
        KernelError: It refuses the call.
        PtxError: It has an instruction that is not known.
    """
    launches = different(entry.run(runtime, EAGER).launches)
    with tempfile.TemporaryDirectory() as folder:
        return [
            proof_of(entry, number, launch, Path(folder)) for number, launch in enumerate(launches)
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove what is missing in the table; return 1 if a kernel could not be run, 2 without sentryward."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.emulator.suite.proofs", description=__doc__
    )
    parser.add_argument("--family", action="append", choices=FAMILIES)
    parser.add_argument("--limit-s", type=float, default=1200.0, help="begin no case after it")
    parser.add_argument("--built", action="store_true", help="only kernels that are compiled")
    given = parser.parse_args(arguments)
    if importlib.util.find_spec("sentryward") is None:
        print("sentryward is not installed: pip install sentryward==0.1.1")
        return 2
    ends, wrong = time.monotonic() + given.limit_s, 0
    chosen = [entry for entry in blackwell() if entry.family in (given.family or FAMILIES)]
    runtime = Runtime(build.CACHE)
    for entry in left(chosen, read()):
        if time.monotonic() > ends:
            break
        if entry.config is not None and given.built and not build.is_built(entry.config):
            continue
        if entry.config is not None:
            build.library(entry.config, runtime.cudart)
        try:
            proofs = proofs_of(runtime, entry)
        except (FaultError, KernelError, PtxError) as error:
            wrong += 1
            print(f"{entry.name}: {error}", flush=True)
            continue
        print(f"{entry.name}: {', '.join(proof.result for proof in proofs)}", flush=True)
        write(read() | {entry.name: proofs})  # another process may have added some
    names = [f"\n  {entry.name}" for entry in left(chosen, read())]
    print(f"{len(names)} of {len(chosen)} cases still to prove{''.join(names)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
