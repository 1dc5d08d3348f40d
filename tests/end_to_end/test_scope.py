"""Which compiles the plugin takes part in, and with which options."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportPrivateUsage=false, reportAttributeAccessIssue=false, reportUnknownVariableType=false

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config
from torch._dynamo.utils import counters
from torch._inductor import select_algorithm

import inductor_plugin
from inductor_plugin.inductor import jinja, vector
from tests.support.candidates.providers import offered
from tests.support.compile import Spent, compiled, fresh, records

__all__ = ["fresh"]  # the fixture
pytestmark = pytest.mark.compat


def test_stock_backend_takes_the_plugins_options(cache_dir: Path) -> None:
    a, b = torch.randn(12, 12), torch.randn(12, 12)
    spent = Spent()
    with offered("good"):
        options = inductor_plugin.options(cache_dir=str(cache_dir), max_autotune=True)
        assert torch.allclose(torch.compile(torch.mm, options=options)(a, b), a @ b, atol=1e-5)
    assert spent.stats.problems == 1


def test_enable_covers_every_compile_and_disable_leaves_torch_as_it_was(cache_dir: Path) -> None:
    from torch._inductor import compile_fx

    original = compile_fx.compile_fx
    a, b = torch.randn(9, 9), torch.randn(9, 9)
    with offered("good"):
        inductor_plugin.enable(cache_dir=str(cache_dir))
        spent = Spent()
        torch.compile(torch.mm)(a, b)
        assert spent.stats.problems == 1
        inductor_plugin.disable()
        assert compile_fx.compile_fx is original
        selector = select_algorithm.get_algorithm_selector_cache()
        assert type(selector) is select_algorithm.AlgorithmSelectorCache
        assert not vector.installed()
        assert not jinja.installed()
        torch._dynamo.reset()
        spent = Spent()
        torch.compile(torch.mm, options={"max_autotune": True})(a, b)
        assert spent.stats.problems == 0


def test_two_models_with_different_options_do_not_see_each_other(
    cache_dir: Path, tmp_path: Path
) -> None:
    a, b = torch.randn(10, 10), torch.randn(10, 10)
    other = tmp_path / "other-cache"
    with offered("good"):
        compiled(lambda x, y: torch.mm(x, y) + 1, cache_dir)(a, b)
        spent = Spent()
        compiled(lambda x, y: torch.mm(x, y) + 2, other, policy="cached")(a, b)
        assert spent.stats.benchmarked == 0
        spent = Spent()
        torch.compile(lambda x, y: torch.mm(x, y) + 3, options={"max_autotune": True})(a, b)
        assert spent.stats.problems == 0
    assert len(records(cache_dir)) == 1
    assert not records(other)


def test_a_compile_in_another_thread_is_in_scope(cache_dir: Path) -> None:
    a, b = torch.randn(11, 11), torch.randn(11, 11)
    answers: list[torch.Tensor] = []
    spent = Spent()
    with offered("good"):
        function = compiled(torch.mm, cache_dir)
        thread = threading.Thread(target=lambda: answers.append(function(a, b)))
        thread.start()
        thread.join(120)
    assert torch.allclose(answers[0], a @ b, atol=1e-5)
    assert spent.stats.problems == 1


def test_options_enter_the_fx_graph_cache_key(cache_dir: Path) -> None:
    a, b = torch.randn(13, 13), torch.randn(13, 13)

    def misses(**options: Any) -> int:
        torch._dynamo.reset()
        before = counters["inductor"]["fxgraph_cache_miss"]
        compiled(torch.mm, cache_dir, **options)(a, b)
        return counters["inductor"]["fxgraph_cache_miss"] - before

    with (
        inductor_config.patch(fx_graph_cache=True),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        assert misses() == 1
        assert misses() == 0
        assert misses(never_slower_margin=1.5) == 1
        assert misses(never_slower_margin=1.5, progress="off") == 0


def test_an_unknown_option_is_named_at_the_first_compile(cache_dir: Path) -> None:
    function = compiled(torch.mm, cache_dir, tune_bugdet_s=3)
    with pytest.raises(Exception, match="tune_budget_s"):
        function(torch.randn(4, 4), torch.randn(4, 4))
    with pytest.raises(ValueError, match="tune_budget_s"):
        inductor_plugin.options(tune_bugdet_s=3)


def test_where_it_steps_aside_stock_inductor_decides(cache_dir: Path) -> None:
    a, b = torch.randn(17, 17), torch.randn(17, 17)
    spent = Spent()
    with offered("good"):
        answer = compiled(torch.mm, cache_dir, max_autotune=False)(a, b)
    assert torch.allclose(answer, a @ b, atol=1e-4)
    assert spent.stats.problems == 0


def test_a_torch_without_the_hooks_is_left_to_stock_inductor_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from inductor_plugin import activation
    from inductor_plugin.inductor.facts import compat

    activation._step_aside.cache_clear()
    monkeypatch.setattr(compat, "why_not_supported", lambda: "torch 9.9 lacks everything")
    a, b = torch.randn(19, 19), torch.randn(19, 19)
    spent = Spent()
    with offered("good"):
        with pytest.warns(RuntimeWarning, match="torch 9.9 lacks everything"):
            options = inductor_plugin.options(max_autotune=True)
        # Warned once: a second warning would be an error here.
        answer = torch.compile(torch.mm, backend="inductor_plugin")(a, b)
    assert options == {"max_autotune": True}
    assert torch.allclose(answer, a @ b, atol=1e-4)
    assert spent.stats.problems == 0
