"""What torch shows of a compared graph: the code that runs, not that of the graphs it was compared with."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch._inductor import config as inductor_config
from torch._inductor.codecache import output_code_log
from torch._inductor.virtualized import V
from torch._logging import _internal as torch_logging  # pyright: ignore[reportPrivateUsage]

from inductor_plugin.inductor.guard.output_code import hidden
from tests.support.compile import fresh
from tests.support.fakes.referee import Referee, rivals_win, run

__all__ = ["fresh", "rivals_win"]  # the fixtures
pytestmark = pytest.mark.compat


class Shown(logging.Handler):
    """Keeps what is logged: an artifact's text, or the first name in a line of the trace."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.codes: list[str] = []
        """The generated code in the trace."""

    def emit(self, record: logging.LogRecord) -> None:
        line: Any = getattr(record, "metadata", None)
        self.texts.append(record.getMessage() if line is None else next(iter(line)))
        if line and "inductor_output_code" in line:
            self.codes.append(getattr(record, "payload", ""))


@pytest.fixture
def shown() -> Iterator[Shown]:
    handler, level = Shown(), output_code_log.level
    loggers = output_code_log, torch_logging.trace_log
    for logger in loggers:
        logger.addHandler(handler)
    output_code_log.setLevel(logging.DEBUG)
    yield handler
    output_code_log.setLevel(level)
    for logger in loggers:
        logger.removeHandler(handler)


def log_all() -> None:
    output_code_log.debug("code")
    for name in ("artifact", "inductor_output_code", "str", "chromium_event"):
        torch_logging.trace_structured(name, suppress_context=True)


def test_a_hidden_compile_logs_nothing_of_its_graph(shown: Shown) -> None:
    with hidden():
        log_all()
    assert shown.texts == ["str", "chromium_event"]  # later lines refer to strings by number
    log_all()
    assert shown.texts[2:] == ["code", "artifact", "inductor_output_code", "str", "chromium_event"]


def test_what_another_thread_logs_meanwhile_is_shown(shown: Shown) -> None:
    with hidden():
        thread = threading.Thread(target=log_all)
        thread.start()
        thread.join()
    assert len(shown.texts) == 5


def test_a_hidden_compile_writes_no_files_of_its_graph(tmp_path: Path) -> None:
    def output_code(_path: str) -> None:
        raise AssertionError("written")

    debug: Any = type("Debug", (), {"output_code": staticmethod(output_code)})()
    with inductor_config.patch({"trace.enabled": True}), V.set_debug_handler(debug):
        with hidden():
            within: Any = V.debug
            within.output_code(str(tmp_path))
            within.copy(str(tmp_path / "copy.debug"))
        assert V.debug is debug
        assert inductor_config.trace.enabled
    assert not (tmp_path / "copy.debug").exists()


@pytest.mark.parametrize(("allowed", "codes"), [(2, 1), (0, 2)])
def test_the_code_that_runs_is_shown_last_and_the_others_are_not(
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shown: Shown,
    allowed: int,
    codes: int,
) -> None:
    """Of two graphs that are compared; a third one where the tuned graph is slower."""
    referee = Referee(monkeypatch, allowed)
    folder = {"trace.enabled": True, "trace.debug_dir": str(tmp_path / "debug")}
    with inductor_config.patch(folder):
        assert run(cache_dir) == allowed
    assert len(referee.compared) >= codes
    logged = [text.partition("\n")[2] for text in shown.texts if text.startswith("Output code") and "\n" in text]  # fmt: skip
    (written,) = (tmp_path / "debug").rglob("output_code.py")
    assert len(logged) == len(shown.codes) == codes
    assert logged[-1] == shown.codes[-1] == written.read_text()
    assert ["rivals" in code for code in logged] == [True, False][:codes]
