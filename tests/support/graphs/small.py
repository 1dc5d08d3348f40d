"""Thirty small graphs of ten kinds: products, layers frozen or trained, attention, dynamic sizes."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor, nn

Function = Callable[..., Tensor]
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Small:
    """A function, and what it is called with.

    Attributes:
        name: For people.
        function: A function or a module.
        calls: The inputs of each call, the first being those it is compiled for.
        backward: Whether gradients are computed, too.
        frozen: Whether Inductor may take the weights for constants.
        dynamic: Whether the first dimension of the first input is unknown.
    """

    name: str
    function: Function
    calls: tuple[Inputs, ...]
    backward: bool = False
    frozen: bool = False
    dynamic: bool = False

    def results(self, function: Function | None = None) -> list[Tensor]:
        """Return what ``function``, by default its own, computes: outputs and gradients."""
        called = (
            self.function if function is None else function
        )  # a compiled module has no truth value
        results: list[Tensor] = []
        for inputs in self.calls:
            tensors = [
                tensor.detach().clone().requires_grad_(self.backward and tensor.is_floating_point())
                for tensor in inputs
            ]
            if self.dynamic:
                torch._dynamo.mark_dynamic(tensors[0], 0)
            with torch.set_grad_enabled(self.backward):
                output = called(*tensors)
            results.append(output.detach())
            if self.backward:
                output.square().mean().backward()
                results += [tensor.grad for tensor in tensors if tensor.grad is not None]
        return results


def _chain(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.mm(torch.relu(torch.mm(a, b)), c)


def _biased(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.sigmoid(torch.addmm(c, a, b))


def _layer(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return F.linear(F.gelu(F.linear(x, w)), v)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.into(x).chunk(3, -1)
        )
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def graphs(count: int = 30) -> list[Small]:
    """Return the first so many graphs, each kind in turn; the same in every process."""
    torch.manual_seed(0)
    smalls: list[Small] = []
    for variant in range(-(-count // 10)):
        smalls += _kinds(16 * (variant + 2), str(variant))
    return smalls[:count]


def _kinds(n: int, name: str) -> list[Small]:
    def once(*sizes: Sequence[int]) -> tuple[Inputs, ...]:
        return (tuple(torch.randn(*size) for size in sizes),)

    block, linear = _Block(n).eval(), nn.Sequential(nn.Linear(256, 192 + n), nn.ReLU()).eval()
    dynamic = once((n, 40), (40, 24)) + once((n + 5, 40), (40, 24))
    heads = ((2, 4, n, 16),) * 3
    return [
        Small(f"mm {name}", torch.mm, once((n, 48), (48, 32))),
        Small(f"frozen linear {name}", linear, once((256, 256)), frozen=True),
        Small(f"training {name}", _layer, once((32, n), (64, n), (n, 64)), backward=True),
        Small(f"attention {name}", _attention, once(*heads)),
        Small(f"dynamic {name}", torch.mm, dynamic, dynamic=True),
        Small(f"chain {name}", _chain, once((n, 64), (64, n), (n, 40))),
        Small(f"bmm {name}", torch.bmm, once((3, n, 24), (3, 24, 32))),
        Small(f"addmm {name}", _biased, once((n,), (40, 48), (48, n))),
        Small(f"block {name}", block, once((2, n, n))),
        Small(f"attention trained {name}", _attention, once(*heads), backward=True),
    ]
