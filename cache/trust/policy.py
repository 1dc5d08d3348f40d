"""The decision whether a kernel may run in this process, with its reason."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timezone

from inductor_plugin.cache.entry import KernelEntry
from inductor_plugin.cache.guard import MISSING, read_keys
from inductor_plugin.cache.trust.keys import (
    ALGORITHM,
    INSTALL,
    is_installed,
    is_signature,
    key_bytes,
)
from inductor_plugin.errors import TrustError, expanded, warn_once

logger = logging.getLogger(__name__)

_MOST_BYTES = 1 << 20
_EXPIRES = "expires="
"""Begins the word of a key's line that has the last day on which it counts."""
_LIKE_DAY = ("=", "expir")
"""Whatever has these is no part of a name: with a misspelt day the key would count for ever."""


@dataclass(frozen=True)
class Trust:
    """The signers whose native code may run here.

    Attributes:
        keys: Their names by public key; a name may be empty.
        expires: The last day, in UTC, on which a key counts; without one it counts until it is withdrawn.
    """

    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    expires: Mapping[str, date] = field(default_factory=dict[str, date])

    def name(self, public: str) -> str:
        """Return a key for people: its name, and its start."""
        short = f"{public[:20]}..."
        name = self.keys.get(public)
        return f"{name} ({short})" if name else short

    def has_expired(self, public: str) -> bool:
        """Return whether the last day of a key is over."""
        last = self.expires.get(public)
        return last is not None and datetime.now(timezone.utc).date() > last

    def counting(self) -> frozenset[str]:
        """Return the keys that count today."""
        return frozenset(key for key in self.keys if not self.has_expired(key))

    def described(self, public: str) -> str:
        """Return a key for people, as `name` does, and its last day if it has one."""
        verb = "expired" if self.has_expired(public) else "expires"
        last = self.expires.get(public)
        return self.name(public) if last is None else f"{self.name(public)}, {verb} on {last}"


@dataclass(frozen=True)
class TrustVerdict:
    """Whether a kernel may run here.

    Attributes:
        voucher: Public key of the signer who vouches for it; None if none does.
        reason: Why none does; empty if one does.
        is_forged: Whether it has the name of a trusted key with a signature that is of something else.
    """

    voucher: str | None = None
    reason: str = ""
    is_forged: bool = False


def vouched(entry: KernelEntry, trust: Trust) -> TrustVerdict:
    """Return which trusted key has signed a kernel, as it is.

    A signature of another key is not looked at: anybody can make one.
    """
    claimed = [key for key in entry.signatures if key in trust.keys]
    if not entry.signatures:
        return TrustVerdict(reason="nobody has signed it")
    if not claimed:
        signers = ", ".join(sorted(entry.signatures))
        return TrustVerdict(reason=f"it is signed by {signers}, not by a key in trusted_keys")
    if not is_installed():
        return TrustVerdict(
            reason=f"its signature cannot be checked without `cryptography`: {INSTALL}"
        )
    valid = [key for key in claimed if is_signature(entry, key, entry.signatures[key])]
    for key in valid:
        if not trust.has_expired(key):
            return TrustVerdict(key)
    if valid:
        signers = ", ".join(
            f"{trust.name(key)}, whose key expired on {trust.expires[key]}" for key in valid
        )
        return TrustVerdict(reason=f"it is signed by {signers}")
    signers = ", ".join(map(trust.name, claimed))
    return TrustVerdict(
        reason=f"the signature of {signers} is of another content: it was changed after it was signed",
        is_forged=True,
    )


def why_not_loaded(entry: KernelEntry, trust: Trust) -> str | None:
    """Return why a kernel of a cache is not loaded, None if it may be.

    The cache directory is its owner's (`guard`): what was built in it, what the operator has taken over, and what came with
    artifacts of ``torch.compiler``, from which torch itself runs code, needs no signature. What came in by a signature needs
    it for as long as it is there, so that a key can be withdrawn.
    """
    if entry.taken is None or entry.taken.by != "signature":
        return None
    verdict = vouched(entry, trust)
    return None if verdict.voucher is not None else verdict.reason


def parse_trust(text: str) -> Trust:
    """Return the signers that the option ``trusted_keys`` names.

    Args:
        text: Keys, each with a name and ``expires=2027-06-30`` after blanks if wanted, and files of such lines, separated by
            commas.

    Raises:
        TrustError: A word is neither a key nor a path with a slash in it: a folder that came with a pack may hold a file of any
            name. A file is missing, may be changed by others, or has a line that is no key, or one whose last day is no day.
    """
    keys: dict[str, str] = {}
    expires: dict[str, date] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        lines = [word] if word.startswith(ALGORITHM) else _lines(word)
        for line in lines:
            public, *words = line.split()
            try:
                key_bytes(public)
                days = [_last_day(each) for each in words if _states_last_day(each)]
            except ValueError as error:
                where = "trusted_keys" if line is word else word
                raise TrustError(f"{where}: {error}; correct or remove it") from error
            name = " ".join(each for each in words if not _states_last_day(each))
            keys[public] = name or keys.get(public, "")
            if days:  # of several lines of a key the strictest holds
                expires[public] = min((*days, expires.get(public, date.max)))
    return Trust(keys, expires)


def trust_or_nobody(text: str) -> Trust:
    """Return what `parse_trust` does. Where it cannot, return trust in no key after one warning: a compile goes on without kernels of others."""
    try:
        return parse_trust(text)
    except TrustError as error:
        warn_once(logger, f"trusted_keys is not used: {error}")
        return Trust()


def _states_last_day(word: str) -> bool:
    return any(part in word.lower() for part in _LIKE_DAY)


def _last_day(word: str) -> date:
    """Return the day that a word of a key's line states.

    Raises:
        ValueError: It is none.
    """
    text = word.removeprefix(_EXPIRES)
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{word[:80]!r} is no day; write {_EXPIRES}2027-06-30") from None


def _lines(word: str) -> Iterator[str]:
    """Return the lines of a file of keys, without comments."""
    if "/" not in word:
        raise TrustError(
            f"trusted_keys has {word[:80]!r}; use a key, or the path of a file of keys with a slash in it: ./{word[:80]}"
        )
    file = expanded(word, "a file of trusted_keys", TrustError)
    try:
        stored = read_keys(file, _MOST_BYTES)
        content = stored.content.decode("utf-8")
    except (OSError, ValueError) as error:
        what = "there is no such file" if isinstance(error, MISSING) else str(error)
        raise TrustError(
            f"the file {file} of trusted_keys cannot be read: {what}; correct or unset it"
        ) from error
    if stored.refusal is not None:
        raise TrustError(f"the file of trusted_keys is refused: {stored.refusal}")
    lines = (line.partition("#")[0].strip() for line in content.splitlines())
    return (line for line in lines if line)
