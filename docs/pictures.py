"""Takes the pictures of the report page in docs/pictures, of made-up records: python -m docs.pictures."""

from __future__ import annotations

import tempfile
from pathlib import Path

from inductor_plugin.cache import digest_of
from inductor_plugin.tuning.report.page.document import document
from inductor_plugin.tuning.report.page.model import page_model
from inductor_plugin.tuning.report.page.source import CacheSource, Holding
from tests.support.browser import browser_path, opened_browser
from tests.support.cache.measured_gpu import H100, gpu_records

FOLDER = Path(__file__).parent / "pictures"
TITLE = "Example: made-up records of an H100"
_RECORDS = 300
_VIEWS = {
    "light": (1120, 1180, False, False, False),
    "dark": (1120, 1180, True, False, False),
    "phone": (390, 844, False, True, False),
    "record": (1120, 860, False, False, True),
}
"""Width, height, whether it is dark, a phone, and with a record opened."""


def main() -> None:
    """Write the pictures."""
    path = browser_path()
    if path is None:
        raise SystemExit("there is no Chromium; install it (Debian: apt-get install chromium)")
    FOLDER.mkdir(exist_ok=True)
    held = [Holding("records of mm", _RECORDS, _RECORDS * 9000)]
    source = CacheSource(TITLE, list(gpu_records(_RECORDS)), {digest_of(H100): H100}, held)
    with tempfile.TemporaryDirectory() as folder, opened_browser(path) as page:
        file = Path(folder) / "page.html"
        file.write_text(document(page_model([source]), TITLE), encoding="utf-8")
        for name, (width, height, dark, phone, opened) in _VIEWS.items():
            page.size(width, height, phone=phone)
            page.media(dark=dark)
            page.open(file)
            page.wait("document.documentElement.dataset.ready === 'true'")
            if opened:
                page.run("document.querySelectorAll('#grid-problems tbody a')[1].click()")
            page.run("new Promise(done => setTimeout(done, 500))")
            print(name, page.picture(FOLDER / f"report-{name}.png"), "bytes")


if __name__ == "__main__":
    main()
