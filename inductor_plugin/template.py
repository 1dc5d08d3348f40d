"""The contract of a kernel provider: what it can run, and with which kernels, best first.

    problem ─► reject(problem) ─► a reason, kept for `explain`
                    │ None
                    ▼
               candidates(problem) ─► Candidate, Candidate, ...

A template depends on the problem only. It does not query a device, read a cache or start a process,
so that it gives the same answers on a machine without a GPU. What a template needs of other modules
(`Problem`, `OpKernel`, `Contract`) is exported here, so that a package outside of this one imports nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.problem import Problem
from inductor_plugin.problem.contract import Contract

__all__ = [
    "Candidate",
    "Contract",
    "Contracted",
    "CudaSource",
    "Failed",
    "Json",
    "OpKernel",
    "Problem",
    "Template",
    "TritonSource",
]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""Values of a JSON file; a configuration is stored unchanged."""


@dataclass(frozen=True)
class TritonSource:
    """A kernel as an Inductor Triton template, so that its epilogue can be fused.

    The text can use ``def_kernel``, ``size``, ``stride``, ``load_input`` and ``store_output``, the
    constants below, ``INDEX_DTYPE``, and ``ws_ptr`` if it needs scratch memory.

    Attributes:
        name: Stem of the kernel's name in generated code; lower-case and stable.
        text: The template.
        grid: ``tiles`` starts one program per tile of BLOCK_M x BLOCK_N, ``split_k`` SPLIT_K programs
            per tile, ``persistent`` one per multiprocessor of the device (their number is NUM_SMS).
            The others use ``extents``, with all programs on the grid's first axis: ``rows`` (B, H, Sq)
            starts SPLITS programs per head and BLOCK_M queries; ``tokens`` (B + 1, H, Tq) one per head
            and block, of which B sequences begin at most B + ceil(Tq / BLOCK_M); ``rows_backward``
            (B, H, Sq, Hkv, Sk) and ``tokens_backward`` (B + 1, H, Tq, Hkv, Tk) first one per BLOCK_N1
            keys of a key head, then one per BLOCK_M2 queries of a head.
        constants: Compile-time constants, as (name, value) pairs; a string value is code.
        num_stages: Pipeline stages of loads.
        num_warps: Warps per program.
        epilogue: How operands that ``def_kernel`` does not name are applied: ``addmm`` adds
            beta times the first operand to alpha times the product, ``bias`` adds the last one.
        alpha: Factor of the product in ``addmm``.
        beta: Factor of the first operand in ``addmm``.
        scratch_bytes: Bytes of scratch memory; it is zero when the kernel starts, and the kernel must
            reset the parts it relies on to zero.
        capability: The minimum compute capability.
        descriptors: Indices of the operands it reads through tensor descriptors (TMA).
        mutated: Indices of the operands it writes in addition to its output.
        extents: The extents passed to the grid, as (operand, dimension) pairs; empty: the output's.
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
        op: The operator, ``namespace::name.overload``. After the operands it takes the kernel's name
            and then ``arguments``, and writes to ``out=``.
        symbol: The kernel's C function; stable and readable, since profiles show it.
        text: The translation unit, its includes first; empty if its generator is not installed: then
            only a kernel from a pack can run.
        arch: The architecture nvcc compiles for: ``sm_90a``.
        interface: Version of the C function's arguments; kernels of other versions are not called.
        arguments: Arguments after the kernel's name in each call; not compiled in.
        imports: Modules that define the operator; empty for the plugin's operators.
        deterministic: Whether results are bitwise reproducible; if not, it is not offered under
            `torch.use_deterministic_algorithms`.
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
        name: Its name, unique within the template: lower-case and stable, since it is stored in records.
        config: The configuration (tile, stages, schedule ...); shown, stored and part of the candidate's
            identity.
        kernel: The torch operator to call, with an ``out=`` variant; or a kernel that Inductor
            generates; or a kernel that nvcc compiles.
        description: One line for the AUTOTUNE table.
        version: The template's ``version``, which the plugin sets: of an operator, all that tells a changed kernel.
    """

    template: str
    name: str
    config: Mapping[str, Json]
    kernel: OpKernel | TritonSource | CudaSource
    description: str = ""
    version: str = ""


@dataclass(frozen=True)
class Failed:
    """A candidate that could not be created; a value, so that the other candidates are still tried.

    Attributes:
        reason: One line for people.
    """

    reason: str


@runtime_checkable
class Template(Protocol):
    """A family of kernels for some operators.

    A template with an attribute ``backend`` is offered only if the option ``gemm_backends`` is empty or
    names it. A `Contracted` template declares which layouts its operands may have; any other template
    is assumed to accept all layouts.

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
        """Return the kernels to try, the most promising first. Called only if not rejected."""
        ...


@runtime_checkable
class Contracted(Protocol):
    """A template that declares the layouts its kernels accept, instead of only rejecting problems.

    If copies of some operands suffice, its operators (`OpKernel`, `CudaSource`) are offered with copies.
    """

    def contract(self, op: str) -> Mapping[str, Contract]:
        """Return the layout contract of each operand of an operator, by role (`product.ROLES`)."""
        ...
