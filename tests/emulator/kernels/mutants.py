"""Kernels with one instruction taken out or bent: what the emulator notices of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from inductor_plugin.errors import KernelError
from tests.emulator.fault import FaultError

_OWN_WARP = "bar.warp.sync -1;"
_WITHOUT = {
    "bar.sync": _OWN_WARP,
    "bar.arrive": "",
    "barrier.sync": _OWN_WARP,
    "barrier.arrive": "",
    "barrier.cta.sync": _OWN_WARP,
    "barrier.cta.arrive": "",
    "barrier.cluster.arrive": "",
    "barrier.cluster.wait": "",
    "bar.warp.sync": "",
    "mbarrier.init": "",
    "mbarrier.inval": "",
    "mbarrier.arrive": "",
    "mbarrier.arrive_drop": "",
    "mbarrier.expect_tx": "",
    "mbarrier.complete_tx": "",
    "cp.async.commit_group": "",
    "cp.async.wait_group": "",
    "cp.async.wait_all": "",
    "cp.async.mbarrier.arrive": "",
    "cp.async.bulk.commit_group": "",
    "cp.async.bulk.wait_group": "",
    "wgmma.fence": "",
    "wgmma.commit_group": "",
    "wgmma.wait_group": "",
    "fence.proxy.async": "",
    "fence.proxy.tensormap": "",
    "fence.mbarrier_init": "",
    "fence.acq_rel": "",
    "fence.sc": "",
    "membar": "",
    "red": "",
    "tensormap.replace": "",
    "tensormap.cp_fenceproxy": "",
    "tcgen05.commit": "",
    "tcgen05.fence": "",
    "tcgen05.wait": "",
    "tcgen05.dealloc": "",
    "tcgen05.relinquish_alloc_permit": "",
    "clusterlaunchcontrol.try_cancel": "",
    "griddepcontrol.wait": "",
    "griddepcontrol.launch_dependents": "",
}
"""What takes the place of an instruction, by the beginning of its opcode."""
_WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")
"""Taken as over."""
_REDUCTIONS = ("bar.red", "barrier.red", "barrier.cta.red")
"""Barriers that reduce a predicate: each thread keeps its own."""
_LINE, _COLUMNS = 128, 16
_ADDRESSES = {
    **dict.fromkeys(("ld.shared", "st.shared", "ld.global", "st.global"), 16),
    **dict.fromkeys(("ld.b", "ld.v2", "ld.v4", "st.b", "st.v2", "st.v4"), 16),
    **dict.fromkeys(("ld.acquire", "ld.relaxed", "ld.volatile", "st.async"), 16),
    **dict.fromkeys(("st.release", "st.relaxed", "st.volatile", "atom"), 16),
    **dict.fromkeys(("ldmatrix", "stmatrix", "cp.async.c"), 16),
    **dict.fromkeys(("cp.async.bulk.shared", "cp.async.bulk.global"), 16),
    **dict.fromkeys(("cp.reduce.async.bulk.shared", "cp.reduce.async.bulk.global"), 16),
    **dict.fromkeys(("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor"), _LINE),
    **dict.fromkeys(("tcgen05.mma", "tcgen05.ld", "tcgen05.st"), _COLUMNS),
    "tcgen05.alloc": 16,
}
"""Accesses whose first address is moved by so many bytes, which keeps it aligned; of a copy by TMA, that in shared memory; of
tensor memory by so many columns."""
_DESCRIPTORS = {"wgmma.mma_async": _LINE // 16, "tcgen05.mma": _LINE // 16}
"""Products: each matrix in shared memory begins so many units of 16 bytes later (the lowest bits of its descriptor)."""
_COUNTS = {
    **dict.fromkeys(("mbarrier.arrive.expect_tx", "mbarrier.expect_tx"), 16),
    "mbarrier.init": 1,
    **dict.fromkeys(("bar.sync", "bar.arrive", "barrier.sync", "barrier.arrive"), 32),
    **dict.fromkeys(("barrier.cta.sync", "barrier.cta.arrive"), 32),
}
"""Counts, the last operand, and what is added to them: bytes of a transaction, arrivals at an mbarrier, threads at a barrier."""
_GROUPS = ("cp.async.wait_group", "cp.async.bulk.wait_group", "wgmma.wait_group")
"""One group more may be left pending."""
_TILES = ("cp.async.bulk.tensor", "cp.reduce.async.bulk.tensor")
"""Copies of tiles, each of whose coordinates is one further."""
_MULTICASTS = ("cp.async.bulk.tensor", "cp.async.bulk.shared", "tcgen05.commit")
"""What reaches several blocks of a cluster, if it says so: the first of them is left out."""
_OTHER_BLOCK = "mapa"
"""Address in another block of the cluster: it is that in the own block."""
SYNCHRONISING = (*_WITHOUT, *_WAITS, *_REDUCTIONS)
ALL = tuple(dict.fromkeys((*SYNCHRONISING, *_ADDRESSES, *_DESCRIPTORS, *_COUNTS, _OTHER_BLOCK)))
_GUARD = r"\s*(?:@!?%?\w+\s+)?"
_PLACE = re.compile(r"\[\s*([%$_A-Za-z][\w$]*)\s*(?:\+\s*(-?\d+))?\s*\]")
_PREDICATE = re.compile(r"\s(%?\w+)\s*,")
_LONG_REGISTER = re.compile(r"%rd\d+\b")
_IN_BRACKETS = re.compile(r"\[[^\]]*\]|\{[^}]*\}")
_LAST = re.compile(r",\s*(%?\w+)\s*;\s*$")
_GROUP = re.compile(r"(\d+)\s*;\s*$")
_COORDINATES = re.compile(r"\{([^}]*)\}\s*\]")
_COORDINATE = re.compile(r"[%\w-]+")
_MASK = re.compile(r"\.multicast::cluster(?!::).*\]\s*,\s*(%?\w+)")
_PARITY = re.compile(r"\.parity\b.*\]\s*,\s*(%?\w+)")
_REDUCED = re.compile(r"\s(%?\w+)\s*,.*,\s*(!?)(%?\w+)\s*;\s*$")
_LOADED = re.compile(rf"({_GUARD})ld(?:matrix)?\.[^\[{{%]*(\{{[^}}]*\}}|%\w+)\s*,\s*\[.*;\s*$")
_STORED = re.compile(
    rf"({_GUARD}st(?:matrix)?\.[^\[]*\[[^\]]*\]\s*,\s*)(\{{[^}}]*\}}|%\w+)\s*;\s*$"
)
_POISONS = {"NaN": "7F" + 7 * "FF", "a large number": 8 * "7B", "its negative": 8 * "FB"}
"""Hexadecimal digits of 64 bits; a narrower register has the first of them. Read as narrower floats, they are NaN or large as well."""
_SIZES = {"%rs": "16", "%rd": "64", "%fd": "64"}
"""Of registers by the beginning of their names, as nvcc and Triton call them; of others 32 bits."""
_MAPPED = re.compile(r"mapa\S*\.([bu](?:32|64))\s+(%?\w+)\s*,\s*(%?\w+)\s*,.*;\s*$")


@dataclass(frozen=True)
class Mutant:
    """A module with one instruction missing or bent.

    Attributes:
        line: Line of the instruction, from 1.
        opcode: The beginning of its opcode, one of `ALL`.
        old: The line.
        new: What is there instead.
        change: What is done to it, for people.
    """

    line: int
    opcode: str
    old: str
    new: str
    change: str = "taken out"

    @property
    def described(self) -> str:
        """The instruction, and what is done to it unless it is taken out."""
        instruction = self.old.strip()
        return instruction if self.change == "taken out" else f"{instruction} ({self.change})"

    def apply(self, text: str) -> str:
        """Return a module's text with the mutation; it has to have the line."""
        lines = text.split("\n")
        assert lines[self.line - 1] == self.old
        lines[self.line - 1] = self.new
        return "\n".join(lines)

    def poisoned(self) -> Iterator[Mutant]:
        """Yield mutants whose load gives each of `_POISONS` instead, or whose store, at its bent address, stores it; none for other
        instructions. NaN alone is lost in a maximum."""
        for name, digits in _POISONS.items():
            if loaded := _LOADED.match(self.old):
                moves = (f"{loaded[1]}{_move(x, x, digits)}" for x in _registers(loaded[2]))
                yield replace(self, new=" ".join(moves), change=f"loads {name}")
            elif stored := _STORED.match(self.new):
                listed, values = _registers(stored[2]), stored[2]
                for register in listed:
                    values = values.replace(register, "%bent", 1)
                before = f".reg .b{_size(listed[0])} %bent; {_move('%bent', listed[0], digits)}"
                new = f"{{ {before} {stored[1].strip()} {values}; }}"
                yield replace(self, new=new, change=f"stores {name}")


