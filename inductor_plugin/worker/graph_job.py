"""Messages about whole compiled graphs, which a benchmark worker runs in turns: frozen arguments and times.

As in `jobs`: plain data, pickled between our own processes, and neither this module nor the parent's side needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.kernels.call import TensorSpec

MKLDNN_CONVOLUTION = "mkldnn_convolution"
"""A packing of `GraphTensor` besides those of `TensorSpec`."""
FEWEST_TURNS = 5
"""Turns without other work that a comparison needs: of fewer, quartiles do not tell a difference from chance."""
TURN_WAIT_S = 30.0
"""Longest wait for another process that measures on the GPU, whether that shows life or not: the parent waits for all of it."""


@dataclass(frozen=True)
class GraphTensor:
    """An input or a constant of a graph, as the worker builds it.

    Attributes:
        spec: Its sizes; random floats of standard deviation 0.1, true truth values. ``seed`` distinguishes it from others of the
            same sizes: two graphs that name the same tensor read the same memory.
        data: The bytes of its storage where its values matter; None for made-up ones.
        below: Made-up integers are smaller than this: what they index has as many elements.
        packing: As in `TensorSpec`, and ``mkldnn_convolution``; empty for a plain tensor.
        packing_arguments: Arguments of the operator that packs it, after the plain tensor.
    """

    spec: TensorSpec
    data: bytes | None = None
    below: int = 2
    packing: str = ""
    packing_arguments: tuple[int | tuple[int, ...] | None, ...] = ()


Input = GraphTensor | int | float | bool


@dataclass(frozen=True)
class GraphCode:
    """A compiled graph.

    Attributes:
        source: The module that Inductor has generated. Its kernels are found compiled in Inductor's cache.
        constants: Attributes of the module, by name.
    """

    source: str
    constants: tuple[tuple[str, GraphTensor], ...] = ()


@dataclass(frozen=True)
class LoadSettings:
    """How the parent's Inductor generates code: a worker that differs compiles every kernel again.

    Attributes:
        environment: Variables that name Inductor's and Triton's folders.
        options: Inductor's options that are not at their default and change how kernels are compiled.
        isa: Its vector instruction set, pickled; empty where no C++ kernel is used.
    """

    environment: tuple[tuple[str, str], ...] = ()
    options: tuple[tuple[str, object], ...] = ()
    isa: bytes = b""


@dataclass(frozen=True)
class GraphJob:
    """Compiled graphs to run in turns, on the same inputs.

    Attributes:
        graphs: The graphs.
        inputs: Inputs of each of them, in order.
        changed: Indices of the inputs that they change: these are restored before each sample.
        device: Where they run, ``cpu`` or ``cuda:0`` ...
        settings: How to load them.
        limit_s: Seconds after which no turn begins, but for a few.
        most_s: Seconds that the fewest calls may take in all. Where they would take longer, nothing is measured.
    """

    graphs: tuple[GraphCode, ...]
    inputs: tuple[Input, ...]
    changed: tuple[int, ...]
    device: str
    settings: LoadSettings
    limit_s: float
    most_s: float


@dataclass(frozen=True)
class GraphTimes:
    """How long graphs took.

    Attributes:
        samples_ms: Milliseconds per call, a row for each graph and an entry for each turn; empty if not measured.
        disturbed: True if other work on the machine has prolonged a call of all turns but fewer than `FEWEST_TURNS`.
        reason: Why nothing was measured: calls take too long.
        load_s: Seconds to load the graphs and to build what they read.
        run_s: Seconds to run them.
        need_s: Seconds that the fewest calls would take, where nothing was measured; else 0.
    """

    samples_ms: tuple[tuple[float, ...], ...] = ()
    disturbed: bool = False
    reason: str = ""
    load_s: float = 0.0
    run_s: float = 0.0
    need_s: float = 0.0
