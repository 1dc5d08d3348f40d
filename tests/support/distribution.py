"""The package as a distribution: a copy of what it is built from, and what setuptools builds of it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from tests.support.repository import REPOSITORY

EPOCH = "1700000000"
"""SOURCE_DATE_EPOCH of what is built: 2023-11-14T22:13:20Z."""
FOLDERS = ("templates", "cache")
"""Folders of the package beside it."""
_FILES = (".gitignore", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml")


def check_bill(text: str) -> None:
    """Hold a bill of materials against the schema of CycloneDX 1.6."""
    # Here, because importing it takes a process 2.5 s.
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert error is None, error


def copy_sources(copy: Path) -> Path:
    """Copy what the package is built from, without the two links: it may not depend on them."""
    copy.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copy(REPOSITORY / name, copy / name)
    for folder in ("inductor_plugin", "release", *FOLDERS):
        ignored = FOLDERS if folder == "inductor_plugin" else ()
        shutil.copytree(
            REPOSITORY / folder,
            copy / folder,
            ignore=shutil.ignore_patterns(*ignored, "__pycache__"),
        )
    return copy


def build(folder: Path, hook: str = "build_wheel") -> Path:
    """Call a hook of PEP 517 as installers do, and return what it has written."""
    (folder / "dist").mkdir(exist_ok=True)  # PEP 517: an installer has made it
    code = f"from setuptools import build_meta; print(build_meta.{hook}('dist'))"
    done = subprocess.run(
        # -P: installers do not put the folder on the module search path.
        [sys.executable, *(("-P",) if sys.version_info >= (3, 11) else ()), "-c", code],
        cwd=folder,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH},
    )
    return folder / "dist" / done.stdout.splitlines()[-1]


def provenance_of(wheel: Path) -> tuple[str, dict[str, Any], dict[str, str]]:
    """Return the name and the content of a wheel's provenance, and the SHA-256 of all files that it has to list."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if ".dist-info/provenance/" in each)
        record = name.partition("/")[0] + "/RECORD"
        assert f"\n{name},sha256=" in archive.read(record).decode()
        files = {
            each: hashlib.sha256(archive.read(each)).hexdigest()
            for each in archive.namelist()
            if each not in (name, record)
        }
        return name, json.loads(archive.read(name)), files


def check_provenance(wheel: Path) -> dict[str, Any]:
    """Check that a wheel's provenance has what its specifications require, and return its predicate.

    https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md and https://slsa.dev/spec/v1.0/provenance.
    """
    _, content, files = provenance_of(wheel)
    assert content.keys() == {"_type", "subject", "predicateType", "predicate"}
    assert content["_type"] == "https://in-toto.io/Statement/v1"
    assert content["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {each["name"]: each["digest"]["sha256"] for each in content["subject"]} == files
    assert len(content["subject"]) == len(files)
    predicate: dict[str, Any] = content["predicate"]
    assert predicate.keys() == {"buildDefinition", "runDetails"}
    definition, details = predicate["buildDefinition"], predicate["runDetails"]
    for uri in (definition["buildType"], details["builder"]["id"]):
        assert uri.partition(":")[0] in ("https", "pkg")
    assert definition["externalParameters"]["name"]
    assert all(isinstance(text, str) for text in details["builder"]["version"].values())
    return predicate
