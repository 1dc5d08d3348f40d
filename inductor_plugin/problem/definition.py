"""Facts of one call to tune: operands, operator, size classes. No tensors, no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from inductor_plugin.problem.target import Target

PROBLEM_SCHEMA = 2
_MOST = 2**63
"""What no extent, stride or offset of a tensor reaches."""


@dataclass(frozen=True)
class Operand:
    """One tensor of a problem, as it will be at run time.

    Attributes:
        size: Elements along each dimension. For a dynamic dimension, the size it was measured at.
        stride: Strides in elements.
        dtype: Name without the ``torch.`` prefix, e.g. ``bfloat16``.
        device: Device type, e.g. ``cuda``.
        offset: Storage offset in elements.
        layout: ``strided``, or the name of an opaque layout (``mkldnn``).
        constant: True for a frozen weight, whose value the compiler may repack.
        divisors: For each stride and, last, for the offset: a number up to 16 that divides it whenever
            the call runs. Empty where all of them are known while compiling.
        symbolic: Dimensions whose stride is known only at run time; ``stride`` has what it was
            measured at.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    offset: int = 0
    layout: str = "strided"
    constant: bool = False
    divisors: tuple[int, ...] = ()
    symbolic: tuple[int, ...] = ()

    def stride_divisor(self, dim: int) -> int:
        """Return a divisor of a stride that holds at run time: the stride itself, where it is known."""
        return (self.divisors[:-1] or self.stride)[dim]

    @property
    def offset_divisor(self) -> int:
        """A divisor of the offset that holds at run time: the offset itself, where it is known."""
        return self.divisors[-1] if self.divisors else self.offset

    @property
    def shape(self) -> str:
        """The extents as text, ``512x2048``; those of an opaque operand are not known."""
        if self.layout != "strided":
            return "packed"
        return "x".join(map(str, self.size)) or "scalar"


@dataclass(frozen=True)
class SizeClass:
    """One dynamic dimension, and the sizes for which its measurement is valid.

    Attributes:
        operand: Index of the operand in ``Problem.inputs``.
        dim: Dimension within that operand.
        low: Smallest size of the class, inclusive.
        high: Largest size of the class, inclusive.
        measured: The size the candidates were measured at.
    """

    operand: int
    dim: int
    low: int
    high: int
    measured: int


@dataclass(frozen=True)
class Problem:
    """One call to tune.

    Attributes:
        op: Inductor's name of the operator: ``mm``, ``addmm``, ``convolution``, ``packed_linear`` ...
        inputs: The operands, in the order Inductor passes them.
        output: The operand the call writes.
        arguments: Scalar arguments that change the computation (alpha, stride, padding ...), as
            (name, text) pairs in a fixed order.
        epilogue: Signature of the epilogue fused with the call; empty for the bare call.
        epilogue_reads: How many inputs, the last ones, are what the epilogue reads; None where that is not known. Not part of
            the identity, of which the epilogue's signature is: that tells what is read.
        dynamic: The size classes of its dynamic dimensions; empty for a static call.
        target: The GPU it runs on; None on a CPU, or on a GPU that is not known. Not part of the
            problem's identity: the environment of a record has it.
        tf32: Whether float32 inputs may be rounded to TF32; not part of the identity either.
    """

    op: str
    inputs: tuple[Operand, ...]
    output: Operand
    arguments: tuple[tuple[str, str], ...] = ()
    epilogue: str = ""
    dynamic: tuple[SizeClass, ...] = field(default=())
    target: Target | None = field(default=None, compare=False)
    tf32: bool = field(default=False, compare=False)
    epilogue_reads: int | None = field(default=None, compare=False)

    def fields(self) -> dict[str, Any]:
        """Return the problem's identity as plain JSON values.

        A dynamic dimension is in it by its class, not by the size that was measured, and a stride
        that depends on dynamic sizes by its rank: the whole class shares one record.
        """
        plain: dict[str, Any] = json.loads(json.dumps(asdict(replace(self, target=None))))
        del plain["target"], plain["tf32"], plain["epilogue_reads"]
        for operand in (*plain["inputs"], plain["output"]):
            symbolic = operand.pop("symbolic")
            if self.dynamic:
                ranks = stride_order(operand["stride"])
                for dim in symbolic:
                    operand["stride"][dim] = ranks[dim]
            if not operand["divisors"]:  # keeps the keys of records written before divisors existed
                del operand["divisors"]
        for entry in plain["dynamic"]:
            del entry["measured"]
        for entry in self.dynamic:
            plain["inputs"][entry.operand]["size"][entry.dim : entry.dim + 1] = [
                f"{entry.low}..{entry.high}"
            ]
        if self.dynamic:
            plain["output"]["size"] = len(plain["output"]["size"])
        return {"schema": PROBLEM_SCHEMA, **plain}

    def describe(self) -> str:
        """Return the short form of the AUTOTUNE table: ``mm(512x512, 512x2048)``.

        With an epilogue its operands are among the shapes and its operations follow: ``+ add.relu``.
        """
        shapes = ", ".join(operand.shape for operand in self.inputs)
        epilogue = f" + {self.epilogue.partition('-')[0]}" if self.epilogue else ""
        return f"{self.op}({shapes}){epilogue}"


