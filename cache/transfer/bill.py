"""The bill of materials of a pack's wheel: what compiled its kernels, and whose headers are in them (PEP 770). Pure."""

from __future__ import annotations

import hashlib
import json
import uuid
from datetime import datetime, timezone
from typing import Any

from inductor_plugin.cache.pack import Pack

NAME = "sboms/kernels.cdx.json"
"""Its path in the wheel's metadata."""
_COMPILED_IN = ("nvidia-cutlass",)
"""Software of a pack whose headers are compiled into its kernels."""
_NO_TOOLS = ("machine", "python")


def bill(pack: Pack, content: bytes, name: str, version: str) -> bytes:
    """Return the bill of materials of a wheel as CycloneDX 1.6; equal packs have equal ones.

    Args:
        pack: The pack.
        content: Its file.
        name: Name of the distribution.
        version: Its version.
    """
    root = f"pkg:pypi/{name}@{version}"
    software = {
        n: v for n, v in sorted(pack.software.items()) if n not in _NO_TOOLS and v != "none"
    }
    fields: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(pack.created, timezone.utc).isoformat(),
            "lifecycles": [{"phase": "build"}],
            "tools": {
                "components": [
                    {"type": "application", "name": tool, "version": number}
                    for tool, number in software.items()
                    if tool not in _COMPILED_IN
                ]
            },
            "component": {
                "type": "library",
                "bom-ref": root,
                "name": name,
                "version": version,
                "description": f"{len(pack.kernels)} kernels for {pack.target} ({pack.arch})",
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}],
                "purl": root,
            },
        },
        "components": [
            {
                "type": "library",
                "bom-ref": f"pkg:pypi/{part}@{software[part]}",
                "name": part,
                "version": software[part],
                "purl": f"pkg:pypi/{part}@{software[part]}",
            }
            for part in _COMPILED_IN
            if part in software and "nvcc" in software
        ],
    }
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(fields, sort_keys=True))
    return json.dumps({**fields, "serialNumber": serial.urn}, indent=1).encode() + b"\n"
