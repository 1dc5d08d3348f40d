"""Relative links of the texts that are no pages of the site: the file is there, and has the heading. `make site` looks at its pages."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.support.repository import REPOSITORY

ROOTS = ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md")
FOLDERS = ("tests", "benchmarks", "examples", "release")
TEXTS = [*ROOTS, *(str(path.relative_to(REPOSITORY)) for name in FOLDERS for path in sorted((REPOSITORY / name).rglob("*.md")))]  # fmt: skip

FENCED = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"(`+)(?:(?!\n\n|`).)+?\1", re.DOTALL)
LINK = re.compile(
    r"""\]\(\s*<?(?P<inline>[^)\s>]+)>?(?:\s+"[^"]*")?\s*\)"""  # [text](target "title"), ![text](target)
    r"""|^ {0,3}\[[^]^][^]]*\]:\s*(?P<reference>\S+)"""  # [name]: target
    r"""|\b(?:href|src)="(?P<attribute>[^"]+)\"""",
    re.MULTILINE,
)
ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:|//", re.IGNORECASE)
HEADING = re.compile(r"^ {0,3}#{1,6} +(.+?)(?: +#+)? *$", re.MULTILINE)
NAMED = re.compile(r"""<[^>]* (?:id|name)="([^"]+)\"""")
LINES = re.compile(r"L\d+(-L\d+)?")
"""What GitHub shows of a file that is no text: lines."""


def links(text: str) -> list[str]:
    """Return the targets of a text in Markdown, in order; none of code and of comments."""
    prose = CODE.sub("", COMMENT.sub("", FENCED.sub("", text)))
    return [next(filter(None, match.groups())) for match in LINK.finditer(prose)]


def slug(heading: str) -> str:
    """Return the anchor that GitHub makes of a heading: of its text, in small letters, without punctuation."""
    shown = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", shown.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Return the anchors of a text; a heading that is there again has a number."""
    prose = FENCED.sub("", text)
    seen = Counter[str]()
    result = set(NAMED.findall(prose))
    for heading in HEADING.findall(prose):
        name = slug(heading)
        result.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return result


def broken(file: Path, root: Path) -> list[str]:
    """Return the relative links of a file that lead nowhere below a root, each with what is missing."""
    wrong: list[str] = []
    for link in links(file.read_text(encoding="utf-8")):
        if ELSEWHERE.match(link):
            continue
        name, _, anchor = link.partition("#")
        above = root if name.startswith("/") else file.parent
        target = (above / unquote(name).lstrip("/")).resolve() if name else file
        if not target.is_relative_to(root.resolve()) or not target.exists():
            wrong.append(f"{link}: there is no such file")
        elif anchor and target.suffix != ".md":
            wrong += [] if LINES.fullmatch(anchor) else [f"{link}: it has no headings"]
        elif anchor and unquote(anchor) not in anchors(target.read_text(encoding="utf-8")):
            wrong.append(f"{link}: it has no such heading")
    return wrong


@pytest.mark.parametrize("text", TEXTS)
def test_every_relative_link_of_a_text_leads_somewhere(text: str) -> None:
    assert broken(REPOSITORY / text, REPOSITORY) == []


def test_the_links_of_the_first_page_are_seen() -> None:
    inside = [link for link in links((REPOSITORY / "README.md").read_text("utf-8")) if not ELSEWHERE.match(link)]  # fmt: skip
    assert len(inside) > 15
    assert len([link for link in inside if "#" in link]) >= 4


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Of the first runs, on a GPU", "of-the-first-runs-on-a-gpu"),
        ("Keys: what goes into the hash, and why", "keys-what-goes-into-the-hash-and-why"),
        ("`policy=cached` and *more*", "policycached-and-more"),
        ("A [link](to.md#x) - and so on", "a-link---and-so-on"),
        ("snake_case & Größe", "snake_case--größe"),
    ],
)
def test_an_anchor_is_what_github_makes_of_a_heading(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor


PAGE = """# Title
## Same
```sh
# no heading, and [no](link.md)
```
## Same ##
<a id="named"></a>
[self](#same-1) ![picture](pictures/a.png "its title") [`code`](other.md#part) [lines](code.py#L3-L5)
[spaced](a%20file.md) [web](https://example.org/x#y) `[none](code.md)` <!-- [none](comment.md) --> [up](../page/other.md)
<img src="pictures/a.png"> [folder](pictures/)

[name]: other.md
"""


def write(folder: Path, text: str) -> Path:
    (folder / "pictures").mkdir(parents=True)
    for name in ("pictures/a.png", "code.py", "a file.md"):
        (folder / name).touch()
    (folder / "other.md").write_text("### Part\n", encoding="utf-8")
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_links_to_what_is_there_are_right(tmp_path: Path) -> None:
    page = write(tmp_path / "page", PAGE)
    assert broken(page, tmp_path) == []
    assert len(links(PAGE)) == 10
    assert anchors(PAGE) == {"title", "same", "same-1", "named"}


@pytest.mark.parametrize(
    ("link", "missing"),
    [
        ("[x](gone.md)", "file"),
        ("[x](#same-2)", "heading"),
        ("[x](#no-heading-and-nolink)", "heading"),
        ("[x](other.md#Part)", "heading"),
        ("[x](code.py#part)", "headings"),
        ("[x](../../outside.md)", "file"),
        ("[y]: gone.md", "file"),
        ('<a href="gone.md">', "file"),
    ],
)
def test_a_link_that_leads_nowhere_is_named(link: str, missing: str, tmp_path: Path) -> None:
    (tmp_path / "outside.md").touch()
    page = write(tmp_path / "root" / "page", f"{PAGE}\n{link}\n")
    (named,) = broken(page, tmp_path / "root")
    assert named.endswith(missing)
