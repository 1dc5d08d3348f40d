"""Layout decisions: whether a template's kernels read an operand in place, a copy of it, or neither.

    Contract, Operand ─► judge ─► Accept | Copy | Extern
    contracts, Problem ─► judge_problem ─► LayoutVerdict: the worst verdict, all reasons, bytes copied
                                              └► laid: the problem as a kernel sees it after the copies

An operand is the view that is read: its size, strides and offset, not those of its base. Pure, no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from inductor_plugin.problem.contract import (
    MOST_BYTES,
    Accept,
    Contract,
    Copy,
    Extern,
    LayoutVerdict,
    OperandVerdict,
    Order,
    Recipe,
    roles,
    run_time,
)
from inductor_plugin.problem.definition import Operand, Problem, item_bytes
from inductor_plugin.problem.product import factors, flops
from inductor_plugin.problem.strides import is_dense

COPY_SHARE = 0.5
"""Share of the call's roofline time that copies may take. Beyond it, a kernel after the copies would have
to beat the best possible one without copies by half; only the slowest unaligned kernels allow that."""
LAUNCH_S = 3e-6
"""Seconds from one small kernel to the next; not in data sheets, profiles of GPUs show 2 to 5."""
LEAST_INTENSITY = 64
"""Operations for each byte copied, on a device whose figures are not known."""


def judge(
    contract: Contract,
    operand: Operand,
    run_time: frozenset[int] = frozenset(),
    *,
    preferred: bool = False,
) -> OperandVerdict:
    """Return whether an operand is read in place, and if not, which copy replaces it.

    Args:
        contract: The template's requirements.
        operand: The view that will be read.
        run_time: Its dimensions whose extent is known only at run time.
        preferred: Judge by the alignment of the faster kernels.
    """
    if preferred:
        alignment = max(contract.preferred, contract.alignment)
        contract = replace(contract, alignment=alignment)
    if operand.layout != "strided":
        return Extern(f"{contract.name} has an opaque layout, {operand.layout}")
    reason = _breach(contract, operand, run_time)
    if reason is None:
        return Accept(f"{contract.name} is read where it lies, its strides are {operand.stride}")
    if not contract.copies:
        return Extern(reason)
    why = ""
    for recipe in _recipes(contract, operand):
        laid = _laid(operand, recipe, run_time)
        why = _breach(contract, laid, run_time)
        if why is None:
            return Copy(_moved(operand, laid), reason, laid.stride, recipe)
    return Extern(f"{reason}; nor could a copy be read: {why}" if why else reason)


def judge_problem(
    contracts: Mapping[str, Contract], problem: Problem, *, preferred: bool = False
) -> LayoutVerdict:
    """Return the verdicts on a problem's operands.

    Args:
        contracts: By role (`product.ROLES`); an operand without one may have any strides.
        problem: The call.
        preferred: Judge by the alignment of the faster kernels.
    """
    operands = (*problem.inputs, problem.output)
    verdicts: list[OperandVerdict | None] = []
    for index, (role, operand) in enumerate(zip(roles(problem), operands, strict=True)):
        contract = contracts.get(role)
        at_run_time = run_time(problem, index)
        verdicts.append(
            contract
            and judge(contract, operand, at_run_time, preferred=preferred and contract.copies)
        )
    copies = [verdict for verdict in verdicts if isinstance(verdict, Copy)]
    refusals = [verdict for verdict in verdicts if isinstance(verdict, Extern)]
    return LayoutVerdict(
        kind="extern" if refusals else "copy" if copies else "accept",
        reasons=tuple(verdict.reason for verdict in (*refusals, *copies)),
        copied_bytes=sum(copy.bytes for copy in copies),
        verdicts=tuple(verdicts),
    )


def laid(problem: Problem, verdict: LayoutVerdict) -> Problem:
    """Return a problem as kernels see it after the copies of a verdict."""
    inputs = [
        _laid(operand, verdict.copies[i].recipe, run_time(problem, i))
        if i in verdict.copies
        else operand
        for i, operand in enumerate(problem.inputs)
    ]
    return replace(problem, inputs=tuple(inputs))


def why_not_copied(problem: Problem, verdict: LayoutVerdict) -> str | None:
    """Return why no kernel after a verdict's copies is worth measuring, None if one may be.

    Args:
        problem: The call.
        verdict: Of a template that copies.
    """
    copied = f"copying {verdict.copied_bytes} bytes"
    operations, compute = _work(problem)
    target = problem.target
    if target is None or not target.memory_bandwidth > 0:  # a package may state none
        least = LEAST_INTENSITY * verdict.copied_bytes
        enough = operations >= least
        return None if enough else f"{copied} is too much for {operations} operations"
    moved = sum(
        math.prod(operand.size) * item_bytes(operand.dtype)
        for operand in (*problem.inputs, problem.output)
    )
    rate = target.rate(compute)
    call_s = max(moved / target.memory_bandwidth, operations / rate if rate else 0.0)
    copies_s = verdict.copied_bytes / target.memory_bandwidth
    copies_s += LAUNCH_S * len(verdict.copies)
    if copies_s <= COPY_SHARE * call_s:
        return None
    return f"{copied} takes {copies_s * 1e6:.1f} us, the call itself {call_s * 1e6:.1f} us at least"


def fits(operand: Operand, order: Order, *, exact: bool = False) -> bool:
    """Return whether an operand has an order; ``exact`` checks dimensions of one element too."""
    if order == "dense":
        return is_dense(operand.size, operand.stride)
    dim = -1 if order == "row" else -2
    if len(operand.size) < -dim:
        return False
    return operand.stride[dim] == 1 or (not exact and operand.size[dim] == 1)


def order_of(operand: Operand, orders: Sequence[Order], *, exact: bool = False) -> Order | None:
    """Return the order an operand is read in, None if it has none of them.

    Where two fit (a row, a column), it is the one with the longer contiguous run.
    """
    fitting: list[Order] = [order for order in orders if fits(operand, order, exact=exact)]
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    return max(fitting, key=lambda order: operand.size[-1 if order == "row" else -2])


def granularity(operand: Operand, order: Order, run_time: frozenset[int] = frozenset()) -> int:
    """Return how many elements, up to `MOST_BYTES`, pointer, strides and rows are multiples of.

    Args:
        operand: The view that will be read.
        order: The order it is read in.
        run_time: Its dimensions whose extent is known only at run time.
    """
    lengths = _lengths(Contract(""), operand, order, run_time)
    return math.gcd(MOST_BYTES // item_bytes(operand.dtype), *lengths.values())


def _breach(contract: Contract, operand: Operand, run_time: frozenset[int]) -> str | None:
    """Return why kernels cannot read an operand in place, None if they can."""
    if operand.divisors and not contract.unknown:
        return f"{contract.name}'s strides or offset are known only at run time"
    if operand.offset and not contract.offset:
        return f"{contract.name} begins at element {operand.offset} of its memory"
    if contract.broadcast:
        return _breach_of_bias(contract, operand, run_time)
    order = order_of(operand, contract.orders, exact=contract.exact)
    if order is None:
        demand = f"must be {contract.orders[0]}-major"
        if contract.orders == ("dense",):
            demand = "must be contiguous"
        elif len(contract.orders) > 1:
            demand = "needs a unit stride"
        return f"{contract.name} {demand}, its strides are {operand.stride}"
    apart = _shared(contract, operand, order) if order != "dense" else None
    return _misaligned(contract, operand, order, run_time) or apart


def _lengths(
    contract: Contract, operand: Operand, order: Order, run_time: frozenset[int]
) -> dict[str, int]:
    """Return the lengths that have to be aligned, in elements; 1 if known only at run time."""
    inner, outer = (-2, -1) if order == "column" else (-1, -2)
    rank = len(operand.size)
    lengths = {"offset": operand.offset_divisor}
    if rank > 1 and (contract.exact or operand.size[outer] > 1):
        lengths["stride"] = operand.stride_divisor(outer)
    if rank and contract.extent != "free":
        unproven = contract.extent == "proven" and inner % rank in run_time
        lengths["inner extent"] = 1 if unproven else operand.size[inner]
    if rank == 3 and (contract.exact or operand.size[0] > 1):
        lengths["batch stride"] = operand.stride_divisor(0)
    return lengths


def _misaligned(
    contract: Contract, operand: Operand, order: Order, run_time: frozenset[int]
) -> str | None:
    for what, length in _lengths(contract, operand, order, run_time).items():
        if length * item_bytes(operand.dtype) % contract.alignment:
            relation = "is" if not operand.divisors else "is some multiple of"
            return (
                f"{contract.name}'s {what} {relation} {length} elements, which does not make "
                f"multiples of {contract.alignment} bytes"
            )
    return None


def _shared(contract: Contract, operand: Operand, order: Order) -> str | None:
    """Return why elements share memory although the contract does not allow it, or None."""
    inner, outer = (-1, -2) if order == "row" else (-2, -1)
    strides = f"its strides are {operand.stride}"
    if not contract.shared_batch:
        batches = zip(operand.size[:-2], operand.stride[:-2], strict=True)
        if any(stride == 0 and extent > 1 for extent, stride in batches):
            return f"{contract.name} is broadcast, {strides}"
    if contract.shared_rows or (operand.size[outer] == 1 and not contract.exact):
        return None
    if operand.stride[outer] == 0 and operand.size[outer] > 1:
        return f"{contract.name} is expanded, {strides}"
    if operand.stride[outer] < operand.size[inner]:
        return f"the rows of {contract.name} overlap, {strides}"
    return None


def _breach_of_bias(contract: Contract, bias: Operand, run_time: frozenset[int]) -> str | None:
    """Return why no kernel adds a bias; a row, a column or a tensor as large as D has one."""
    strides = f"its strides are {bias.stride}"
    along_m, along_n = _steps_of_bias(bias)
    if along_n == 0 and along_m == 0:
        alone = bool(bias.size) and all(extent == 1 for extent in bias.size)
        return None if alone else f"a bias of one number for all of D has no kernel, {strides}"
    if along_n == 0:
        # If D has one column, the rows of its bias may have any stride.
        one_wide = bias.size[-1] == 1
        return (
            None if along_m == 1 or one_wide else f"a column of bias must be contiguous, {strides}"
        )
    if along_n != 1:
        return f"the bias must be contiguous along n, {strides}"
    full = along_m != 0
    row = replace(contract, alignment=contract.alignment if full else 1)
    return _misaligned(row, bias, "row", run_time) or (
        _shared(contract, bias, "row") if full else None
    )


def _steps_of_bias(bias: Operand) -> tuple[int, int]:
    """Return the strides of a bias along m and n, 0 where it is broadcast."""
    along_n = 0 if not bias.size or bias.size[-1] == 1 else bias.stride[-1]
    along_m = 0 if len(bias.size) < 2 or bias.size[-2] == 1 else bias.stride[-2]
    return along_m, along_n


def _recipes(contract: Contract, operand: Operand) -> list[Recipe]:
    """Return the possible copies; first the one whose source is read along memory."""
    rank = len(operand.size)
    expanded = {
        dim
        for dim, (extent, stride) in enumerate(zip(operand.size, operand.stride, strict=True))
        if stride == 0 and extent > 1
    }
    if contract.broadcast:
        kept = expanded
        if _steps_of_bias(operand) == (0, 0):
            kept = expanded - {rank - 1}
        return [Recipe("row", contract.alignment, tuple(sorted(kept)))]
    batches = set(range(rank - 2)) if contract.shared_batch else set[int]()
    kept = expanded & batches if contract.orders != ("dense",) else set[int]()
    orders: list[Literal["row", "column"]] = []
    if "row" in contract.orders or "dense" in contract.orders:
        orders.append("row")
    if "column" in contract.orders and rank > 1:
        orders.append("column")
    if rank > 1 and 0 < operand.stride[-2] < operand.stride[-1]:
        orders.reverse()
    return [Recipe(order, contract.alignment, tuple(sorted(kept))) for order in orders]


def _laid(operand: Operand, recipe: Recipe, run_time: frozenset[int]) -> Operand:
    """Return an operand's copy. Torch's allocators align memory to 64 bytes or more."""
    item = item_bytes(operand.dtype)
    stride = recipe.strides(operand.size, item)
    if not run_time:
        return replace(operand, stride=stride, offset=0, divisors=(), symbolic=())
    unit = max(recipe.alignment // item, 1)
    inner = len(stride) - (1 if recipe.order == "row" else 2)
    proven = [
        1 if dim == inner else 16 if dim in recipe.kept else math.gcd(unit, 16)
        for dim in range(len(stride))
    ]
    return replace(operand, stride=stride, offset=0, divisors=(*proven, 16))


def _moved(operand: Operand, copy: Operand) -> int:
    """Return the bytes a copy reads and writes; expanded elements are read once."""
    item = item_bytes(operand.dtype)
    read = math.prod(n for n, s in zip(operand.size, operand.stride, strict=True) if s)
    steps = [n * s for n, s in zip(copy.size, copy.stride, strict=True) if s]
    return item * (read + max(steps, default=1))


def _work(problem: Problem) -> tuple[int, str]:
    """Return the operations of a product and its compute dtype; (0, "") for any other operator."""
    pair = factors(problem.op)
    if pair is None:
        return 0, ""
    a = problem.inputs[pair[0]]
    return flops(problem), "tf32" if a.dtype == "float32" else a.dtype
