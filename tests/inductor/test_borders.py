"""Where the plugin ends: newer torch, switched off, graphs out of Inductor's own cache."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import cpu_vec_isa
from torch._inductor.codegen.common import KernelTemplate

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.inductor import jinja, vector
from tests.support.candidates.providers import offered
from tests.support.compile import Spent, compiled, fresh

pytestmark = pytest.mark.compat

__all__ = ["fresh"]  # the fixture


@pytest.mark.parametrize(
    ("owner", "name"),
    [(KernelTemplate, "_template_from_string"), (cpu_vec_isa, "valid_vec_isa_list")],
)
def test_a_torch_without_a_hook_that_only_saves_time_works(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    inductor_plugin.disable()
    kept = vars(owner)[name]
    a, b = torch.randn(13, 13), torch.randn(13, 13)
    with offered("good"):
        monkeypatch.delattr(owner, name)
        jinja.install()
        vector.install()
        assert not (jinja if owner is KernelTemplate else vector).installed()
        monkeypatch.setattr(owner, name, kept, raising=False)
        assert torch.allclose(compiled(torch.mm, cache_dir)(a, b), a @ b, atol=1e-5)


def test_what_fails_after_measuring_leaves_the_call_to_stock(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise TypeError("moved in this torch")

    monkeypatch.setattr("inductor_plugin.inductor.graph.deferral.stand_in", fail)
    a, b = torch.randn(14, 14), torch.randn(14, 14)
    with offered("good"):
        assert torch.allclose(compiled(torch.mm, cache_dir)(a, b), a @ b, atol=1e-5)
    assert "moved in this torch" in caplog.text


def test_options_made_before_disable_do_nothing(cache_dir: Path) -> None:
    options = inductor_plugin.options(cache_dir=str(cache_dir), max_autotune=True)
    inductor_plugin.disable()
    a, b = torch.randn(15, 15), torch.randn(15, 15)
    spent = Spent()
    with offered("good"):
        assert torch.allclose(torch.compile(torch.mm, options=options)(a, b), a @ b, atol=1e-5)
    assert spent.stats.problems == 0
    assert not cache_dir.exists()


@pytest.mark.slow
@pytest.mark.claim
def test_a_compiled_graph_out_of_inductors_cache_imports_what_it_calls(
    cache_dir: Path, tmp_path: Path
) -> None:
    code = """
import sys, torch, inductor_plugin
from tests.support.candidates.providers import offered
a, b = torch.eye(33), torch.rand(33, 33)
with offered("good"):
    function = torch.compile(torch.mm, backend="inductor_plugin", options={"cache_dir": sys.argv[1],
                             "never_slower_margin": 1, "policy": "pinned", "pin_file": sys.argv[2]})
    assert torch.allclose(function(a, b), b)
print(inductor_plugin.stats().problems, "tests.support.candidates.faults" in sys.modules)
"""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}

    def run() -> str:
        command = [sys.executable, "-c", code, str(cache_dir), str(tmp_path / "pins.json")]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    with offered("good"):
        compiled(torch.mm, cache_dir)(torch.eye(33), torch.rand(33, 33))
    (record,) = open_store(cache_dir).iter_records()
    winner = next(name for name in record.candidates if "good" in name)
    pin = {"environment": record.environment, "op": "mm", "digest": record.digest}
    (tmp_path / "pins.json").write_text(json.dumps({"pins": [{**pin, "winner": winner}]}))
    assert run() == "1 True"
    assert run() == "0 True"
