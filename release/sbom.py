"""The bill of materials in the wheel: `*.dist-info/sboms/inductor-plugin.cdx.json` (PEP 770, CycloneDX 1.6).

setuptools (84) writes none, and a generator among the build's requirements would be fetched, with what it needs itself, by every
`pip install` of a checkout. So the fields are written here, from the metadata of the wheel, and the tests validate
them with cyclonedx-python-lib against the official schema.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import uuid
from datetime import datetime, timezone
from email.message import Message
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path
from typing import Any

from setuptools.command.bdist_wheel import bdist_wheel

SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
ROOT = Path(__file__).resolve().parents[1]
_NAME_ENDS = " <>=!~;["


class BdistWheel(bdist_wheel):
    """setuptools' command, which also writes the bill of materials beside the metadata."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        """Convert the metadata, and add the bill; the wheel's RECORD lists all files there."""
        super().egg2dist(egginfo_path, distinfo_path)
        text = Path(distinfo_path, "METADATA").read_text(encoding="utf-8")
        metadata = Parser().parsestr(text, headersonly=True)
        folder = Path(distinfo_path, "sboms")
        folder.mkdir()
        content = json.dumps(bill(metadata, provenance(ROOT)), indent=1)
        Path(folder, f"{metadata['Name']}.cdx.json").write_text(content + "\n", encoding="utf-8")


def bill(metadata: Message, source: dict[str, str]) -> dict[str, Any]:
    """Return the bill of materials of a wheel; equal sources and tools give an equal one.

    Args:
        metadata: The wheel's METADATA.
        source: As `provenance` returns it.
    """
    name, number = metadata["Name"], metadata["Version"]
    root = f"pkg:pypi/{name}@{number}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": root,
        "name": name,
        "version": number,
        "description": metadata["Summary"],
        "licenses": [{"expression": metadata["License-Expression"]}],
        "purl": root,
    }
    if "commit" in source:
        component["pedigree"] = {"commits": [{"uid": source["commit"]}]}
        component["properties"] = [
            {"name": "inductor-plugin:changed-since-commit", "value": source["changed"]}
        ]
    needs = _needs(metadata.get_all("Requires-Dist") or [])
    described: dict[str, Any] = {
        "lifecycles": [{"phase": "build"}],
        "tools": {
            "components": [
                {"type": "application", "name": "setuptools", "version": version("setuptools")},
                {"type": "platform", "name": "python", "version": platform.python_version()},
            ]
        },
        "component": component,
    }
    if "time" in source:
        described["timestamp"] = source["time"]
    content: dict[str, Any] = {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": described,
        "components": needs,
        "dependencies": [
            {"ref": root, "dependsOn": [need["bom-ref"] for need in needs]},
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content, sort_keys=True))
    return {**content, "serialNumber": serial.urn}


def provenance(root: Path) -> dict[str, str]:
    """Return the commit of a checkout, whether files differ from it, and its time; without one, SOURCE_DATE_EPOCH's time or nothing."""
    facts: dict[str, str] = {}
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if (root / ".git").exists() and (commit := _git(root, "rev-parse", "HEAD")):
        changed = bool(_git(root, "status", "--porcelain"))
        facts = {"commit": commit, "changed": str(changed).lower()}
        epoch = epoch or _git(root, "show", "--no-patch", "--format=%ct", "HEAD")
    if epoch.isdigit():
        facts["time"] = datetime.fromtimestamp(int(epoch), timezone.utc).isoformat()
    return facts


def _git(root: Path, *words: str) -> str:
    """Return what git says; empty where there is none."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=root, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _needs(requirements: list[str]) -> list[dict[str, Any]]:
    """Return what the package needs, by name, with all its requirements; those of extras are optional."""
    by_name: dict[str, list[str]] = {}
    for text in requirements:
        end = min((text.index(c) for c in _NAME_ENDS if c in text), default=len(text))
        by_name.setdefault(text[:end].lower(), []).append(text)
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}",
            "name": name,
            "scope": "optional" if all("extra ==" in text for text in texts) else "required",
            "purl": f"pkg:pypi/{name}",
            "properties": [
                {"name": "inductor-plugin:requirement", "value": text} for text in texts
            ],
        }
        for name, texts in sorted(by_name.items())
    ]
