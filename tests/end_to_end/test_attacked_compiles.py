"""Compiles that something happens to: Ctrl-C, a stopped process, a killed compiler, locks that do not work, bad kernels.

Each ends soon and with right numbers, and nothing of it lasts.
"""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inductor_plugin.cache import digest_of, open_store
from inductor_plugin.tuning.holder import holder_pid
from tests.support.candidates.providers import offered
from tests.support.compile import compiled, fresh
from tests.support.fakes.tasks import problem
from tests.support.repository import REPOSITORY
from tests.support.warned import warnings_in

__all__ = ["fresh"]  # the fixture


def error_of(
    function: Callable[..., torch.Tensor], *operands: torch.Tensor, **options: Any
) -> float:
    """Compile a function, and return how far it is off the eager result at most, in two calls; NaN if any number is."""
    expected = function(*operands)
    call = compiled(function, **options)
    return float(torch.stack([(call(*operands) - expected).abs().max() for _ in range(2)]).max())


def test_a_kernel_that_empties_its_weight_leaves_the_users_weight_alone(cache_dir: Path) -> None:
    x, weight = torch.randn(62, 96), torch.randn(96, 48)
    before = weight.clone()
    with offered("clears_b", namespace="numbers"):
        assert error_of(torch.mm, x, weight, cache_dir=cache_dir) < 1e-3
    assert torch.equal(weight, before)
    (record,) = open_store(cache_dir).iter_records()
    (eater,) = [row for row in record.candidates.values() if "clears_b" in row.name]
    assert eater.status in ("wrong", "red_zone")


def test_a_product_without_its_bias_is_refused_in_bfloat16(cache_dir: Path) -> None:
    """The weight's elements are small as those of a trained one: the bias is half of the result."""
    torch.manual_seed(0)
    a, bias = torch.randn(64, 4096).bfloat16(), torch.randn(512).bfloat16()
    b = (torch.randn(4096, 512) / 64).bfloat16()
    with offered("forgets_c.c", serves=("addmm",), namespace="numbers", dtype="bfloat16"):
        assert error_of(torch.addmm, bias, a, b, cache_dir=cache_dir) < 0.1
    (record,) = open_store(cache_dir).iter_records()
    (forgetful,) = [row for row in record.candidates.values() if "forgets_c" in row.name]
    assert forgetful.status == "wrong"


def lock_name(rows: int) -> tuple[str, str]:
    """Return the digest and the lock of the product that `problem` describes."""
    digest = digest_of(problem(device="cpu", rows=rows).fields())
    return digest, f"measure-{digest}"


def until(condition: Callable[[], object], limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)


def waits_for_tuning(thread: int) -> bool:
    """Return whether a thread waits for a problem's measurements; elsewhere, torch may swallow an interrupt."""
    frame, files = sys._current_frames().get(thread), list[str]()  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    waits = files[:1] == [threading.__file__]
    return waits and any("inductor_plugin/tuning/" in file for file in files)


def test_ctrl_c_gives_the_problem_back_to_others_while_the_process_lives(cache_dir: Path) -> None:
    digest, name = lock_name(61)
    a, b = torch.randn(61, 32), torch.randn(32, 48)
    path, main = open_store(cache_dir).layout.lock(name), threading.main_thread().ident
    assert main is not None

    interrupted = threading.Event()

    def interrupt() -> None:
        """Again after a while: Python ignores an exception in a callback of its garbage collector."""
        until(lambda: holder_pid(path) == os.getpid())
        while not interrupted.wait(2.0):
            until(lambda: interrupted.is_set() or waits_for_tuning(main))
            if waits_for_tuning(main):
                signal.pthread_kill(main, signal.SIGINT)

    # Shells start what runs in the background with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with offered("hangs"):
        thread = threading.Thread(target=interrupt)
        thread.start()
        call = compiled(torch.mm, cache_dir, bench_timeout_s=30)
        try:
            with pytest.raises(KeyboardInterrupt):
                call(a, b)
        finally:
            interrupted.set()
            thread.join()
            signal.signal(signal.SIGINT, before)
        with open_store(cache_dir).lock_kernel(name, 10.0):  # long before the hanging one's limit
            pass
    with offered("good"):
        torch.compiler.reset()
        assert error_of(torch.mm, a, b, cache_dir=cache_dir) < 1e-3
    (record,) = open_store(cache_dir).iter_records()
    assert record.digest == digest


