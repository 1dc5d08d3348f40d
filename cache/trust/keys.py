"""Ed25519 keys: as text, as files, and what they sign. The one module that uses `cryptography`, where a signature is met."""

from __future__ import annotations

import base64
import binascii
import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inductor_plugin.cache.entry import KernelEntry
from inductor_plugin.cache.guard import MISSING, read_keys
from inductor_plugin.cache.trust.statement import statement
from inductor_plugin.errors import TrustError, expanded

ALGORITHM = "ed25519:"
INSTALL = 'pip install "inductor-plugin[trust]"'
_MOST_BYTES = 64 << 10
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64


@dataclass(frozen=True)
class Signer:
    """A private key.

    Attributes:
        public: The public key as text: ``ed25519:`` and 43 characters.
    """

    public: str
    _private: Any

    def sign(self, entry: KernelEntry) -> str:
        """Return the signature of a kernel's statement."""
        return _text(self._private.sign(statement(entry)))


def is_installed() -> bool:
    """Return True if signatures can be checked and made."""
    try:
        _cryptography()
    except TrustError:
        return False
    return True


def is_signature(entry: KernelEntry, public: str, signature: str) -> bool:
    """Return whether a key has signed this kernel, as it is.

    Raises:
        TrustError: `cryptography` is not installed.
    """
    ed25519, invalid = _cryptography()
    try:
        key = ed25519.Ed25519PublicKey.from_public_bytes(key_bytes(public))
        key.verify(_bytes(signature, _SIGNATURE_BYTES), statement(entry))
    except (ValueError, invalid):
        return False
    return True


def new_key(file: Path) -> Signer:
    """Write a new private key (PEM, PKCS #8), which only this user may read, and return it.

    Raises:
        TrustError: The file is there already or cannot be written, or `cryptography` is not installed.
    """
    ed25519, _ = _cryptography()
    serialization: Any = importlib.import_module("cryptography.hazmat.primitives.serialization")
    private = ed25519.Ed25519PrivateKey.generate()
    content: bytes = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
    except OSError as error:
        raise TrustError(
            f"cannot write a key to {file}: {error.strerror}; name a new file"
        ) from error
    return signer_of(private)


def open_signer(file: Path | str) -> Signer | None:
    """Return the private key in a file; None if no file is named.

    Raises:
        TrustError: The file is missing, holds no Ed25519 key, or others may read or change it; or `cryptography` is not
            installed.
    """
    if not str(file):
        return None
    path = expanded(file, "the signing key", TrustError)
    try:
        stored = read_keys(path, _MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = "is missing" if isinstance(error, MISSING) else f"cannot be read: {error}"
        raise TrustError(
            f"the signing key {path} {reason}; `inductor-plugin key new {path}` makes one"
        ) from error
    if stored.refusal is not None:
        raise TrustError(f"the signing key is refused: {stored.refusal}")
    if stored.mode & 0o077:
        raise TrustError(
            f"the signing key {path} may be read by others (mode {stored.mode:04o}); run: chmod 600 {path}"
        )
    ed25519, _ = _cryptography()
    serialization: Any = importlib.import_module("cryptography.hazmat.primitives.serialization")
    try:
        private = serialization.load_pem_private_key(stored.content, password=None)
    except Exception as error:  # ValueError, TypeError (a password), UnsupportedAlgorithm
        raise TrustError(
            f"{path} holds no private key that can be used: {error}; name one that `inductor-plugin key new` has made"
        ) from error
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise TrustError(
            f"{path} holds no Ed25519 key; name one that `inductor-plugin key new` has made"
        )
    return signer_of(private)


def key_bytes(public: str) -> bytes:
    """Return the 32 bytes of a public key.

    Raises:
        ValueError: The text is none.
    """
    if not public.startswith(ALGORITHM):
        raise ValueError(f"{public[:80]!r} is no key; write ed25519: and 43 characters")
    return _bytes(public.removeprefix(ALGORITHM), _KEY_BYTES)


def is_key(public: str) -> bool:
    """Return whether a text is a public key."""
    try:
        key_bytes(public)
    except ValueError:
        return False
    return True


def signer_of(private: Any) -> Signer:
    """Return an Ed25519PrivateKey of `cryptography` with its public key as text."""
    return Signer(ALGORITHM + _text(private.public_key().public_bytes_raw()), private)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str, size: int) -> bytes:
    """Return the bytes of a text; one text for each, so that a key has one name."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"{text[:80]!r} is no base64") from error
    if len(data) != size or _text(data) != text:
        raise ValueError(f"{text[:80]!r} are not {size} bytes in base64")
    return data


def _cryptography() -> tuple[Any, type[Exception]]:
    """Return the module of Ed25519, and the exception for a signature that does not match; 30 ms the first time."""
    try:
        ed25519: Any = importlib.import_module("cryptography.hazmat.primitives.asymmetric.ed25519")
        exceptions: Any = importlib.import_module("cryptography.exceptions")
    except ImportError as error:
        raise TrustError(
            f"signatures cannot be checked or made, `cryptography` is missing: {INSTALL}"
        ) from error
    return ed25519, exceptions.InvalidSignature
