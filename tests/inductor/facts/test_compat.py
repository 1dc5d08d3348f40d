"""What differs between versions of torch, where the value alone does not tell."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.virtualized import V

from inductor_plugin.inductor.facts.compat import is_marked_dynamic, is_patched, torch_version

pytestmark = pytest.mark.compat

NAME = "max_autotune"


@pytest.mark.skipif(torch_version() < (2, 13), reason="this torch's patches cannot be found")
def test_an_option_is_patched_while_a_patch_that_names_it_is_in_force() -> None:
    assert not is_patched(NAME)
    with inductor_config.patch({NAME: False, "max_fusion_size": 3}):
        assert is_patched(NAME)
        with inductor_config.patch(epilogue_fusion=False):
            assert is_patched(NAME)
            assert is_patched("epilogue_fusion")
        assert not is_patched("epilogue_fusion")

    @inductor_config.patch(max_autotune=True)
    def inside() -> bool:
        return is_patched(NAME)

    assert inside()


def test_an_option_is_not_patched_any_more_when_the_patch_has_ended() -> None:
    """Before torch 2.15 a value that was never set is left behind as one that was."""
    patch = inductor_config.patch(max_autotune=True)
    for _ in range(2):
        with patch, inductor_config.patch(max_autotune=False):
            pass
        assert not is_patched(NAME)


def test_a_patch_of_another_thread_is_none() -> None:
    seen: list[bool] = []
    with inductor_config.patch(max_autotune=False):
        thread = threading.Thread(target=lambda: seen.append(is_patched(NAME)))
        thread.start()
        thread.join()
    assert seen == [False]


def test_a_ragged_size_is_no_symbol_that_is_marked() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
    marked = SimpleNamespace(constraint_sizes=[SimpleNamespace(warn_only=False)] * 3)
    tracked = SimpleNamespace(fake=ragged, symbolic_context=marked)
    env: Any = SimpleNamespace(tracked_fakes=[tracked], replace=mock.Mock())
    graph: Any = SimpleNamespace(sizevars=SimpleNamespace(shape_env=env))
    with V.set_graph_handler(graph):
        assert not is_marked_dynamic(SimpleNamespace(free_symbols={"s0"}))
