"""What a distribution says of itself: a bill of materials and the provenance in the wheel, the commit in the sdist.

The bill is `*.dist-info/sboms/inductor-plugin.cdx.json` (PEP 770, CycloneDX 1.6). setuptools (84) writes none, and a
generator among the build's requirements would be fetched, with what it needs itself, by every `pip install` of a checkout. So
the fields are written here, from the metadata of the wheel, and the tests validate them with cyclonedx-python-lib against the
official schema.

The provenance is `*.dist-info/provenance/inductor-plugin.intoto.json`: an in-toto Statement v1 with SLSA's predicate, for the
files of the wheel. Not in `sboms`, whose files are all read as bills; beside it, since pip keeps what is in `*.dist-info` and
RECORD lists it. It is not signed: whoever builds may have neither a key nor `cryptography` (docs/trust.md).

All is in one module, since setuptools loads it by its path, and no other module of this folder could be imported.
"""

from __future__ import annotations

import hashlib
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
from typing import Any, NamedTuple

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.sdist import sdist

SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
BUILD_TYPE = "https://peps.python.org/pep-0517/#build-wheel"
BUILDER = "pkg:pypi/setuptools"
"""What has built: a program, with its versions. Who has run it, and where, is not known to it."""
SOURCE = "release/source.json"
"""Where an sdist has the commit that it was written from."""
ROOT = Path(__file__).resolve().parents[1]
_FILES = ("LICENSE", "README.md", "pyproject.toml")
_FOLDERS = ("cache", "inductor_plugin", "release", "templates")
"""What a wheel is built from."""
_CHANGED = "inductor-plugin:changed-since-commit"
_NAME_ENDS = " <>=!~;["


class Source(NamedTuple):
    """What is known of the sources; None where it is not known.

    Attributes:
        commit: Their commit.
        changed: Whether files differ from it.
        epoch: Time of the build, in seconds since 1970: SOURCE_DATE_EPOCH, else that of the commit.
    """

    commit: str | None = None
    changed: bool | None = None
    epoch: int | None = None

    def at(self) -> datetime | None:
        """Return the time of the build."""
        return None if self.epoch is None else datetime.fromtimestamp(self.epoch, timezone.utc)


class Sdist(sdist):
    """setuptools' command, which also writes down the commit."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files, and add `SOURCE` if the commit is known."""
        known = source(ROOT)  # before the copy, which lies in the checkout until it is packed
        super().make_release_tree(base_dir, files)  # pyright: ignore[reportUnknownMemberType]
        if known.commit is not None:
            fields = {**known._asdict(), "sources": digest_of_sources(Path(base_dir))}
            Path(base_dir, SOURCE).write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")


class BdistWheel(bdist_wheel):
    """setuptools' command, which also writes the bill of materials and the provenance beside the metadata."""

    def egg2dist(self, egginfo_path: str, distinfo_path: str) -> None:
        """Convert the metadata, and add the bill; the wheel's RECORD lists all files there."""
        super().egg2dist(egginfo_path, distinfo_path)
        metadata = _metadata(Path(distinfo_path))
        name = f"{metadata['Name']}.cdx.json"
        _write(Path(distinfo_path, "sboms", name), bill(metadata, source(ROOT)))

    def write_wheelfile(
        self, wheelfile_base: str, generator: str = f"setuptools ({version('setuptools')})"
    ) -> None:
        """Write the wheel's own metadata, and the provenance where all files of the wheel are there.

        They are not in an editable wheel, nor where an installer asks for the metadata alone.
        """
        super().write_wheelfile(wheelfile_base, generator)
        info = Path(wheelfile_base)
        if info.parent == Path(str(self.bdist_dir)):
            metadata = _metadata(info)
            name = f"{metadata['Name']}.intoto.json"
            stated = statement(info.parent, metadata, source(ROOT))
            _write(info / "provenance" / name, stated)


