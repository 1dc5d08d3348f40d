"""What a worker makes of the parent's kernels: requests at its own addresses, modules that are forgotten, resources."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inductor_plugin.cache import Resources
from inductor_plugin.kernels.call import OpKernel, RequestKernel
from inductor_plugin.kernels.resources import KernelResources
from inductor_plugin.ops.native import library as native
from inductor_plugin.worker.child import inductor
from inductor_plugin.worker.jobs import TritonCompileJob


class Request:
    """Looks like Inductor's benchmark request; its kernel writes the length of its module's path."""

    module_path = "at the sender"

    def make_run_fn(self, *_inputs: torch.Tensor, out: torch.Tensor) -> Any:
        return functools.partial(out.fill_, len(self.module_path))


@pytest.mark.parametrize(("module", "length"), [("", len("at the sender")), ("/here", 5)])
def test_a_request_loads_its_module_where_it_is_on_this_machine(module: str, length: int) -> None:
    out = torch.zeros(1)
    inductor.bind_request(RequestKernel(pickle.dumps(Request()), (), module), [], out)()
    assert out.item() == length


def test_a_request_runs_with_the_variables_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """They name the folder in which Triton finds the kernel compiled."""
    applied: list[Mapping[str, str]] = []
    monkeypatch.setattr(inductor, "set_environment", applied.append)
    monkeypatch.setenv("OF_THIS_PROCESS", "1")
    kernel = RequestKernel(pickle.dumps(Request()), (("TRITON_CACHE_DIR", "/kernels"),))
    inductor.bind_request(kernel, [], torch.zeros(1))
    (variables,) = applied
    assert (variables["TRITON_CACHE_DIR"], variables["OF_THIS_PROCESS"]) == ("/kernels", "1")


@pytest.mark.parametrize("is_there", [True, False])
def test_the_library_of_call_sites_is_searched_again_where_it_was_not_there(
    monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    """The parent compiles it meanwhile."""
    searched: list[bool] = []
    site = SimpleNamespace(launch=print)
    there = SimpleNamespace(product_site=lambda *_: site)  # pyright: ignore
    monkeypatch.setattr(native, "sites", lambda: there if is_there else None)
    monkeypatch.setattr(native, "search_again", lambda: searched.append(True))
    kernel = OpKernel("inductor_plugin::cutlass_mm.out", ("k@/a/path", "tt", 1, 0, 1))
    inductor.bind_op(kernel, (torch.zeros(1), torch.zeros(1)), torch.zeros(1))
    assert searched == ([] if is_there else [True])


def test_modules_of_graphs_are_forgotten_with_their_constants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cleared: list[bool] = []
    module = SimpleNamespace(__name__="a generated module")
    cache = SimpleNamespace(modules=[module], cache_clear=lambda: cleared.append(True))
    monkeypatch.setitem(sys.modules, "a generated module", module)
    monkeypatch.setitem(
        sys.modules, "torch._inductor.codecache", SimpleNamespace(PyCodeCache=cache)
    )
    inductor.forget_modules()
    assert ("a generated module" in sys.modules, cleared) == (False, [True])
    monkeypatch.delitem(sys.modules, "torch._inductor.codecache")
    inductor.forget_modules()  # and not imported for this
    assert "torch._inductor.codecache" not in sys.modules


@pytest.mark.parametrize(("cubins", "known"), [(0, False), (1, True), (2, False)])
def test_resources_are_those_of_the_only_kernel_in_a_jobs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cubins: int, *, known: bool
) -> None:
    for number in range(cubins):
        folder = tmp_path / f"HASH{number}"
        folder.mkdir()
        (folder / "k.cubin").write_bytes(b"")
    usage = KernelResources("k", "sm_90a", 40)
    monkeypatch.setattr(inductor, "triton_cuobjdump", lambda: "cuobjdump")
    monkeypatch.setattr(inductor, "triton_usage", lambda *_: usage)  # pyright: ignore
    job = TritonCompileJob("k", "k", "", (("TRITON_CACHE_DIR", str(tmp_path)),), 1.0)
    resources = inductor._resources(job)
    assert isinstance(resources, Resources) is known
    assert inductor._resources(TritonCompileJob("k", "k", "", (), 1.0)) is None
