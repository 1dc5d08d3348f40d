"""A library that leaves a mark as soon as it is loaded, kernels with it, and signers."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from inductor_plugin.cache import KernelEntry, KernelKey, Store, document
from inductor_plugin.cache.entry import ENTRY, MAX_SIGNATURES, make_entry, parse_entry
from inductor_plugin.cache.trust.keys import signer_of
from inductor_plugin.cache.trust.policy import Trust
from tests.support.cache.records import kernel_key

FRIEND = signer_of(Ed25519PrivateKey.from_private_bytes(b"f" * 32))
STRANGER = signer_of(Ed25519PrivateKey.from_private_bytes(b"s" * 32))
TRUST = Trust({FRIEND.public: "a friend"})
EXPIRED = Trust(TRUST.keys, {FRIEND.public: date(2020, 1, 31)})
LIBRARY = "kernel.so"


def marking_library(folder: Path, mark: Path) -> bytes:
    """Return a library whose constructor creates a file."""
    source, built = folder / "payload.c", folder / "payload.so"
    source.write_text(
        "#include <fcntl.h>\n"
        f'__attribute__((constructor)) static void run(void) {{ creat("{mark}", 0600); }}\n'
        "int kernel(void) { return 0; }\n"
    )
    command = ["g++", "-x", "c", "-shared", "-fPIC", "-o", str(built), str(source)]
    subprocess.run(command, check=True)
    return built.read_bytes()


def marking_call(mark: Path) -> str:
    """Return a Python expression that creates a file where it is evaluated."""
    return f"__import__('pathlib').Path({str(mark)!r}).touch()"


def marking_module(folder: Path, name: str, mark: Path) -> Path:
    """Write a module that creates a file where it is imported; return its path."""
    file = folder / f"{name}.py"
    file.write_text(f"{marking_call(mark)}\n", encoding="utf-8")
    return file


def load_all(store: Store) -> int:
    """Load every library that a cache hands out, as operators do; return how many."""
    loaded = 0
    for path in sorted(store.layout.kernels.glob("*/*")):
        entry = store.kernel(path.name)
        if entry is not None:
            ctypes.CDLL(str(entry.path(LIBRARY)))
            loaded += 1
    return loaded


class Kernel:
    """The fields of an ``entry.json`` and the files of one kernel, to be changed after it was signed.

    Attributes:
        fields: Those of ``entry.json``, without the checksum of the document.
        files: Content by name.
    """

    def __init__(self, folder: Path, files: Mapping[str, bytes], name: str = "k") -> None:
        """Describe files, in an empty folder, as the kernel of a key."""
        folder.mkdir(parents=True)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        text = make_entry(folder, kernel_key(name), list(files), None)
        self.fields: dict[str, Any] = document.load(text)
        self.files = dict(files)

    @property
    def entry(self) -> KernelEntry:
        """What the fields describe."""
        return parse_entry(document.dump(self.fields), Path())

    def signed(self, signer: Any = FRIEND) -> Kernel:
        """Sign it as it is now; return it."""
        named = self.fields.setdefault("signatures", {})
        named[signer.public] = signer.sign(self.entry)
        return self

    def with_library(self, content: bytes) -> Kernel:
        """Replace its library, with all checksums; return it."""
        self.files[LIBRARY] = content
        self.fields["files"] = {**self.fields["files"], LIBRARY: sha256(content)}
        self.fields["bytes"] = sum(map(len, self.files.values()))
        return self

    def with_key(self, **fields: str) -> Kernel:
        """Make it the kernel of another key; return it."""
        key = replace(KernelKey(**self.fields["key"]), **fields)
        self.fields |= {"key": key.fields(), "digest": key.digest}
        return self

    def members(self) -> dict[str, bytes]:
        """Return its members of an archive."""
        digest = self.fields["digest"]
        folder = f"kernels/{digest[:2]}/{digest}"
        contents = {ENTRY: document.dump(self.fields), **self.files}
        return {f"{folder}/{name}": content for name, content in contents.items()}

    def place(self, store: Store) -> Path:
        """Write it into a cache directory, as whoever may write there can; return its folder."""
        folder = store.layout.kernel(self.fields["digest"])
        folder.mkdir(parents=True, mode=0o700)
        for name, content in {ENTRY: document.dump(self.fields), **self.files}.items():
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o600)
        return folder


def of_many(entry: KernelEntry) -> dict[str, str]:
    """Return as many true signatures as an entry may have, of keys that nobody knows."""
    privates = [bytes([number]) * 32 for number in range(MAX_SIGNATURES)]
    signers = [signer_of(Ed25519PrivateKey.from_private_bytes(private)) for private in privates]
    return {signer.public: signer.sign(entry) for signer in signers}


def sha256(content: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(content).hexdigest()