STOPPED = """
import os, signal, sys
from inductor_plugin.cache import open_store
lock = open_store(sys.argv[1]).lock_kernel(sys.argv[2], timeout_s=0)
lock.__enter__()
print("held", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_stopped_process_is_waited_for_no_longer_than_one_step_may_take(
    cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digest, name = lock_name(60)
    a, b = torch.randn(60, 32), torch.randn(32, 48)
    words = [sys.executable, "-c", STOPPED, str(cache_dir), name]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            started = time.monotonic()
            limits = {"compile_timeout_s": 2, "bench_timeout_s": 2}
            with offered("good"):
                assert error_of(torch.mm, a, b, cache_dir=cache_dir, **limits) < 1e-3
            took_s = time.monotonic() - started
        finally:
            holder.kill()
    assert 6.0 < took_s < 60.0
    (warning,) = warnings_in(caplog)
    assert f"process {holder.pid}" in warning
    (record,) = open_store(cache_dir).iter_records()
    assert record.digest == digest
    assert len(record.candidates) == 2


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_where_files_cannot_be_locked_all_is_tuned_in_memory(
    code: int, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flock = fcntl.flock

    def fails(descriptor: int, operation: int) -> None:
        if "plugin-cache/locks" in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(code, os.strerror(code))
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", fails)
    a, b = torch.randn(59, 32), torch.randn(32, 48)
    started = time.monotonic()
    with offered("good"):
        assert error_of(torch.mm, a, b, cache_dir=cache_dir) < 1e-3
    assert time.monotonic() - started < 60.0
    (warning,) = warnings_in(caplog)
    assert warning.startswith("inductor-plugin: the cache directory ")
    assert os.strerror(code) in warning


def test_a_path_that_is_too_long_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    a, b = torch.randn(58, 32), torch.randn(32, 48)
    with offered("good"):
        assert error_of(torch.mm, a, b, cache_dir=Path("/tmp", *["x" * 200] * 30)) < 1e-3
    (warning,) = warnings_in(caplog)
    assert "its path is longer than 3600 bytes; name another one" in warning
    assert "damaged" not in warning


KILLED = """
import json, sys
import torch, torch._inductor.config as config
import inductor_plugin
from inductor_plugin.tuning.runtime import RUNTIME
config.freezing, config.fx_graph_cache = True, False
torch.manual_seed(0)
model, x = torch.nn.Linear(64, 96).eval(), torch.randn(33, 64)
seen = []
with torch.no_grad():
    for _ in range(2):
        RUNTIME.forget()
        torch._dynamo.reset()
        before = inductor_plugin.stats()
        compiled = torch.compile(
            model, backend="inductor_plugin", options={"cache_dir": sys.argv[1]}
        )
        error = float((compiled(x) - model(x)).abs().max())
        spent = inductor_plugin.stats().since(before)
        seen.append([error, spent.compiled, spent.failed])
print(json.dumps(seen))
"""


@pytest.mark.slow
def test_a_kernel_whose_compiler_was_killed_is_compiled_the_next_time(
    cache_dir: Path, tmp_path: Path, inductor_cache: Path
) -> None:
    """As the OOM killer ends one process: the first compiler that a worker starts."""
    killed, compiler = tmp_path / "killed", tmp_path / "g++"
    compiler.write_text(
        "#!/bin/sh\n"
        "if tr '\\0' ' ' < /proc/$PPID/cmdline | grep -q worker/child/main.py; then\n"
        f"  if mkdir {killed} 2> /dev/null; then kill -9 $$; fi\n"
        'fi\nexec /usr/bin/env g++ "$@"\n'
    )
    compiler.chmod(0o700)
    variables = {"CXX": str(compiler), "TORCHINDUCTOR_VEC_ISA_OK": "1"}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(cache_dir)],
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert killed.exists()
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert max(first[0], second[0]) < 1e-4
    assert first[1:] == [0, 1], done.stdout + done.stderr
    assert second[1:] == [1, 0], done.stdout + done.stderr
    (record,) = open_store(cache_dir).iter_records()
    assert {row.status for row in record.candidates.values()} == {"ok"}
    assert list(open_store(cache_dir).iter_quarantine()) == []
