"""A pack as a wheel: `pip install` installs the kernels, the first compile imports them.

The wheel holds one package with the pack in it, and an entry point in the group `ENTRY_POINTS` whose
value is that package (https://packaging.python.org/specifications/binary-distribution-format).
"""

from __future__ import annotations

import base64
import hashlib
import re
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache import Pack, open_store
from inductor_plugin.cache.transfer import bill, provenance
from inductor_plugin.cache.transfer.archive import import_archive
from inductor_plugin.cache.transfer.draft import draft_of
from inductor_plugin.cache.trust.listing import Vouchers, vouchers
from inductor_plugin.cache.trust.policy import Trust
from inductor_plugin.errors import PackError

ENTRY_POINTS = "inductor_plugin.packs"
PACK_FILE = "kernels.pack"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The oldest time a zip file can hold: equal packs give equal wheels."""
_NAME_DIGITS = 8
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?(\+[a-z0-9.]+)?")


@dataclass(frozen=True)
class Wheel:
    """A written wheel.

    Attributes:
        file: The wheel.
        name: Name of the distribution.
        version: Its version.
        kernels: Number of kernels in it.
    """

    file: Path
    name: str
    version: str
    kernels: int


def write_wheel(pack: Path, folder: Path, *, name: str | None = None, version: str = "1") -> Wheel:
    """Write a wheel that holds a pack, and return its facts.

    Args:
        pack: The file of the pack.
        folder: An existing folder for the wheel.
        name: Name of the distribution; by default from the pack's GPU and its kernels.
        version: Its version, as in PEP 440.

    Raises:
        PackError: The file holds no pack, name or version is invalid for a wheel, or a wheel of another
            pack has the same file name.
        ArchiveError: The file is damaged.
    """
    contents = read_pack(pack)
    name = name or _default_name(contents)
    if not _NAME.fullmatch(name):
        raise PackError(f"name is {name!r}; use letters, digits, '-', '_' and '.'")
    if not _VERSION.fullmatch(version):
        raise PackError(f"version is {version!r}; write it as 1, 1.2 or 1.2.post3")
    if not folder.is_dir():
        raise PackError(f"there is no folder {folder}; make it, or name another with --out")
    stem = f"{_slug(name)}-{version}"
    tag = f"py3-none-linux_{_slug(contents.machine)}"
    package = f"{_slug(name)}_kernels"
    if not package.isidentifier():
        raise PackError(f"name is {name!r}; begin it with a letter, as Python's modules do")
    metadata = _headers(
        {
            "Metadata-Version": "2.1",
            "Name": name,
            "Version": version,
            "Summary": f"Kernels for {contents.target}, compiled ahead of time for inductor-plugin",
            "Keywords": contents.name,
            "Requires-Dist": "inductor-plugin",
        }
    )
    packed = pack.read_bytes()
    members: dict[str, bytes] = {
        f"{package}/__init__.py": b'"""Kernels compiled ahead of time for inductor-plugin."""\n',
        f"{package}/{PACK_FILE}": packed,
        f"{stem}.dist-info/METADATA": metadata.encode(),
        f"{stem}.dist-info/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: inductor-plugin\nRoot-Is-Purelib: false\nTag: {tag}\n"
        ).encode(),
        f"{stem}.dist-info/entry_points.txt": (
            f"[{ENTRY_POINTS}]\n{_slug(name)} = {package}\n"
        ).encode(),
        f"{stem}.dist-info/{bill.NAME}": bill.bill(contents, packed, name, version),
    }
    described = provenance.provenance(contents, members, name, version)
    members[f"{stem}.dist-info/{provenance.NAME}"] = described
    file = folder / f"{stem}-{tag}.whl"
    if file.exists() and not _holds(file, f"{stem}.dist-info/METADATA", metadata.encode()):
        raise PackError(
            f"{file} is there and holds another pack; use another --version or --name, or delete it"
        )
    _write(file, members, f"{stem}.dist-info/RECORD")
    return Wheel(file, name, version, len(contents.kernels))


def read_pack(file: Path) -> Pack:
    """Return the pack in a file, after checking every checksum. Nothing of it is loaded.

    Raises:
        PackError: The file holds no pack, or several.
        ArchiveError: The file is missing or damaged.
    """
    return _read(file, None)[0]


def signers_of(file: Path, trust: Trust) -> str:
    """Return the names of the trusted keys that have signed the kernels of the pack in a file.

    Args:
        file: The file.
        trust: Whose signature the kernels must have.

    Raises:
        TrustError: A kernel has no such signature.
        PackError: The file holds no pack, or several.
        ArchiveError: The file is missing or damaged.
    """
    return _read(file, trust)[1].signers()


def _read(file: Path, trust: Trust | None) -> tuple[Pack, Vouchers]:
    with tempfile.TemporaryDirectory(prefix="inductor-plugin-pack-") as folder:
        store = open_store(Path(folder) / "cache", trust=trust)
        imported = import_archive(store, file, trusted=trust is None)
        vouching = vouchers(store.root, store.iter_kernels(), store.trust)
    if len(imported.packs) != 1:
        raise PackError(
            f"{file} holds {len(imported.packs)} packs; name a file that `precompile` wrote"
        )
    return imported.packs[0], vouching


def _default_name(pack: Pack) -> str:
    """Return a name that differs from those of other packs for the same GPU."""
    kernels = pack.name.rpartition("-")[2][:_NAME_DIGITS]
    return f"inductor-plugin-pack-{_slug(pack.target)}-{kernels}"


def _headers(fields: Mapping[str, str]) -> str:
    """Return headers of a wheel's metadata, one line each.

    Raises:
        PackError: A value has a line break: pip would read what follows it as another header.
    """
    for name, value in fields.items():
        if not value.isprintable():
            raise PackError(f"{name} of the wheel would be {value!r}; use the pack of someone else")
    return "".join(f"{name}: {value}\n" for name, value in fields.items())


def _holds(wheel: Path, member: str, content: bytes) -> bool:
    """Return True if a file is a wheel with a member of this content."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(member) == content
    except (OSError, KeyError, zipfile.BadZipFile):
        return False


def _write(file: Path, members: Mapping[str, bytes], record: str) -> None:
    with draft_of(file) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as wheel:
        lines: list[str] = []
        for name, content in members.items():
            wheel.writestr(_info(name), content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            lines.append(f"{name},sha256={digest.decode()},{len(content)}\n")
        wheel.writestr(_info(record), "".join([*lines, f"{record},,\n"]))


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.external_attr = 0o644 << 16
    # A pack is compressed already.
    info.compress_type = zipfile.ZIP_STORED if name.endswith(PACK_FILE) else zipfile.ZIP_DEFLATED
    return info


def _slug(name: str) -> str:
    """Return a name as wheels and packages write it."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