def problem_in(fields: Mapping[str, Any]) -> Problem | None:
    """Return the problem that `Problem.fields` describe, without a target.

    None if it is dynamic, since the sizes it was measured at are not in them, or if they are not a problem of this version.
    """
    if fields.get("schema") != PROBLEM_SCHEMA or fields.get("dynamic"):
        return None
    if type(fields.get("op")) is not str or type(fields.get("epilogue")) is not str:
        return None
    try:
        return Problem(
            op=fields["op"],
            inputs=tuple(map(_operand_in, fields["inputs"])),
            output=_operand_in(fields["output"]),
            arguments=tuple((str(name), str(text)) for name, text in fields["arguments"]),
            epilogue=fields["epilogue"],
        )
    except (KeyError, TypeError, ValueError):
        return None


def _operand_in(fields: Any) -> Operand:
    """Return an operand of a file that anyone may have written.

    Raises:
        TypeError: They are no fields, one is of another type than `Operand` has, or there are not as many strides as extents.
    """
    if not isinstance(fields, Mapping):
        raise TypeError("it is no operand")
    values: dict[str, Any] = {
        name: tuple(cast("list[Any]", value)) if isinstance(value, list) else value
        for name, value in cast("Mapping[str, Any]", fields).items()
    }
    operand = Operand(**values)
    # What a file holds instead of a tuple is anything.
    numbers: tuple[Any, ...] = (
        *(operand.size, operand.stride, operand.divisors, operand.symbolic),
        (operand.offset,),
    )
    texts = (operand.dtype, operand.device, operand.layout)
    if (
        not all(isinstance(each, tuple) for each in numbers)
        or not all(type(n) is int and 0 <= n < _MOST for each in numbers for n in each)
        or not all(type(text) is str for text in texts)
        or type(operand.constant) is not bool
        or len(operand.size) != len(operand.stride)
    ):
        raise TypeError("it is no operand")
    return operand


def dtype_name(dtype: object) -> str:
    """Return the name of a `torch.dtype` as a problem has it: without ``torch.``."""
    return str(dtype).removeprefix("torch.")


def size_class(size: int) -> tuple[int, int]:
    """Return the size class of a dynamic dimension: the power of two below and the next one.

    A GEMM's best tile changes with the order of magnitude of M, not with each size; sizes up to 16
    decide between decode templates, so each is a class.

    Returns:
        (low, high), both inclusive.
    """
    if size <= 16:
        return size, size
    low = 1 << ((size - 1).bit_length() - 1)
    return low + 1, 2 * low


def stride_order(stride: Sequence[int]) -> list[str]:
    """Return strides reduced to the facts that a class of sizes shares: unit, zero, or their rank."""
    ranks = {value: rank for rank, value in enumerate(sorted({s for s in stride if s > 1}))}
    return [str(s) if s in (0, 1) else f"rank{ranks[s]}" for s in stride]


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element of a dtype by its name: the first number in it is the bits (``complex64``).

    Types without a number (``bool``) and those of less than 8 bits have 1.
    """
    bits = re.search(r"\d+", dtype)
    return max(int(bits[0]) // 8, 1) if bits else 1
