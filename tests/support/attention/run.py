"""Runs generated code on fake tensors, and records its kernel calls and results.

torch's operators run with their fake implementations, which checks the sizes, strides and types that
generated code asserts. Triton and C++ kernels and operators that write to ``out=`` are recorded, not run.
Each tensor is identified by the source of its memory:

    q, k, ...            an input of the graph
    0, 1, ...            a result of the attention operator
    out, lse, dq, dv     an output of a template's kernel or operator
    made of lse          an output of one of Inductor's kernels, with the sources it reads
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Protocol, runtime_checkable

import torch

from tests.support.attention.graphs import Graph

_RUNS = re.compile(r"\b(\w+)\.run\(")
_CPP = re.compile(r"\b(cpp_\w+)\(")
_RANGES = re.compile(r"(?m)^(?:range_\w+ = |\s*if range_\w+\.).*\n?")
"""The ranges of a profiler, of kernels that are not loaded here."""


@dataclass(frozen=True)
class Memory:
    """A tensor other than an input: its source (empty if nothing has written to it), and its layout."""

    source: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Called:
    """One call, its arguments by the names of the operator's schema or of the kernel's text.

    Attributes:
        name: ``namespace.operator``, or ``triton`` for a template's kernel.
        arguments: The arguments that differ from the schema's defaults; a tensor as in `Run.seen`.
        grid: Programs of a template's kernel.
    """

    name: str
    arguments: dict[str, Any]
    grid: tuple[int, ...] = ()


@dataclass
class Run:
    """A run of generated code.

    Attributes:
        names: Names of the inputs.
        tensors: The inputs.
        code: The generated code.
        calls: The attention's kernels that were called.
        outputs: The results.
        copies: Inductor's own kernels that ran.
    """

    names: Sequence[str]
    tensors: Sequence[torch.Tensor]
    code: str
    calls: list[Called] = field(default_factory=list[Called])
    outputs: tuple[Any, ...] = ()
    copies: int = 0
    _sources: dict[int, str] = field(default_factory=dict[int, str])
    _kept: list[Any] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        for name, tensor in zip(self.names, self.tensors, strict=True):
            self._sources[_storage(tensor)] = name

    def input(self, name: str) -> torch.Tensor:
        """Return an input by its name."""
        return self.tensors[self.names.index(name)]

    def source(self, tensor: torch.Tensor) -> str:
        """Return where a tensor's memory comes from."""
        return self._sources.get(_storage(tensor), "")

    def seen(self, value: Any) -> Any:
        """Return an argument in a comparable form: for a tensor the source of its memory and its layout."""
        if not isinstance(value, torch.Tensor):
            return value
        return Memory(self.source(value), tuple(value.size()), strides(value), value.dtype)

    @property
    def sources(self) -> tuple[str, ...]:
        """Where the outputs come from."""
        return tuple(map(self.source, self.outputs))

    def name(self, tensor: torch.Tensor, source: str) -> None:
        """Set the source of a tensor's memory."""
        self._sources[_storage(tensor)] = source
        self._kept.append(tensor)  # or another tensor would have its memory

    def operator(self, path: str, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an operator of torch's."""
        schema = op._schema.arguments
        bound = {arg.name: value for arg, value in zip(schema, args, strict=False)} | kwargs
        usual = {arg.name: arg.default_value for arg in schema}
        unusual = {name: x for name, x in bound.items() if _differs(x, usual[name])}
        self.call(path, unusual, writes="out" in kwargs)
        if "out" in kwargs:
            return kwargs["out"]
        results = op(*args, **kwargs)
        several = isinstance(results, (tuple, list))
        for index, result in enumerate(results if several else (results,)):
            if isinstance(result, torch.Tensor):
                self.name(result, str(index))
        return results

    def call(
        self, name: str, named: dict[str, Any], grid: tuple[int, ...] = (), *, writes: bool = True
    ) -> None:
        """Note a call; if it ``writes``, then to memory that nothing has written to."""
        self.calls.append(Called(name, {key: self.seen(x) for key, x in named.items()}, grid))
        for key, value in named.items():
            if writes and isinstance(value, torch.Tensor) and not self.source(value):
                self.name(value, key)

    def kernel(self, name: str, *args: Any, **_: Any) -> None:
        """Run a Triton or C++ kernel."""
        if not name.startswith("triton_tem"):
            self._own(args)
            return
        (signature,) = re.findall(rf"def {name}\(([^)]*)\)", self.code)
        parameters = [text.partition(":")[0].strip() for text in signature.split(",")]
        result = "dk" if "arg_DQ" in parameters else "out"
        plain = [parameter.removeprefix("arg_").lower() for parameter in parameters]
        plain = [result if name == "out_ptr0" else name for name in plain]
        count = len(plain)
        self.call("triton", dict(zip(plain, args[:count], strict=True)), tuple(args[count:]))

    def _own(self, args: Sequence[Any]) -> None:
        self.copies += 1
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        read = ", ".join(self.source(tensor) for tensor in tensors if self.source(tensor))
        for tensor in tensors:
            if not self.source(tensor):
                self.name(tensor, f"made of {read}")


@runtime_checkable
class Wanted(Protocol):
    """An expected argument that depends on the call."""

    def of(self, run: Run) -> Any:
        """Return the value expected of `Run.seen`."""
        ...


@dataclass(frozen=True)
class Input:
    """An input of the graph; with ``swap`` its second and third dimension are exchanged."""

    name: str
    swap: bool = False

    def of(self, run: Run) -> Any:
        """Return the input, as it is seen."""
        tensor = run.input(self.name)
        return run.seen(tensor.transpose(1, 2) if self.swap else tensor)


@dataclass(frozen=True)
class Length:
    """Number of rows of q or of k; for packed sequences the number of all tokens."""

    name: str

    def of(self, run: Run) -> int:
        """Return the number."""
        tensor = run.input(self.name)
        return int(tensor.size(2 if tensor.dim() == 4 else 0))


@dataclass(frozen=True)
class Like:
    """Memory that nothing has written to, with the layout of an input, and its type unless ``dtype`` is set."""

    name: str
    dtype: torch.dtype | None = None

    def of(self, run: Run) -> Memory:
        """Return the memory."""
        seen = run.seen(run.input(self.name))
        return replace(seen, source="", dtype=self.dtype or seen.dtype)


@dataclass(frozen=True)
class Fresh:
    """Small memory that nothing has written to: states of random numbers, which a gradient takes."""

    size: tuple[int, ...]
    dtype: torch.dtype

    def of(self, run: Run) -> Memory:
        """Return the memory."""
        return Memory("", self.size, (1,) * len(self.size), self.dtype)


@dataclass(frozen=True)
class Rows:
    """A float32 number for each row, lse or delta.

    Attributes:
        source: Where it comes from.
        form: Its form; see `inductor_plugin.attention.library`.
    """

    source: str = ""
    form: str = "rows"

    def of(self, run: Run) -> Memory:
        """Return the memory."""
        size = [*run.input("q").size()[:-1]]
        if len(size) == 2:  # of packed sequences [T, H]
            size.reverse()
        if self.form == "padded":
            size[-1] = -(-size[-1] // 32) * 32
        if self.form == "column":
            size.append(1)
        dense = torch.empty(size, device="meta")
        if self.form == "cpu":  # heads innermost
            dense = torch.empty((size[0], size[2], size[1]), device="meta").transpose(1, 2)
        return Memory(self.source, tuple(size), strides(dense))


def ran(
    code: str, graph: Graph, names: Sequence[str], tensors: Sequence[torch.Tensor] | None = None
) -> Run:
    """Run generated code on the inputs of a graph whose sizes are known, or on others."""
    run = Run(names, graph.tensors if tensors is None else tensors, code)
    start = code.index("class Runner")
    text = textwrap.dedent(code[start : code.index("\nrunner = ", start)])
    text = _RANGES.sub("", text)
    space: dict[str, Any] = dict(_namespace(run))
    space |= {name: _Kernel(run, name) for name in _RUNS.findall(text)}
    space |= {name: _Kernel(run, name).run for name in _CPP.findall(text)}
    with graph.mode:
        exec(compile(text, "generated", "exec"), space)
        run.outputs = tuple(space["Runner"]([]).call([*run.tensors]))
    return run


def strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return strides, with 1 for dimensions of 1, where they do not matter."""
    pairs = zip(tensor.size(), tensor.stride(), strict=True)
    return tuple(1 if extent == 1 else step for extent, step in pairs)


def truth(graph: Graph) -> list[Any]:
    """Return what the traced operator itself gives back for the same inputs."""
    with graph.mode:
        return list(graph.module(*graph.tensors))


def _differs(value: Any, usual: Any) -> bool:
    return isinstance(value, torch.Tensor) or value != usual


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


@dataclass(frozen=True)
class _Kernel:
    owner: Run
    name: str

    def run(self, *args: Any, **kwargs: Any) -> None:
        self.owner.kernel(self.name, *args, **kwargs)


class _Path:
    """``torch.ops`` as generated code names what is below it."""

    def __init__(self, run: Run, real: Any, path: tuple[str, ...] = ()) -> None:
        self._run, self._real, self._path = run, real, path

    def __getattr__(self, name: str) -> _Path:
        return _Path(self._run, getattr(self._real, name), (*self._path, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = ".".join(self._path).removesuffix(".default")
        return self._run.operator(name, self._real, args, kwargs)


class _Torch:
    """``torch`` as generated code names it, without a device."""

    def __init__(self, run: Run) -> None:
        self.ops = _Path(run, torch.ops)
        self.cuda = SimpleNamespace(_DeviceGuard=lambda _: nullcontext(), set_device=lambda _: None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _namespace(run: Run) -> Iterator[tuple[str, Any]]:
    yield "torch", _Torch(run)
    yield "math", math
    for device in ("cpu", "cuda"):
        yield f"empty_strided_{device}", _empty(device)
    yield "reinterpret_tensor", _reinterpreted
    yield "copy_if_misaligned", lambda tensor: tensor
    yield "get_raw_stream", lambda _: 0
    yield "assert_size_stride", _laid_out
    yield "assert_size_stride_grouped", _all_laid_out
    yield "assert_tensor_metadata", _described
    yield "assert_alignment", lambda *_: None


def _empty(device: str) -> Callable[..., torch.Tensor]:
    def empty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)

    return empty


def _reinterpreted(tensor: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _laid_out(tensor: torch.Tensor, size: Any, stride: Any, *_: Any) -> None:
    assert tuple(tensor.size()) == tuple(size)
    expected = tuple(1 if n == 1 else step for n, step in zip(size, stride, strict=True))
    assert strides(tensor) == expected


def _all_laid_out(tensors: Any, sizes: Any, every_stride: Any, *_: Any) -> None:
    for tensor, size, stride in zip(tensors, sizes, every_stride, strict=True):
        _laid_out(tensor, size, stride)


def _described(tensor: torch.Tensor, size: Any, stride: Any, dtype: Any, *_: Any) -> None:
    _laid_out(tensor, size, stride)
    assert tensor.dtype == dtype
