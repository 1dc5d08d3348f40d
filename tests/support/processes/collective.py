"""One rank of two that compile products around collectives, with and without the plugin.

Started as ``python -m tests.support.processes.collective RANK STORE CACHE_DIR``; prints one JSON line.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config as inductor_config
import torch.distributed as dist
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from torch.distributed import _functional_collectives as functional

import inductor_plugin
from tests.support.candidates import wrong_in_process
from tests.support.lowering import Lab, library_first

_STEP = re.compile(
    r"ops\._c10d_functional\.(\w+)|(extern_kernels)\.\w*mm\(|ops\.(traitor)\.\w+|(cpp_fused)_\w+\("
)


def _world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def reduced(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Row-parallel, as tensor parallelism does it: a product, its sum over ranks, another product."""
    return torch.mm(functional.all_reduce(torch.mm(x, w), "sum", _world()).relu(), v)


def gathered(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    rows = functional.all_gather_tensor(x, 0, _world())
    return torch.mm(torch.mm(rows, w), v)


def scattered(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    part = functional.reduce_scatter_tensor(torch.mm(x, w), "sum", 0, _world())
    return torch.mm(part, v)


def overlapped(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """Two collectives that no product reads until the end."""
    left, right = torch.mm(x, w), torch.mm(x.cos(), w)
    reduced = functional.all_reduce(left, "sum", _world())
    two = functional.all_gather_tensor(right, 0, _world())
    apart = torch.mm(x.sin(), w)
    return torch.mm(reduced + apart, v) + torch.mm(two, v).sum(0)


FUNCTIONS = (reduced, gathered, scattered, overlapped)


def steps(code: str) -> list[str]:
    """Return collectives and kernels in the order of the code, with all products named alike."""
    body = code[code.index("def call(") :]
    body = body[: body.index("def benchmark_compiled_module")]
    body = "\n".join(line for line in body.splitlines() if not line.strip().startswith("#"))
    steps = [next(filter(None, match)) for match in _STEP.findall(body)]
    return ["product" if step in ("extern_kernels", "traitor") else step for step in steps]


def examine(function: Callable[..., Tensor], inputs: list[Tensor], cache_dir: Path) -> list[Any]:
    """Compile one function with stock Inductor and twice with the plugin, and compare."""
    expected = function(*inputs)
    results: list[Any] = []
    for overlap in (False, True):
        with inductor_config.patch(reorder_for_compute_comm_overlap=overlap):
            torch._dynamo.reset()
            _, (stock,) = run_and_get_code(torch.compile(function), *inputs)
            for winner in (library_first, wrong_in_process.first):
                folder = cache_dir / f"{function.__name__}-{winner.__name__}"
                # Ranks that decide together keep their first decision, and each winner is to be seen.
                options: dict[str, Any] = {"cache_dir": str(folder), "ranks": "off"}
                torch._dynamo.reset()
                with wrong_in_process.offered(), Lab(winner, folder).open():
                    run = torch.compile(function, backend="inductor_plugin", options=options)
                    answer, (code,) = run_and_get_code(run, *inputs)
                results.append(
                    {
                        "what": f"{function.__name__}, {winner.__name__}, overlap {overlap}",
                        "close": torch.allclose(answer, expected, atol=1e-4),
                        "stock": steps(stock),
                        "ours": steps(code),
                        "operators": len(re.findall(r"ops\.traitor\.\w+", code)),
                        "library": len(re.findall(r"extern_kernels\.\w*mm\(", code)),
                    }
                )
    return results


def main() -> None:
    """Join the other rank, compile, report."""
    rank, store, cache_dir = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    inductor_config.fx_graph_cache = False
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    x = torch.randn(16, 24)
    torch.manual_seed(7)
    w, v = torch.randn(24, 32), torch.randn(32, 12)
    results = [
        result for function in FUNCTIONS for result in examine(function, [x, w, v], cache_dir)
    ]
    dist.destroy_process_group()
    print(json.dumps(results), flush=True)
    inductor_plugin.disable()


if __name__ == "__main__":
    main()
