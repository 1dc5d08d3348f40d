"""A headless Chromium over its debugging pipe: opens pages, runs script in them, takes pictures.

The protocol is https://chromedevtools.github.io/devtools-protocol, as JSON between zero bytes on two pipes of the
browser (``--remote-debugging-pipe``), so that no package and no port is needed.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # containers, and root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
_ANSWER_S = 240.0
REQUIRED = "REQUIRE_BROWSER"
"""Variable with which a test that lacks a browser fails instead of being skipped: for want of anything, or, as `CHROMIUM`, of the browser alone."""
CHROMIUM = "chromium"
NOT_FETCHED = "NOT_FETCHED"
"""Variable with the file to which a test that is skipped writes what could not be fetched for it; `.ci/run` reads it."""


def browser_path() -> str | None:
    """Return the path of a Chromium, None if there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def missing(what: str, *, fetched: bool = False) -> NoReturn:
    """Skip the test for what is missing, or fail where the variable `REQUIRED` asks for it.

    Args:
        what: What the test needs.
        fetched: Whether it comes from a network, so that a machine with a browser may lack it.
    """
    required = os.environ.get(REQUIRED, "")
    if required and not (fetched and required == CHROMIUM):
        pytest.fail(f"{REQUIRED}={required} is set, and the test {what}")
    if fetched and (named := os.environ.get(NOT_FETCHED)):
        with Path(named).open("a", encoding="utf-8") as file:
            file.write(f"{what}\n")
    pytest.skip(what)


class Page:
    """One tab, and what it has said since it was opened.

    Attributes:
        errors: Errors of its console: exceptions, failed loads, violations of its policy.
        requests: The addresses it has asked for.
    """

    def __init__(self, process: subprocess.Popen[bytes], read: int, write: int) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._process, self._read, self._write = process, read, write
        self._rest = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []
        target = self._browser("Target.createTarget", url="about:blank")["targetId"]
        attached = self._browser("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def open(self, file: Path, fragment: str = "") -> None:
        """Open a file, and wait until its script has run."""
        self.send("Page.navigate", url=f"{file.resolve().as_uri()}{fragment}")
        self.wait("document.readyState === 'complete'")

    def wait(self, condition: str) -> None:
        """Wait until an expression is true, 60 s at most; a page whose script failed is not waited for."""
        ends = time.monotonic() + 60
        while not self.run(condition):
            if self.errors or time.monotonic() > ends:
                raise TimeoutError(f"{condition}; the page says {self.errors}")
            time.sleep(0.02)

    def run(self, script: str) -> Any:
        """Return the value of an expression, or of the promise it is."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise AssertionError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def size(self, width: int, height: int, *, phone: bool = False, scale: float = 1) -> None:
        """Set the window's size in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=phone,
        )  # fmt: skip

    def media(self, *, dark: bool = False, paper: bool = False) -> None:
        """Set what the page is shown on."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}
        kind = "print" if paper else "screen"
        self.send("Emulation.setEmulatedMedia", media=kind, features=[scheme, still])

    def press(self, key: str) -> None:
        """Press and release a key, by its name or its character."""
        typed = {"text": key} if len(key) == 1 else {}
        codes = {"Enter": 13, "Escape": 27, "ArrowDown": 40, "ArrowUp": 38, "End": 35, "Tab": 9}
        codes |= {"ArrowLeft": 37, "ArrowRight": 39, "Home": 36}
        code = codes.get(key, 0)
        if key == "Enter":
            typed = {"text": "\r"}
        for kind in ("keyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind, key=key, windowsVirtualKeyCode=code, **(typed if kind == "keyDown" else {}),
            )  # fmt: skip

    def picture(self, file: Path, *, height: int | None = None) -> int:
        """Write what is seen, or so many pixels of it from above, as PNG; return its bytes."""
        cut: dict[str, Any] = {}
        if height is not None:
            width = self.run("innerWidth")
            cut = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        answer = self.send("Page.captureScreenshot", format="png", **cut)
        return file.write_bytes(base64.b64decode(answer["data"]))

    def paper(self, file: Path) -> int:
        """Write the page as it is printed, as PDF; return its bytes."""
        answer = self.send("Page.printToPDF", printBackground=False)
        return file.write_bytes(base64.b64decode(answer["data"]))

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command to the tab, and return the answer."""
        return self._ask(method, parameters, self._session)

    def _browser(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._ask(method, parameters, None)

    def _ask(self, method: str, parameters: dict[str, Any], session: str | None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        ends = time.monotonic() + _ANSWER_S
        while True:
            answer = self._next(ends)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self._note(answer)

    def _next(self, ends: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, ends - time.monotonic()))
            data = os.read(self._read, 1 << 20) if ready else b""
            if not data:
                raise TimeoutError(f"the browser does not answer (status {self._process.poll()})")
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, facts = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(facts["exceptionDetails"])[:500])
        elif method == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.errors.append(facts["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and facts["type"] in (
            "error",
            "warning",
            "assert",
        ):
            self.errors.append(json.dumps(facts["args"])[:500])
        elif method == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])


@contextmanager
def opened_browser(path: str) -> Generator[Page]:
    """Start a browser with a profile of its own, and end it."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        to_browser, write = os.pipe()
        read, from_browser = os.pipe()
        # The browser reads descriptor 3 and writes descriptor 4.
        shell = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        process = subprocess.Popen(
            ["bash", "-c", shell, "browser", path, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_browser)
        os.close(from_browser)
        try:
            page = Page(process, read, write)
            yield page
            page._browser("Browser.close")  # pyright: ignore[reportPrivateUsage]
            process.wait(20)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()
            os.close(write)
            os.close(read)
