"""What the verb ``precompile`` hands on, prints and compiles if no model is named."""

# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.aot import precompile
from inductor_plugin.aot.precompile import Request
from inductor_plugin.errors import PackError, TargetError

pytestmark = pytest.mark.skipif(torch.version.cuda is None, reason="needs a CUDA build of torch")


def test_what_is_compiled_is_said_where_there_is_no_bar() -> None:
    lines: list[str] = []
    said = threading.Event()

    def say(text: str) -> None:
        lines.append(text)
        said.set()

    with precompile._reported(say, interval_s=0.001):  # pyright: ignore[reportPrivateUsage]
        assert said.wait(10)
    assert lines[0] == "0 kernels compiled, 0 s"
    assert not any(thread.name == "inductor-plugin-precompile" for thread in threading.enumerate())


def test_the_command_line_hands_everything_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from inductor_plugin import cli

    seen: list[Request] = []

    def stop(request: Request, say: Any) -> None:
        seen.append(request)
        raise PackError("enough")

    monkeypatch.setattr(precompile, "precompile", stop)
    arguments = ["precompile", "--target", "A100", "--model", "a:b", "--model", "c:d", "--dynamic"]
    arguments += [
        "--backends",
        "TRITON",
        "--max-candidates",
        "3",
        "--nvcc",
        "/x",
        "--standard",
        "sm_80",
    ]
    arguments += ["--out", "x.pack", "--cache-dir", str(tmp_path)]
    assert cli.main(arguments) == 2
    assert "enough" in capsys.readouterr().err
    (request,) = seen
    assert request.target == "A100"
    assert request.models == ("a:b", "c:d")
    assert (request.dynamic, request.standard, request.out) == (True, "sm_80", Path("x.pack"))
    config = request.config
    assert (config.gemm_backends, config.max_candidates, config.nvcc) == ("TRITON", 3, "/x")
    assert (config.policy, config.cache_dir) == ("build", tmp_path)
    assert cli.main(["precompile", "--standard", "sm_80", "--cache-dir", str(tmp_path)]) == 2
    assert seen[1].target == "A100"


def test_the_general_set_knows_every_architecture_and_keeps_its_sizes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from inductor_plugin import cli
    from inductor_plugin.aot import standard
    from inductor_plugin.problem.target import names, target

    with pytest.raises(SystemExit):
        cli.main(["precompile", "--help"])
    text = capsys.readouterr().out
    for gpu in map(target, names()):
        assert standard.for_arch(gpu.arch).arch == gpu.arch
        model, _ = standard.products(gpu.arch)
        assert model.eight_bit == any(dtype.startswith("float8") for dtype, _ in gpu.rates)
        assert re.search(rf"\b{gpu.arch}\b", text)
    with pytest.raises(TargetError, match="known are: sm_100a"):
        standard.for_arch("sm_70")
    model, sets = standard.products("sm_80")
    assert not model.eight_bit
    assert [len(arguments_[0]) for arguments_ in sets if isinstance(arguments_, tuple)] == [
        len(standard.LAYERS)
    ] * 5
