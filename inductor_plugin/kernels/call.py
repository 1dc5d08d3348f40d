"""Operands and kinds of kernels of a benchmark job.

Plain data, as everything in `jobs`, which re-exports these names.
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
        storage: Elements of the whole storage, if larger than the view needs; views of one
            base need the same length to see the same random values.
        seed: Seed of the random values; the same seed gives the same values in every process.
        file: Path of the raw bytes of the whole storage, for an operand whose values matter (a
            repacked weight); None for random values.
        packing: How the worker packs the dense tensor described here: ``mkldnn_linear``,
            ``mkl_linear``, ``onednn_qlinear`` (8 bits, [N, K]), or None.
        packing_batch: The batch size the packing is for.
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
        args: Constant positional arguments after the operands.
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
        payload: The pickled request. Its ``make_run_fn(*inputs, out=out)`` returns the launch.
        environment: The variables its `TritonCompileJob` was compiled under; under others Triton
            misses the kernel in its cache and compiles it again while it is timed.
        module: Path of its Python module, if it is not the one that the request names.
        kernel: Digest of the compiled kernel in the cache; empty if it is in none.
    """

    payload: bytes
    environment: tuple[tuple[str, str], ...] = ()
    module: str = ""
    kernel: str = ""


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
    """A tensor argument of a kernel in a sequence.

    Attributes:
        index: Counts the inputs of the candidate first, then the sequence's scratch tensors, and last
            the candidate's output.
        size: Sizes of the view; None for the tensor itself.
        stride: Strides of the view.
        offset: Storage offset of the view.
    """

    index: int
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class Zeros:
    """A scratch argument of a kernel in a sequence, zero before the kernel's first run.

    Attributes:
        count: Elements.
        dtype: Name without the ``torch.`` prefix.
        each_call: True if generated code zeroes it before each call: the time to do so is part of the kernel's.
    """

    count: int
    dtype: str
    each_call: bool = False


Argument: TypeAlias = "BufferRef | Zeros | int | float | str | tuple[Argument, ...]"

Single: TypeAlias = ExternKernel | OpKernel | RequestKernel | ModuleKernel


@dataclass(frozen=True)
class SequenceStep:
    """One kernel of a sequence.

    Attributes:
        kernel: The kernel.
        arguments: In the kernel's order; those of a module include its outputs.
        out: Its output; None for a module.
    """

    kernel: Single
    arguments: tuple[Argument, ...]
    out: BufferRef | None = None


@dataclass(frozen=True)
class SequenceKernel:
    """Several kernels run in order: a product and the operations not fused with it.

    Attributes:
        parts: The kernels in order.
        scratch: Tensors that one kernel writes: a later one reads them, or they are further outputs.
        names: Names of the scratch tensors. Tensors of the same name hold the same numbers in all candidates of a problem.
    """

    parts: tuple[SequenceStep, ...]
    scratch: tuple[TensorSpec, ...] = ()
    names: tuple[str, ...] = ()


Kernel: TypeAlias = ExternKernel | OpKernel | CppKernel | RequestKernel | SequenceKernel
