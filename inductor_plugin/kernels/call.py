"""What a benchmark job calls, and on what: operands, and the kinds of kernels.

Plain data, as everything in `jobs`, which hands these names on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class TensorSpec:
    """One operand as the benchmark worker builds it.

    Attributes:
        size: Elements along each dimension.
        stride: Strides in elements.
        dtype: Name without the ``torch.`` prefix.
        device: ``cpu`` or ``cuda:0`` ...
        offset: Storage offset in elements.
        storage: Elements of the whole storage, where it is larger than the view needs; views of one
            base must name the same length to see the same random values.
        seed: Seed of the random values; the same seed gives the same values in every process.
        file: Path of the raw bytes of the whole storage, for an operand whose values matter (a
            repacked weight); None for random values.
        packing: How the worker packs the dense tensor described here: ``mkldnn_linear``,
            ``mkl_linear``, or None.
        packing_batch: The batch size the packing was made for.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    device: str
    offset: int = 0
    storage: int = 0
    seed: int = 0
    file: str | None = None
    packing: str | None = None
    packing_batch: int = 0


@dataclass(frozen=True)
class ExternKernel:
    """A function registered on ``torch._inductor``'s ``extern_kernels`` (ATen, oneDNN, MKL).

    Attributes:
        name: Its name there.
        kwargs: Keyword arguments of the call, as (name, value) pairs.
        has_out: True if it writes to ``out=``; otherwise its result is returned.
    """

    name: str
    kwargs: tuple[tuple[str, Any], ...] = ()
    has_out: bool = True


@dataclass(frozen=True)
class OpKernel:
    """A torch operator, named ``namespace::name.overload``, called with ``out=``.

    Attributes:
        op: Its qualified name.
        args: Constant positional arguments behind the operands.
        imports: Modules to import first, so that the operator exists.
    """

    op: str
    args: tuple[Any, ...] = ()
    imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class CppKernel:
    """A function in a compiled C++ library, called with data pointers and then the sizes.

    Attributes:
        symbol: Name of the C function.
        library: Path of the shared library.
        sizes: Trailing integer arguments.
    """

    symbol: str
    library: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class RequestKernel:
    """An Inductor ``BenchmarkRequest`` (Triton templates), pickled by the parent.

    Attributes:
        payload: The pickled request. Its ``make_run_fn(*inputs, out=out)`` gives the launch.
        environment: The variables its `TritonCompileJob` was compiled under, or Triton looks for the
            kernel in another place and compiles it again while the clock runs.
    """

    payload: bytes
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ModuleKernel:
    """A Triton kernel in the Python module that Inductor writes to benchmark a fusion.

    Attributes:
        source: The module. Its ``call(args)`` launches the kernel on the current stream.
        environment: As in `RequestKernel`.
    """

    source: str
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class BufferRef:
    """An argument of a part of a sequence: a tensor.

    Attributes:
        index: Which: the inputs of the candidate first, then the sequence's scratch tensors, and last
            the candidate's output.
        size: Sizes it is seen with; None as it is.
        stride: Strides it is seen with.
        offset: Storage offset it is seen with.
    """

    index: int
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class Zeros:
    """An argument of a part of a sequence: scratch memory, zero when the kernel is first run.

    Attributes:
        count: Elements.
        dtype: Name without the ``torch.`` prefix.
    """

    count: int
    dtype: str


Argument: TypeAlias = "BufferRef | Zeros | int | float | str | tuple[Argument, ...]"

Single: TypeAlias = ExternKernel | OpKernel | RequestKernel | ModuleKernel


@dataclass(frozen=True)
class SequenceStep:
    """One kernel of a sequence.

    Attributes:
        kernel: What to call.
        arguments: In its order; those of a module include what it writes.
        out: What it writes; None for a module.
    """

    kernel: Single
    arguments: tuple[Argument, ...]
    out: BufferRef | None = None


@dataclass(frozen=True)
class SequenceKernel:
    """Several kernels one after the other: a product and what was not fused with it.

    Attributes:
        parts: In the order they run.
        scratch: What one part writes and a later one reads.
    """

    parts: tuple[SequenceStep, ...]
    scratch: tuple[TensorSpec, ...] = ()


Kernel: TypeAlias = ExternKernel | OpKernel | CppKernel | RequestKernel | SequenceKernel
