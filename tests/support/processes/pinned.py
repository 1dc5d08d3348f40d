"""Models in a process of their own: recorded, or decided by a pin file.

    python -m tests.support.processes.pinned record|replay gpt2|gpt2-large|demo FILE CACHE [--without-template]

``gpt2`` is a training step and an inference of a small GPT-2, ``gpt2-large`` of two layers of the usual width, ``demo`` what
the verb `demo` compiles on a CPU. Prints JSON: the decisions of all compiles, digests of the outputs' and the gradients' bits,
and what was spent. On a CPU the library kernel has competitors without frozen weights only by a template, which is chosen
wherever it is offered.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportMissingParameterType=false
# pyright: reportUnknownParameterType=false, reportUnknownVariableType=false

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config as inductor_config

import inductor_plugin
from inductor_plugin.aot import models
from inductor_plugin.tuning import race, selection
from inductor_plugin.tuning.decision import Verdict, decide
from tests.support import hugging_face
from tests.support.candidates.fast_templates import CALLS, rivals_offered


def rivals_win(times: Mapping[str, float], libraries: Collection[str], *rest: Any) -> Verdict:
    """Decide for the template where it is offered, else as usual."""
    rival = next((name for name in times if name.startswith("rivals")), None)
    library = next(iter(libraries), None)
    usual = decide(times, libraries, *rest)
    return usual if rival is None else Verdict(rival, library, "chosen by the test", 1.5)


def gpt2(*, large: bool) -> Any:
    sizes = {} if large else {"n_embd": 64, "n_head": 2, "n_positions": 64}
    torch.manual_seed(0)
    return hugging_face.gpt2(vocab_size=512, n_layer=2 if large else 1, **sizes)


def bits(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().numpy().tobytes()).hexdigest()[:16]


def gradients_of(network: Any) -> dict[str, torch.Tensor]:
    """Return copies of a network's gradients."""
    gradients = ((name, parameter.grad) for name, parameter in network.named_parameters())
    return {name: gradient.clone() for name, gradient in gradients if gradient is not None}


@dataclass(frozen=True)
class Ran:
    """What a model has computed.

    Attributes:
        outputs: Digests of bits, by name.
        error: Largest difference of an output or a gradient from eager's, as a part of the largest value of that.
    """

    outputs: dict[str, str]
    error: float


def difference(computed: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference as a part of the largest value; infinite if a value is NaN, which `max` would pass over."""
    part = float(((computed - expected).abs().max() / expected.abs().max()).detach())
    return math.inf if math.isnan(part) else part


def run_gpt2(options: dict[str, Any], *, large: bool) -> Ran:
    """Train one step, and infer with frozen weights."""
    network = gpt2(large=large)
    # Each token once: Inductor adds an embedding's gradient with atomics, on a CPU, too, and rows that are met twice have
    # other bits in 2 of 10 processes, and in 4 of 20 calls of one process with stock Inductor (torch 2.14.1, two threads).
    tokens = torch.randperm(512, generator=torch.Generator().manual_seed(1))[:128].reshape(4, 32)
    function: Any = torch.compile(network, backend="inductor_plugin", options=options)
    out = function(tokens).last_hidden_state
    (out.square().sum()).backward()
    computed = {"training": out, **gradients_of(network)}
    network.eval()
    torch._dynamo.reset()
    with torch.no_grad(), inductor_config.patch(freezing=True):
        function = torch.compile(network, backend="inductor_plugin", options=options)
        computed["inference"] = function(tokens).last_hidden_state
    network.train()
    network.zero_grad()
    expected = network(tokens).last_hidden_state
    expected.square().sum().backward()
    eager = {"training": expected, "inference": expected, **gradients_of(network)}
    outputs = {name: bits(tensor) for name, tensor in computed.items()}
    return Ran(outputs, max(difference(computed[name], eager[name]) for name in eager))


def run_demo(options: dict[str, Any]) -> Ran:
    """Compile and run the model of the demo as that does."""
    network, inputs = models.load(models.TINY)
    with torch.no_grad():
        expected = models.tensors(models.call(network, inputs))
        function: Any = torch.compile(
            network, backend="inductor_plugin", options={**options, "max_autotune": True}
        )
        out = models.tensors(models.call(function, inputs))
    outputs = {f"output {number}": bits(each) for number, each in enumerate(out)}
    return Ran(outputs, max(map(difference, out, expected)))


def main(arguments: Sequence[str]) -> None:
    mode, model, file, cache_dir, *flags = arguments
    decisions: dict[str, str] = {}

    def take(tickets: Sequence[Any]) -> None:
        for ticket in tickets:
            text = f"{ticket.problem.describe()} {ticket.digest[:12]}"
            decisions[text] = f"{ticket.verdict and ticket.verdict.winner}"

    options: dict[str, Any] = {"cache_dir": cache_dir}
    if mode == "replay":
        options |= {"policy": "pinned", "pin_file": file}
        options |= {} if "--without-template" in flags else {"strict": True}
    else:
        selection.decide = rivals_win
        # Numbers of a rival that is far behind are compared once, and it may not win: on a CPU with AVX-512 each of them is.
        race.LEAD = math.inf
    with ExitStack() as stack:
        stack.enter_context(inductor_plugin.observe(take))
        stack.enter_context(nullcontext() if "--without-template" in flags else rivals_offered())
        stack.enter_context(inductor_plugin.record(file) if mode == "record" else nullcontext())
        is_large = model == "gpt2-large"
        ran = run_demo(options) if model == "demo" else run_gpt2(options, large=is_large)
    print(
        json.dumps(
            {
                **asdict(ran),
                "decisions": decisions,
                "rivals": CALLS.total(),
                "stats": asdict(inductor_plugin.stats()),
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
