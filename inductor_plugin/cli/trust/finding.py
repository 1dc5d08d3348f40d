"""What `doctor` finds of trust: the keys, and who vouches for what is in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from inductor_plugin.cache import Pack, Store, open_store
from inductor_plugin.cache.transfer.wheel import signers_of
from inductor_plugin.cache.trust.keys import INSTALL, is_installed, open_signer
from inductor_plugin.cache.trust.listing import vouchers
from inductor_plugin.cache.trust.policy import Trust, parse_trust
from inductor_plugin.cli.finding import Finding
from inductor_plugin.errors import CacheError, TrustError

_NAME = "trust"


def trust(folder: Path, trusted_keys: str, signing_key: str) -> Finding:
    """Check the keys, and say who vouches for the kernels of a cache.

    Args:
        folder: The cache directory.
        trusted_keys: The option of this name.
        signing_key: The option of this name.
    """
    if (trusted_keys or signing_key) and not is_installed():
        return Finding(
            _NAME, "broken", "`cryptography` is missing: no signature can be checked", INSTALL
        )
    try:
        known = parse_trust(trusted_keys)
        signer = open_signer(signing_key)
    except TrustError as error:
        what, _, remedy = str(error).rpartition("; ")
        return Finding(_NAME, "broken", what or remedy, remedy if what else "")
    names = ", ".join(map(known.described, known.keys)) or "nobody's key"
    detail = f"trusted: {names}" + (f"; kernels are signed by {signer.public}" if signer else "")
    try:
        store = open_store(folder, read_only=True, trust=known)
        vouching = vouchers(store.root, store.iter_kernels(), known)
    except CacheError as error:
        return Finding(
            _NAME, "off", f"{detail}; the cache cannot be read: {error}", "see the finding `cache`"
        )
    detail += f"; kernels: {vouching.text()}"
    if vouching.refused:
        remedy = (
            "`inductor-plugin verify` names them: add the signer to INDUCTOR_PLUGIN_TRUSTED_KEYS, "
            "or remove them with `inductor-plugin rm`"
        )
        return Finding(_NAME, "broken", detail, remedy)
    return Finding(_NAME, "ok", detail)


@dataclass(frozen=True)
class Admission:
    """Whether a pack is taken into the cache.

    Attributes:
        signers: Who has signed its kernels, by name or key.
        refusal: Why it is not taken; empty if it is.
    """

    signers: str = ""
    refusal: str = ""


def admission(name: str, file: Path, known: Trust) -> Admission:
    """Return whether an installed pack is taken into the cache.

    Args:
        name: Of its entry point.
        file: The pack.
        known: Whose signatures count.
    """
    try:
        return Admission(signers_of(file, known))
    except TrustError as error:
        return Admission(refusal=f"the installed pack {name} is not used: {error}")


def vouching_of(store: Store, packs: Iterable[Pack], known: Trust) -> dict[str, str]:
    """Return for each pack in a cache, by its name, who has signed its kernels, and how many are refused; empty for neither."""
    packed = store.packed()
    entries = {entry.digest: entry for entry in store.iter_kernels() if entry.digest in packed}
    texts: dict[str, str] = {}
    for pack in packs:
        own = [entries[digest] for digest in pack.kernels if digest in entries]
        vouching = vouchers(store.root, own, known)
        refused = f"{len(vouching.refused)} refused: see the finding `{_NAME}`"
        parts = [signed_by(vouching.signers()), refused if vouching.refused else ""]
        texts[pack.name] = ", ".join(filter(None, parts))
    return texts


def signed_by(signers: str) -> str:
    """Return who has signed, in words; empty if nobody has."""
    return f"signed by {signers}" if signers else ""