def bill(metadata: Message, known: Source) -> dict[str, Any]:
    """Return the bill of materials of a wheel; equal sources and tools give an equal one.

    Args:
        metadata: The wheel's METADATA.
        known: The sources.
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
    if known.commit is not None:
        component["pedigree"] = {"commits": [{"uid": known.commit}]}
    if known.changed is not None:
        changed = str(known.changed).lower()
        component["properties"] = [{"name": _CHANGED, "value": changed}]
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
    if (at := known.at()) is not None:
        described["timestamp"] = at.isoformat()
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


def statement(wheel: Path, metadata: Message, known: Source) -> dict[str, Any]:
    """Return the provenance of a wheel; equal sources and tools give an equal one.

    The fields are those of https://slsa.dev/spec/v1.0/provenance. A field whose value is not known is left out.

    Args:
        wheel: The folder of all files of the wheel but RECORD, which lists them.
        metadata: The wheel's METADATA.
        known: The sources.
    """
    files = sorted(path for path in wheel.rglob("*") if path.is_file())
    definition: dict[str, Any] = {
        "buildType": BUILD_TYPE,
        "externalParameters": {"name": metadata["Name"], "version": metadata["Version"]},
    }
    if known.commit is not None:
        tree: dict[str, Any] = {"name": "source", "digest": {"gitCommit": known.commit}}
        if known.changed is not None:
            tree["annotations"] = {_CHANGED: known.changed}
        definition["resolvedDependencies"] = [tree]
    tools = {"setuptools": version("setuptools"), "python": platform.python_version()}
    details: dict[str, Any] = {"builder": {"id": BUILDER, "version": tools}}
    if (at := known.at()) is not None:
        details["metadata"] = {"startedOn": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": path.relative_to(wheel).as_posix(), "digest": {"sha256": _sha256(path)}}
            for path in files
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {"buildDefinition": definition, "runDetails": details},
    }


def source(root: Path) -> Source:
    """Return what is known of the sources in a folder: in a checkout git says it, in an unpacked sdist `SOURCE`."""
    known = _of_checkout(root) if (root / ".git").exists() else _of_sdist(root)
    stated = os.environ.get("SOURCE_DATE_EPOCH", "")
    return known._replace(epoch=int(stated)) if stated.isdigit() else known


def digest_of_sources(root: Path) -> str:
    """Return the SHA-256 of names and contents of all files that a wheel is built from, without `SOURCE` itself."""
    sha256 = hashlib.sha256()
    files = [root / name for name in _FILES]
    files += [path for folder in _FOLDERS for path in (root / folder).rglob("*")]
    for path in sorted(files):
        inside = path.relative_to(root)
        if path.is_file() and "__pycache__" not in inside.parts and inside != Path(SOURCE):
            sha256.update(f"{inside.as_posix()}\0{_sha256(path)}\n".encode())
    return sha256.hexdigest()


def _of_checkout(root: Path) -> Source:
    commit = _git(root, "rev-parse", "HEAD")
    if not commit:
        return Source()
    status, seconds = _git(root, "status", "--porcelain"), _git(root, "show", "-s", "--format=%ct")
    return Source(
        commit,
        None if status is None else bool(status),
        int(seconds) if seconds and seconds.isdigit() else None,
    )


def _of_sdist(root: Path) -> Source:
    """Return what an sdist has written down; files that were changed since then count as changed."""
    try:
        fields: dict[str, Any] = json.loads((root / SOURCE).read_text(encoding="utf-8"))
        known = Source(fields["commit"], fields["changed"], fields["epoch"])
        is_same = fields["sources"] == digest_of_sources(root)
    except (OSError, ValueError, KeyError, TypeError):
        return Source()
    return known if is_same else known._replace(changed=True)


def _git(root: Path, *words: str) -> str | None:
    """Return what git says of a folder; None where there is no git, or where it fails.

    GIT_DIR, GIT_INDEX_FILE ... are what git sets for its hooks: with them it would speak of the repository of the hook.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", *words]
    try:
        done = subprocess.run(
            command, cwd=root, env=own, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _metadata(info: Path) -> Message:
    text = (info / "METADATA").read_text(encoding="utf-8")
    return Parser().parsestr(text, headersonly=True)


def _write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir()
    file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


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
