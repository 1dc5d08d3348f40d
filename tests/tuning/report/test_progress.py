"""The progress bar."""

from __future__ import annotations

import io
import re
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


COLOUR = re.compile(r"\x1b\[(?:[\d;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[\d;]*)?m")
"""A sequence that sets the colour of text or ground; others make it bold or move the cursor."""


@pytest.mark.parametrize(
    ("terminal", "variables", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
        (False, {}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_it_is_coloured_on_terminals_unless_the_user_has_said_no(
    terminal: bool,
    variables: dict[str, str],
    coloured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    screen = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    progress = Progress("on")
    progress.expect(2)
    with progress.shown():
        progress.step("triton_mm")
    assert "tuning" in screen.getvalue()
    assert bool(COLOUR.search(screen.getvalue())) is coloured
    if not terminal and not variables:
        assert "\x1b" not in screen.getvalue()