def _move(target: str, register: str, digits: str) -> str:
    """Return the move of a value to a register that is as large as another."""
    size = _size(register)
    return f"mov.b{size} {target}, 0x{digits[: int(size) // 4]};"


def _registers(operand: str) -> list[str]:
    """Return the registers of an operand, which is one or a vector of them."""
    return [each.strip() for each in operand.strip("{} ").split(",")]


def _size(register: str) -> str:
    """Return the bits of a register."""
    return _SIZES.get(register[:3], "32")


def mutants(text: str, ran: frozenset[int], opcode: str) -> Iterator[Mutant]:
    """Yield the mutants of each instruction of an opcode that ran; ``ran`` are lines, from 1."""
    ends = "" if opcode in _ADDRESSES else r"\b"
    pattern = re.compile(rf"{_GUARD}{re.escape(opcode)}{ends}.*;\s*$")
    for number, line in enumerate(text.split("\n"), 1):
        if number in ran and pattern.match(line):
            for new, change in _bent(line, opcode):
                yield Mutant(number, opcode, line, new, change)


def _bent(line: str, opcode: str) -> Iterator[tuple[str, str]]:
    """Yield what may be in the place of a line, each with what is done to it."""
    if opcode in _WITHOUT:
        yield _WITHOUT[opcode], "taken out"
    if opcode in _WAITS and (predicate := _PREDICATE.search(line.partition(opcode)[2])):
        yield f"setp.eq.u32 {predicate[1]}, 0, 0;", "taken as over"
        if parity := _PARITY.search(line):
            yield _computed(line, parity.span(1), "32", "xor.b32 %bent, {0}, 1;", "{0} ^ 1")
    if opcode in _REDUCTIONS and (reduced := _REDUCED.search(line)):
        yield _unreduced(reduced, counts=".popc" in line), "not reduced"
    if opcode in _ADDRESSES and (place := _PLACE.search(line)):
        moved = f"[{place[1]}+{int(place[2] or 0) + _ADDRESSES[opcode]}]"
        yield line[: place.start()] + moved + line[place.end() :], f"{place[0]} is {moved}"
    if opcode in _DESCRIPTORS:
        outside = _IN_BRACKETS.sub(lambda inside: " " * len(inside[0]), line)
        for register in _LONG_REGISTER.finditer(outside):
            yield _added(line, register.span(), "64", _DESCRIPTORS[opcode])
    if opcode in _COUNTS and (last := _LAST.search(line)):
        yield _added(line, last.span(1), "32", _COUNTS[opcode])
    yield from _beside(line, opcode)
    if opcode == _OTHER_BLOCK and (mapped := _MAPPED.search(line)):
        yield f"mov.{mapped[1]} {mapped[2]}, {mapped[3]};", "of the own block"


