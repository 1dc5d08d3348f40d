"""Digests of the sources that results were measured with; they do not need git."""

from __future__ import annotations

import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.harness.repository import REPOSITORY

PLUGIN = ("inductor_plugin", "templates", "cache")
_SUFFIXES = (".py", ".jinja", ".h", ".cuh")
_MARKS = {tokenize.INDENT: "<:", tokenize.DEDENT: ":>"}


def sources_digest(places: Iterable[str], repository: Path = REPOSITORY) -> str:
    """Return 16 hexadecimal digits that change with any source in these folders and files.

    Only the content counts, so that figures stay valid when files are moved or renamed.
    """
    return _digest(path.read_bytes() for path in _sources(places, repository))


def code_digest(places: Iterable[str], repository: Path = REPOSITORY) -> str:
    """Return 16 hexadecimal digits that change with the code of any Python source in these folders and files.

    Comments, docstrings and line breaks do not count, nor do blanks and braces within a string. It is for figures that follow
    from the code alone and take an hour. All versions of Python have the same digest.
    """
    paths = (path for path in _sources(places, repository) if path.suffix == ".py")
    return _digest(_code(path.read_bytes()) for path in paths)


def _sources(places: Iterable[str], repository: Path) -> Iterator[Path]:
    for place in places:
        root = repository / place
        for path in [root] if root.is_file() else root.rglob("*"):
            if path.is_file() and path.suffix in _SUFFIXES:
                yield path


def _digest(contents: Iterable[bytes]) -> str:
    digests = sorted(hashlib.sha256(content).digest() for content in contents)
    return hashlib.sha256(b"".join(digests)).hexdigest()[:16]


def _code(source: bytes) -> bytes:
    """Return the tokens of a Python source; blocks are marked, and a string that is a statement of its own is left out."""
    tokens = [
        token
        for token in tokenize.tokenize(io.BytesIO(source).readline)
        if token.type not in (tokenize.ENCODING, tokenize.COMMENT, tokenize.NL)
    ]
    words: list[str] = []
    line: list[tokenize.TokenInfo] = []
    for token in tokens:
        if token.type in (tokenize.INDENT, tokenize.DEDENT):
            words.append(_MARKS[token.type])
        elif token.type != tokenize.NEWLINE:
            line.append(token)
        else:
            if [each.type for each in line] != [tokenize.STRING]:
                words += [*(each.string for each in line), ";"]
            line.clear()
    # Python 3.12 divides f-strings into tokens: blanks between these are gone, and of two braces there is one left.
    return re.sub(r"[\s{}]", "", "".join(words)).encode()
