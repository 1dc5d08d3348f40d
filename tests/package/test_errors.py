from __future__ import annotations

import ast
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inductor_plugin import errors, record
from inductor_plugin.cache import open_second, open_store
from inductor_plugin.cache.trust.keys import open_signer
from inductor_plugin.cache.trust.policy import parse_trust, trust_or_nobody
from inductor_plugin.config import Config, default_cache_dir
from inductor_plugin.config.value import pin_file_sha256
from inductor_plugin.errors import without_user
from inductor_plugin.kernels.nvcc import NoToolkit, places, present
from inductor_plugin.ops.launch import opened_caches
from inductor_plugin.tuning.pins.document import read_named
from inductor_plugin.tuning.report.page.run import run_page
from tests.support.processes.user import leave_without_folder


def test_the_tree_in_the_docstring_is_the_real_one():
    drawn: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"([ │├└─]*)(\w+Error)\b", line)
        if match is None:
            continue
        depth, name = len(match.group(1)), match.group(2)
        while path and path[-1][0] >= depth:
            path.pop()
        drawn[name] = path[-1][1] if path else "Exception"
        path.append((depth, name))
    real = {
        name: kind.__mro__[1].__name__
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if kind.__module__ == errors.__name__
    }
    assert drawn == real


def test_a_wrong_option_is_a_value_error_too():
    assert issubclass(errors.OptionError, ValueError)
    assert issubclass(errors.RegistrationError, ValueError)


@pytest.mark.parametrize(
    ("number", "sticky"), [(700, True), (719, True), (999, True), (1, False), (0, False), (None, False)]
)  # fmt: skip
def test_after_some_errors_of_cuda_no_call_works(number: int | None, sticky: bool):
    assert errors.KernelError("the launch failed", number).is_sticky is sticky


def broad(text: str) -> Iterator[int]:
    """Yield the lines that catch or suppress every exception."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ExceptHandler):
            caught = [node.type] if node.type is not None else [ast.Name("Exception")]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            caught = node.args
        else:
            continue
        names = [name for each in caught for name in ast.walk(each) if isinstance(name, ast.Name)]
        if any(name.id == "Exception" for name in names):
            yield node.lineno


def without_reason(text: str) -> list[int]:
    """Return those lines that have no comment with words, nor a comment in the line above."""
    lines = text.splitlines()
    comments = {
        number: re.sub(r"noqa: \w+", "", lines[number - 1].partition("#")[2])
        for number in broad(text)
    }
    return [
        number
        for number, comment in comments.items()
        if not re.search(r"\w{2}", comment) and not lines[number - 2].lstrip().startswith("#")
    ]


@pytest.mark.parametrize("root", ["inductor_plugin", "cache", "templates"])
def test_whatever_catches_every_exception_gives_its_reason(root: str, repository: Path) -> None:
    wrong = {
        str(path.relative_to(repository)): lines
        for path in sorted((repository / root).rglob("*.py"))
        if (lines := without_reason(path.read_text(encoding="utf-8")))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("except Exception:", True),
        ("except (OSError, Exception) as error:  # noqa: BLE001", True),
        ("except:", True),
        ("except Exception:  # noqa: BLE001  the border: no compile fails for it", False),
        ("except OSError:", False),
    ],
)
def test_a_handler_without_a_reason_is_found(line: str, *, missing: bool) -> None:
    assert bool(without_reason(f"try:\n    pass\n{line}\n    pass\n")) is missing
    assert without_reason("with suppress(Exception):\n    pass\n") == [1]


def test_a_warning_is_one_line_whatever_it_quotes(caplog: pytest.LogCaptureFixture) -> None:
    errors.warn_once(logging.getLogger("a"), "of \x1b]0;owned\x07\nERROR: forged line")
    assert [record.getMessage() for record in caplog.records] == [
        r"inductor-plugin: of \x1b]0;owned\x07\nERROR: forged line"
    ]


NOBODY = "~no-such-user/x"
PLACES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "cache_dir": (
        lambda: Config.load({"cache_dir": NOBODY}),
        errors.OptionError,
        "option cache_dir",
    ),
    "a variable": (
        lambda: default_cache_dir({"INDUCTOR_PLUGIN_CACHE_DIR": NOBODY}),
        errors.OptionError,
        "variable INDUCTOR_PLUGIN_CACHE_DIR",
    ),
    "all caches": (
        lambda: default_cache_dir({"XDG_CACHE_HOME": NOBODY}),
        errors.OptionError,
        "variable XDG_CACHE_HOME",
    ),
    "pin_file": (lambda: pin_file_sha256(NOBODY), errors.OptionError, "option pin_file"),
    "pins": (lambda: read_named(NOBODY), errors.OptionError, "option pin_file"),
    "report": (lambda: run_page(NOBODY), errors.OptionError, "option report"),
    "record": (lambda: record(NOBODY).__enter__(), errors.OptionError, "the file to record to"),
    "open_store": (lambda: open_store(NOBODY), errors.CacheError, "the cache directory"),
    "trusted_keys": (lambda: parse_trust(NOBODY), errors.TrustError, "a file of trusted_keys"),
    "signing_key": (lambda: open_signer(NOBODY), errors.TrustError, "the signing key"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_path_below_the_folder_of_a_user_who_is_not_known_is_an_error_of_the_plugin(place: str):
    call, kind, origin = PLACES[place]
    text = f"{origin} is '{NOBODY}', but this machine knows no user 'no-such-user'; "
    with pytest.raises(errors.InductorPluginError, match=re.escape(text)) as raised:
        call()
    assert type(raised.value) is kind


def test_where_nobody_has_a_folder_the_default_cache_directory_is_an_error_that_names_the_ways_out(
    monkeypatch: pytest.MonkeyPatch,
):
    leave_without_folder(monkeypatch)
    with pytest.raises(errors.OptionError, match=r"but HOME is not set, .*; set HOME, or INDUCTOR"):
        Config.load()
    assert Config.load({"cache_dir": "/elsewhere"}).cache_dir == Path("/elsewhere")
    list(opened_caches())  # raises nothing: a call of a compiled graph goes on


def test_a_second_cache_of_nobody_is_not_used_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    assert open_second(NOBODY) is None
    monkeypatch.setenv("INDUCTOR_PLUGIN_CACHE_READ", NOBODY)
    list(opened_caches())
    assert "no user 'no-such-user'; write the whole path, or unset cache_read" in caplog.text


def test_keys_of_nobody_are_trusted_by_nobody_and_the_compile_goes_on(
    caplog: pytest.LogCaptureFixture,
):
    assert trust_or_nobody(NOBODY).keys == {}
    assert "trusted_keys is not used: a file of trusted_keys is '~no-such-user/x'" in caplog.text


def test_an_nvcc_of_nobody_is_not_there():
    (place,) = places(NOBODY, {"PATH": ""}, [])
    assert place.nvcc == Path(NOBODY, "bin", "nvcc")
    reason = present([place], NOBODY)
    assert isinstance(reason, NoToolkit)
    assert f"option nvcc is '{NOBODY}', but there is no" in reason.what


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/x", "s3://bucket/x"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("ftp://me:secret@host/x", "ftp://host/x"),
        ("ftp://me:secret@[host/x", "ftp://[host/x"),
        ("ftp://me:s#cr?t@host/x", "ftp://host/x"),
        ("simplecache::sftp://me:secret@host/x", "simplecache::sftp://host/x"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_user(url) == shown
