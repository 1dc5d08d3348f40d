"""The contract of a kernel provider: what it can run, and with which kernels, best first.

    problem ─► reject(problem) ─► a reason, kept for `explain`
                    │ None
                    ▼
               candidates(problem) ─► Candidate, Candidate, ...

A template states facts. It asks no device, reads no cache and starts no process, so that the same
answers come out on a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.problem.contract import Contract

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What a JSON file can hold; a configuration is stored as it is."""


@dataclass(frozen=True)
class TritonSource:
    """A kernel as text in the language of Inductor's Triton templates, so that its epilogue fuses.

    The text sees ``def_kernel``, ``size``, ``stride``, ``load_input`` and ``store_output``, the
    constants below, ``INDEX_DTYPE``, and ``ws_ptr`` where it asks for scratch memory.

    Attributes:
        name: Stem of the kernel's name in generated code; lower-case and stable.
        text: The template.
        grid: ``tiles`` starts one program a tile of BLOCK_M x BLOCK_N, ``split_k`` SPLIT_K of them,
            ``persistent`` as many as the device has multiprocessors, which NUM_SMS then tells.
            The others are for ``extents``, all programs on the grid's first axis: ``rows`` (B, H, Sq)
            starts SPLITS programs a head and BLOCK_M queries; ``tokens`` (B + 1, H, Tq) one a head
            and block, of which B sequences begin at most B + ceil(Tq / BLOCK_M); ``rows_backward``
            (B, H, Sq, Hkv, Sk) and ``tokens_backward`` (B + 1, H, Tq, Hkv, Tk) first one for each
            BLOCK_N1 keys of a key head, then one for each BLOCK_M2 queries of a head.
        constants: What the text is compiled with, as (name, value) pairs; a text value is code.
        num_stages: Loads in flight.
        num_warps: Warps of one program.
        epilogue: How operands that ``def_kernel`` does not name enter the result: ``addmm`` adds
            beta times the first operand to alpha times the product, ``bias`` adds the last one.
        alpha: Factor of the product in ``addmm``.
        beta: Factor of the first operand in ``addmm``.
        scratch_bytes: Scratch memory; it is zero when the kernel starts, and the kernel leaves
            zero what it relies on.
        capability: The oldest device that can run it.
        descriptors: Indices of the operands it reads through tensor descriptors (TMA).
        mutated: Indices of the operands it writes besides its output.
        extents: What the grid is made from, as (operand, dimension) pairs; empty: the output's.
    """

    name: str
    text: str
    grid: Literal[
        "tiles",
        "split_k",
        "persistent",
        "rows",
        "tokens",
        "rows_backward",
        "tokens_backward",
    ]
    constants: tuple[tuple[str, bool | int | str], ...]
    num_stages: int
    num_warps: int
    epilogue: Literal["none", "addmm", "bias"] = "none"
    alpha: float = 1
    beta: float = 1
    scratch_bytes: int = 0
    capability: tuple[int, int] = (8, 0)
    descriptors: tuple[int, ...] = ()
    mutated: tuple[int, ...] = ()
    extents: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class CudaSource:
    """A kernel as CUDA C++ text, which nvcc compiles and a torch operator calls.

    Attributes:
        op: The operator, ``namespace::name.overload``. Behind the operands it takes the kernel's name
            and then ``arguments``, and writes to ``out=``.
        symbol: The kernel's C function; stable and readable, it is in profiles.
        text: The translation unit, its includes first; empty where what generates it is not
            installed: then only a kernel that came in a pack can run.
        arch: What nvcc compiles for: ``sm_90a``.
        interface: Version of the C function's arguments; a kernel of another one is not called.
        arguments: What follows the kernel's name in each call; not compiled in.
        imports: Modules that define the operator; empty for one of the plugin's own.
        deterministic: Whether the same operands give the same bits each time; if not, it is not
            offered under `torch.use_deterministic_algorithms`.
    """

    op: str
    symbol: str
    text: str
    arch: str
    interface: str = ""
    arguments: tuple[int | float | str, ...] = ()
    imports: tuple[str, ...] = ()
    deterministic: bool = True


@dataclass(frozen=True)
class Candidate:
    """One kernel that computes a problem.

    Attributes:
        template: Name of the template it comes from.
        name: Its own name, unique within the template: lower-case and stable, since records keep it.
        config: What the template chose (tile, stages, schedule ...); shown and stored, part of the
            candidate's identity.
        kernel: The torch operator to call, with a variant that writes to ``out=``; or a kernel
            Inductor generates; or one nvcc compiles.
        description: One line for the AUTOTUNE table.
    """

    template: str
    name: str
    config: Mapping[str, Json]
    kernel: OpKernel | TritonSource | CudaSource
    description: str = ""


@dataclass(frozen=True)
class Failed:
    """A candidate that could not be made; a value, since the other candidates go on.

    Attributes:
        reason: One line for people.
    """

    reason: str


@runtime_checkable
class Template(Protocol):
    """A family of kernels for some operators.

    A template with an attribute ``backend`` is offered only where the option ``gemm_backends`` is
    empty or names it. One that is `Contracted` says which layouts its operands may have; any other
    is taken to read all of them.

    Attributes:
        name: Lower-case, stable, unique in a registry; part of every key.
        ops: Inductor's names of the operators it serves (``mm``, ``addmm`` ...).
    """

    @property
    def name(self) -> str:
        """Return the template's name."""
        ...

    @property
    def ops(self) -> tuple[str, ...]:
        """Return the operators it serves."""
        ...

    def reject(self, problem: Problem) -> str | None:
        """Return why the template cannot run the problem, or None if it can."""
        ...

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        """Return the kernels to try, the most promising first. Only called if not rejected."""
        ...


@runtime_checkable
class Contracted(Protocol):
    """A template that declares which layouts its kernels take, instead of refusing the others alone.

    Where copies of some operands would do, operators (`OpKernel`, `CudaSource`) are offered behind them.
    """

    def contract(self, op: str) -> Mapping[str, Contract]:
        """Return what kernels of an operator ask of each operand's layout, by role (`contract.ROLES`)."""
        ...
