"""The progress bar."""

from __future__ import annotations

import io
import sys

import pytest

from inductor_plugin.tuning.report.progress import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("mode", "terminal", "visible"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("on", False, True),
        ("on", True, True),
        ("off", True, False),
    ],
)
def test_it_is_shown_where_someone_looks(
    monkeypatch: pytest.MonkeyPatch, mode: str, terminal: bool, visible: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    assert Progress(mode).visible is visible


def test_it_shows_how_many_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = Progress("on")
    progress.expect(3)
    with progress.shown():
        progress.step("triton_mm")
        progress.expect(1)
        progress.step("addmm")
    assert "tuning" in screen.getvalue()
    assert "/4" in screen.getvalue()


def test_it_says_what_it_waits_for_beside_the_longest_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "80")
    progress = Progress("on", "compiling")
    progress.expect(2)
    with progress.shown():
        progress.step("cutlass::" + "x" * 100)
    assert "inductor-plugin: compiling" in screen.getvalue()
    assert "1/2" in screen.getvalue()


def test_the_clock_goes_on_where_a_graph_is_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    progress = Progress("on")
    progress.expect(2)
    began: list[float | None] = []
    for _ in range(2):
        with progress.shown():
            began.append(progress._bar.tasks[0].start_time)  # type: ignore[union-attr]  # pyright: ignore
    assert began[0] is not None
    assert began[0] == began[1]


def test_where_it_is_asked_for_without_a_terminal_it_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    progress = Progress("on")
    progress.expect(2)
    with progress.shown():
        progress.step("triton_mm")
        progress.step("addmm")
    (line,) = log.getvalue().splitlines()
    assert "tuning" in line
    assert "2/2" in line


def test_nothing_is_written_when_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = Progress("off")
    progress.expect(3)
    with progress.shown():
        progress.step("triton_mm")
    assert screen.getvalue() == ""


def test_nothing_is_written_when_all_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = Progress("on")
    progress.expect(1)
    progress.step("addmm")
    with progress.shown():
        pass
    assert screen.getvalue() == ""


def test_waiting_inside_a_wait_shows_one_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    progress = Progress("on")
    progress.expect(2)
    with progress.shown():
        outer = progress._bar  # pyright: ignore[reportPrivateUsage]
        with progress.shown():
            assert progress._bar is outer  # pyright: ignore[reportPrivateUsage]
            progress.step("a")
    progress.step("b")  # the bar is gone; a late step has nothing to draw on
