"""A pack: which kernels were compiled ahead of time, for which GPU, as it lies in a cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache import document
from inductor_plugin.cache.key import SCHEMA, digest_of

_NAME_DIGITS = 16


@dataclass(frozen=True)
class Pack:
    """A set of kernels that belong together.

    Attributes:
        target: The GPU they were compiled for, by name: ``H200``.
        arch: Its architecture: ``sm_90a``.
        created: When, in seconds since 1970.
        software: What compiled them: versions of the plugin, torch, Triton, nvcc and CUTLASS; and
            ``machine``, the processor of the host they run on, as `platform.machine` names it.
        models: Where their problems come from: ``module:function``, or the name of a standard set.
        problems: The problems they serve, each in one line.
        kernels: Digests of the kernels, sorted.
    """

    target: str
    arch: str
    created: float
    software: Mapping[str, str]
    models: tuple[str, ...]
    problems: tuple[str, ...]
    kernels: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name in a cache, which follows from the target and the kernels alone."""
        found = digest_of({"target": self.target, "arch": self.arch, "kernels": self.kernels})
        return f"{self.arch}-{found[:_NAME_DIGITS]}"

    @property
    def machine(self) -> str:
        """The host's processor: a CUTLASS kernel is a library of the host that launches it."""
        # Packs from before this was noted were made on x86-64.
        return self.software.get("machine", "x86_64")

    def fields(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return asdict(self)


def dump_pack(pack: Pack) -> bytes:
    """Return the text of a pack's file, with its checksum."""
    return document.dump({"format": SCHEMA, "name": pack.name, **pack.fields()})


def parse_pack(data: bytes) -> Pack:
    """Return the pack that a file describes.

    Raises:
        ValueError: The text is damaged or of another format.
    """
    fields = document.load(data)
    if fields.get("format") != SCHEMA:
        raise ValueError(f"its format is {fields.get('format')!r}, not {SCHEMA}")
    try:
        pack = Pack(
            target=str(fields["target"]),
            arch=str(fields["arch"]),
            created=float(fields["created"]),
            software={str(k): str(v) for k, v in fields["software"].items()},
            models=tuple(map(str, fields["models"])),
            problems=tuple(map(str, fields["problems"])),
            kernels=tuple(map(str, fields["kernels"])),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not a pack: {type(error).__name__}: {error}") from error
    if fields.get("name") != pack.name:
        raise ValueError(f"its name {fields.get('name')!r} is not that of its kernels")
    return pack


def pack_files(packs: Path) -> list[Path]:
    """Return the files of packs, sorted; none if there is no such folder."""
    return sorted(packs.glob("*.json")) if packs.is_dir() else []