def _beside(line: str, opcode: str) -> Iterator[tuple[str, str]]:
    """Yield what may be in the place of a line that waits for groups, copies tiles or reaches several blocks."""
    if opcode in _GROUPS and (group := _GROUP.search(line)):
        more = int(group[1]) + 1
        yield line[: group.start(1)] + str(more) + line[group.end(1) :], f"up to {more}"
    if opcode in _TILES and (coordinates := _COORDINATES.search(line)):
        for each in _COORDINATE.finditer(line, *coordinates.span(1)):
            yield _added(line, each.span(), "32", 1)
    if opcode in _MULTICASTS and (mask := _MASK.search(line)):
        less = ".reg .b16 %less; add.s16 %less, {0}, -1; and.b16 %bent, %less, {0};"
        yield _computed(line, mask.span(1), "16", less, "{0} without its first block")


def _unreduced(reduced: re.Match[str], *, counts: bool) -> str:
    """Return what gives each thread its own predicate as the result of a reduction, which ``counts`` or is a predicate."""
    result, negated, own = reduced[1], reduced[2], reduced[3]
    if counts:
        return f"selp.b32 {result}, {'0, 1' if negated else '1, 0'}, {own};"
    return f"{'not' if negated else 'mov'}.pred {result}, {own};"


def _added(line: str, span: tuple[int, int], bits: str, count: int) -> tuple[str, str]:
    """Return an instruction with more in an operand."""
    more = f"add.s{bits} %bent, {{0}}, {count};"
    return _computed(line, span, bits, more, f"{{0}} + {count}")


def _computed(
    line: str, span: tuple[int, int], bits: str, statements: str, said: str
) -> tuple[str, str]:
    """Return an instruction with another operand, in a line as before: lines behind it keep their numbers.

    Args:
        line: The instruction.
        span: Where the operand is.
        bits: Its size.
        statements: Compute ``%bent`` from the operand, ``{0}``.
        said: What that is, for people.
    """
    operand = line[slice(*span)]
    with_bent = f"{line[: span[0]]}%bent{line[span[1] :]}".strip()
    before = f".reg .b{bits} %bent; {statements.format(operand)}"
    return f"{{ {before} {with_bent} }}", said.format(operand)


def noticed(run: Callable[[], bool]) -> bool:
    """Return whether a run of a mutant is wrong or refused; ``run`` returns whether its numbers are right."""
    try:
        return not run()
    except (FaultError, KernelError):
        return True
