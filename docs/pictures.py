"""Takes the pictures of the report page in docs/pictures: python -m docs.pictures [CACHE] [--trace FILE].

They are of the demo's cache, of one that a training step of GPT-2 of two layers leaves, and of the demo's beside that of a process with one
thread; both are tuned here first. With CACHE the overview and the charts are those of that cache. What a CPU has no figures
for (the roofline) and would take days to measure (10,000 records) is of records of an H100 that nobody has measured; the
picture itself says so. ``words.json`` beside them has the titles, heads and sentences that the page had then: a test notices when it has others.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from argparse import ArgumentParser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.tuning.report.page.gather import read_json
from tests.support.browser import Page, browser_path, opened_browser
from tests.support.page_scripts import ASSETS
from tests.support.report_pages import (
    WrittenPage,
    cache_at,
    invented,
    opened,
    tuned_by_the_demo,
    tuned_by_training,
    written,
)

FOLDER = Path(__file__).parent / "pictures"
WORDS = FOLDER / "words.json"
_SHOWN = {
    "sections.js": (
        *("summarySection", "problemsSection", "compareSection", "groupsSection", "gainsSection"),
        *("rooflineLack", "timelineSection", "warmSection"),
    ),
    "record.js": ("candidateTable",),
}
"""Of each script the functions that make what the pictures show."""
_TEXT = re.compile(r'"([^"\n]+)"|`([^`\n]+)`')
_RECORDS = 10_000
_WIDE, _TALL = 1120, 1180


@dataclass(frozen=True)
class View:
    """A picture of a page.

    Attributes:
        source: The page: ``demo``, ``training``, ``beside`` or ``invented``.
        width: Of the window, in CSS pixels.
        height: Of the window, and the most that the picture has.
        dark: Whether the page is dark.
        phone: Whether it is on a phone.
        sections: The sections that are left below the head of the page; empty for all.
        opened: Whether the first problem is open.
    """

    source: str
    width: int = _WIDE
    height: int = _TALL
    dark: bool = False
    phone: bool = False
    sections: tuple[str, ...] = ()
    opened: bool = False


VIEWS: Mapping[str, View] = {
    "light": View("demo"),
    "dark": View("training", dark=True),
    "phone": View("demo", 390, 844, phone=True),
    "record": View("demo", height=860, opened=True),
    "gains": View("demo", sections=("gains", "roofline")),
    "timeline": View("training", sections=("timeline", "warm")),
    "beside": View("beside", sections=("summary", "compare")),
    "invented": View("invented", height=1400, sections=("summary", "gains", "roofline")),
}
"""The pictures by name: ``report-NAME.png``."""


def page_words() -> dict[str, list[str]]:
    """Return titles of sections, heads of tables and sentences that the page shows in the pictures, by the function that writes them.

    What begins with a capital is one of them. Everything else of the page may change without a new picture.
    """
    words: dict[str, list[str]] = {}
    for script, functions in _SHOWN.items():
        text = (ASSETS / script).read_text(encoding="utf-8")
        for name in functions:
            body = text.partition(f"\nfunction {name}(")[2].partition("\n}\n")[0]
            texts = map("".join, _TEXT.findall(body))
            words[name] = sorted({text for text in texts if re.match("[A-Z][a-z ]", text)})
    return words


def main() -> None:
    """Write the pictures."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("cache", nargs="?", type=Path, metavar="CACHE")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="the trace of its first process")
    arguments = parser.parse_args()
    path = browser_path()
    if path is None:
        raise SystemExit("there is no Chromium; install it (Debian: apt-get install chromium)")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        pages = _pages(Path(folder), arguments.cache, arguments.trace)
        with opened_browser(path) as page:
            for name, view in VIEWS.items():
                _take(page, pages[view.source].file, view, FOLDER / f"report-{name}.png")
    WORDS.write_text(
        json.dumps(page_words(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )


def _pages(folder: Path, cache: Path | None, trace: Path | None) -> dict[str, WrittenPage]:
    """Return the pages by their names, each in a folder of its own."""
    for name in ("demo", "training", "beside", "invented"):
        (folder / name).mkdir()
    if cache is None:
        shown = folder / "demo" / f"{len(os.sched_getaffinity(0))}-threads"
        print("tuning the demo", flush=True)
        spans = tuned_by_the_demo(shown)
        title = "The demo's cache"
    else:
        shown, title = cache, str(cache)
        spans = read_json(trace) if trace else None
    print("tuning a training step of GPT-2", flush=True)
    trained = folder / "training" / "cache"
    training_spans = tuned_by_training(trained, "gpt2-large")
    print("tuning the demo with one thread", flush=True)
    single = folder / "demo" / "1-thread"
    tuned_by_the_demo(single, OMP_NUM_THREADS="1")
    first = cache_at(shown)
    invented_title = f"Invented: {_RECORDS:,} records of an H100 that nobody has measured"
    return {
        "demo": written(folder / "demo", title, first, trace=spans),
        "training": written(
            folder / "training",
            "GPT-2 of two layers: a training step and an inference",
            cache_at(trained),
            trace=training_spans,
        ),
        "beside": written(
            folder / "beside", f"{shown.name} beside {single.name}", first, cache_at(single)
        ),
        "invented": written(folder / "invented", invented_title, invented(_RECORDS)),
    }


def _take(page: Page, file: Path, view: View, picture: Path) -> None:
    """Take a picture of what a view shows of a page, and print how large it is."""
    page.size(view.width, view.height, phone=view.phone)
    page.media(dark=view.dark)
    opened(page, file)
    height: int | None = None
    if view.opened:
        page.run("document.querySelector('#grid-problems tbody a').click()")
    elif view.sections:
        missing = page.run(
            f"(kept => {{ for (const each of document.querySelectorAll('main > section'))"
            f" if (!kept.includes(each.id)) each.style.display = 'none';"
            f" document.getElementById('nav').style.display = 'none';"
            f" return kept.filter(id => !document.getElementById(id)); }})({json.dumps(view.sections)})"
        )
        if missing:
            raise SystemExit(f"{file.parent.name} has no section {', '.join(missing)}")
        height = page.run(f"Math.min({view.height}, document.body.scrollHeight)")
    page.run("new Promise(done => setTimeout(done, 500))")
    print(picture.name, page.picture(picture, height=height), "bytes", flush=True)


if __name__ == "__main__":
    main()
