"""The provenance of a pack's wheel: an in-toto Statement v1 with SLSA's predicate. Pure.

It says what the pack says of itself: when its kernels were compiled, by which versions, for which GPU and models. The author of the
pack may have written anything; the signatures of its kernels say who vouches for them (docs/trust.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from inductor_plugin.cache.pack import Pack

NAME = "provenance/kernels.intoto.json"
"""Its path in the wheel's metadata: beside `sboms`, whose files are all read as bills of materials."""
BUILDER = "pkg:pypi/inductor-plugin"
"""What has compiled the kernels: a program, with its versions. Who has run it, and where, is not known to it."""


def provenance(pack: Pack, members: Mapping[str, bytes], name: str, version: str) -> bytes:
    """Return the provenance of a wheel (https://slsa.dev/spec/v1.0/provenance); equal packs have equal ones.

    Args:
        pack: The pack.
        members: The files of the wheel by their names, without RECORD, which lists them.
        name: Name of the distribution.
        version: Its version.
    """
    parameters: dict[str, Any] = {
        "name": name,
        "version": version,
        "target": pack.target,
        "arch": pack.arch,
        "models": list(pack.models),
    }
    software = {n: v for n, v in sorted(pack.software.items()) if v != "none"}
    started = datetime.fromtimestamp(int(pack.created), timezone.utc)
    subject = [
        {"name": file, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
        for file, content in members.items()
    ]
    fields: dict[str, Any] = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subject,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{BUILDER}#precompile",
                "externalParameters": parameters,
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": software},
                "metadata": {"startedOn": started.strftime("%Y-%m-%dT%H:%M:%SZ")},
            },
        },
    }
    return json.dumps(fields, indent=1).encode() + b"\n"
