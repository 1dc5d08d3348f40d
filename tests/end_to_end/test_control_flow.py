"""`torch.cond` and `while_loop` with the plugin on: each branch is tuned, and runs when it is its turn."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch import Tensor
from torch._higher_order_ops.while_loop import while_loop
from torch._inductor.utils import run_and_get_code

import inductor_plugin
from tests.support.candidates import wrong_in_process
from tests.support.lowering import Arg, Lab, library_first, library_last

pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with inductor_config.patch(fx_graph_cache=False):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def compiled(function: Callable[..., Any], cache_dir: Path, **options: Any) -> Callable[..., Any]:
    dynamic = options.pop("dynamic", None)
    options = {"cache_dir": str(cache_dir), **options}
    return torch.compile(function, backend="inductor_plugin", options=options, dynamic=dynamic)


def either(flag: Tensor, x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """A product before, two in one branch, another in the other, one behind."""
    h = torch.mm(x, w).relu()
    h = torch.cond(
        flag.sum() > 0,
        lambda h, v: torch.mm(torch.mm(h, v).sin(), v.t()),
        lambda h, v: torch.mm(h, v @ v.t()) + 1,
        (h, v),
    )
    return torch.mm(h, v)


def nested(flag: Tensor, x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    def inner(x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(
            x.sum() > 0,
            lambda x, w: torch.mm(x, w).cos(),
            lambda x, w: torch.mm(w.t(), x.t()).t().contiguous(),
            (x, w),
        )

    def outer(x: Tensor, w: Tensor) -> Tensor:
        return inner(torch.mm(x, w @ w.t()), w)

    return torch.cond(flag.sum() > 0, outer, lambda x, w: torch.mm(x, w) - 2, (x, w))


def sizes() -> list[Tensor]:
    return [torch.randn(24, 16), torch.randn(16, 32) / 4, torch.randn(32, 20) / 5]


@pytest.mark.parametrize(
    ("function", "winner", "dynamic"),
    [  # each pair of values once
        (either, "library", False),
        (either, "operator", True),
        (nested, "library", True),
        (nested, "operator", False),
    ],
)
def test_both_branches_are_tuned_and_right(
    cache_dir: Path, function: Callable[..., Tensor], winner: str, dynamic: bool
) -> None:
    chosen = {"library": library_first, "operator": wrong_in_process.first}[winner]
    x, w, v = sizes()
    with wrong_in_process.offered(), Lab(chosen, cache_dir).open() as lab:
        run = compiled(function, cache_dir, dynamic=dynamic)
        _, codes = run_and_get_code(run, torch.ones(1), x, w, v)
        for flag in (torch.ones(1), -torch.ones(1)):
            for tensor in (x, -x, x.abs(), -x.abs()):
                assert torch.allclose(
                    run(flag, tensor, w, v), function(flag, tensor, w, v), atol=1e-4
                )
        if dynamic:
            x = torch.randn(40, 16)
            flag = torch.ones(1)
            assert torch.allclose(run(flag, x, w, v), function(flag, x, w, v), atol=1e-4)
            torch._dynamo.reset()
            _, codes = run_and_get_code(compiled(function, cache_dir), flag, x, w, v)
    assert len({task.digest for task in lab.tasks}) >= 4
    code = "\n".join(codes)
    products = code.count("extern_kernels.mm("), code.count("torch.ops.traitor.mm")
    assert (products[0] > 0, products[1] > 0) == (winner == "library", winner == "operator")


def test_a_branch_that_does_not_run_is_not_looked_at(cache_dir: Path) -> None:
    def function(flag: Tensor, x: Tensor, w: Tensor) -> Tensor:
        return torch.cond(
            flag.sum() > 0, lambda x, w: torch.mm(x, w), lambda x, w: torch.mm(x, w * 2), (x, w)
        )

    x, w, _ = sizes()
    with wrong_in_process.offered(), Lab(wrong_in_process.first, cache_dir).open():
        run = compiled(function, cache_dir, check_outputs="nan")
        on, off = torch.ones(1), -torch.ones(1)
        assert torch.allclose(run(on, x, w), x @ w, atol=1e-4)
        assert torch.allclose(run(off, x, w), x @ w * 2, atol=1e-4)
        with wrong_in_process.betraying(0, 0), pytest.raises(inductor_plugin.errors.OutputError):
            run(on, x, w)


@pytest.mark.parametrize("winner", [library_first, wrong_in_process.first])
def test_a_loop_is_tuned_once_and_right(cache_dir: Path, winner: Callable[..., float]) -> None:
    def function(count: Tensor, x: Tensor, w: Tensor) -> Tensor:
        def step(count: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return count - 1, torch.mm(x, w).sin()

        return while_loop(lambda count, x: count > 0, step, (count, x))[1]

    x, w = torch.randn(24, 16), torch.randn(16, 16)
    with wrong_in_process.offered(), Lab(winner, cache_dir).open() as lab:
        run = compiled(function, cache_dir)
        for count in (0, 1, 5):
            operands = torch.tensor(count), x, w
            assert torch.allclose(run(*operands), function(*operands), atol=1e-4)
    assert len(lab.tasks) == 1


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")
@pytest.mark.parametrize("winner", [library_first, library_last])
def test_on_a_gpu_each_branch_is_lowered(cache_dir: Path, winner: Callable[..., float]) -> None:
    def function(x: Tensor, w: Tensor, flag: Tensor) -> tuple[Tensor, ...]:
        h = torch.mm(x, w)
        return (
            torch.cond(
                flag.sum() > 0,
                lambda h, w: torch.mm(h, w.t()).relu(),
                lambda h, w: torch.mm(h.relu(), w.t()),
                (h, w),
            ),
        )

    arguments = Arg((256, 128)), Arg((128, 512)), Arg((1,), torch.float32)
    with Lab(winner, cache_dir).open() as lab:
        code = lab.lower_dynamic(function, *arguments)
    assert len(lab.tasks) >= 2
    library = code.count("extern_kernels.mm(")
    assert library == (3 if winner is library_first else 0), code
