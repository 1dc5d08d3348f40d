"""Kernels on their way from one cache to another: signed where they leave, judged where they come in."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from inductor_plugin.cache import KernelEntry, Store, document
from inductor_plugin.cache.entry import ENTRY, Taken, Way, damage_of_folder, parse_entry
from inductor_plugin.cache.guard import MISSING, read, why_not_trusted_kernel
from inductor_plugin.cache.kernels import kernel_folders
from inductor_plugin.cache.layout import Layout
from inductor_plugin.cache.trust.keys import Signer
from inductor_plugin.cache.trust.policy import vouched
from inductor_plugin.cache.trust.signatures import (
    joined,
    left_out_signatures,
    true_signatures,
)
from inductor_plugin.errors import TrustError

logger = logging.getLogger(__name__)

WAY_OUT = (
    "add the signer's key to trusted_keys (INDUCTOR_PLUGIN_TRUSTED_KEYS), or, if you would run the author's code, "
    "import it with --trust"
)

_LONGEST_SOURCE = 1024


@dataclass(frozen=True)
class Copied:
    """Numbers of kernels that were copied.

    Attributes:
        new: Those that the cache lacked.
        existing: Those that it had.
        libraries: Different native libraries of all.
        signed: New ones that a trusted key vouches for.
        signatures_left_out: Signatures of those that it had for which their entries have no room.
    """

    new: int
    existing: int
    libraries: int
    signed: int
    signatures_left_out: int


def sound_kernels(layout: Layout, digests: Collection[str] | None = None) -> Iterator[KernelEntry]:
    """Yield the kernels that may leave a cache directory: whole, and such as a process would load.

    Those that others could have changed are left out, with one warning for all.

    Args:
        layout: The directory.
        digests: Only these kernels; all if it is None.
    """
    refused: list[str] = []
    for folder in kernel_folders(layout.kernels):
        if digests is not None and folder.name not in digests:
            continue
        if damage_of_folder(folder) is not None:
            continue
        try:
            entry = parse_entry(read(folder / ENTRY), folder)
            refusal = why_not_trusted_kernel(layout.root, folder, (ENTRY, *entry.files))
        except MISSING:  # it was evicted meanwhile
            continue
        if refusal is None:
            yield entry
        else:
            refused.append(f"{folder.name[:12]}: {refusal}")
    if refused:
        logger.warning(
            "inductor-plugin: %d kernels of %s are left out, for they are not trusted; the first is %s",
            len(refused),
            layout.root,
            refused[0],
        )


def copied_from(root: Path, entries: Iterable[KernelEntry]) -> Iterator[KernelEntry]:
    """Yield kernels of another cache directory with the reason why they are taken over.

    The operator has named the directory. What a signature has brought there needs that key here, too, and what came
    with artifacts is not vouched for here either.
    """
    taken = Taken("directory", _source(str(root)))
    for entry in entries:
        keeps = entry.taken is not None and entry.taken.by in ("signature", "artifacts")
        kept = replace(entry, signatures=true_signatures(entry))
        yield kept if keeps else replace(kept, taken=taken)


def outgoing(path: Path, signer: Signer | None) -> Path | bytes:
    """Return a file of a cache, or its content as it leaves: an ``entry.json`` signed, and without why it was taken."""
    if path.name != ENTRY:
        return path
    data = read(path)
    fields = document.load(data)
    sent = outgoing_fields(fields, parse_entry(data, path.parent), signer)
    return path if sent == fields else document.dump(sent)


def outgoing_fields(
    fields: dict[str, object], entry: KernelEntry, signer: Signer | None
) -> dict[str, object]:
    """Return the fields of an ``entry.json`` as they leave the cache.

    Only kernels that were built here are signed: passing on the code of others does not vouch for it. False
    signatures stay here then, so that there is room for a true one.
    """
    sent = {name: value for name, value in fields.items() if name != "taken"}
    if signer is not None and entry.taken is None:
        own = {signer.public: signer.sign(entry)}
        sent["signatures"] = joined(own, true_signatures(entry))
    return sent


def admitted(
    store: Store,
    entries: Iterable[KernelEntry],
    source: str,
    *,
    trusted: bool,
    unsigned: Way = "operator",
) -> list[KernelEntry]:
    """Return kernels from outside with the reason why they are taken over, and their true signatures; all or none.

    Where no trusted key vouches for one that is here already, its signatures stay outside, too.

    Args:
        store: The cache. A kernel that it has already, with the same files, needs no signature.
        entries: The kernels, whose checksums match.
        source: The file they come from.
        trusted: Whether unsigned kernels are taken, too. A signature that a trusted key has not made is refused in
            any case.
        unsigned: Why those are taken.

    Raises:
        TrustError: A kernel may not run here.
    """
    named = _source(source)
    taken: list[KernelEntry] = []
    refused: dict[str, list[KernelEntry]] = {}
    for entry in entries:
        verdict = vouched(entry, store.trust)
        if verdict.voucher is not None:
            taken.append(_taken(entry, "signature", named))
        elif verdict.is_forged or not (trusted or store.holds_kernel(entry)):
            refused.setdefault(verdict.reason, []).append(entry)
        else:
            kept = entry if trusted else replace(entry, signatures={})
            taken.append(_taken(kept, unsigned, named))
    if refused:
        raise TrustError(_refusal(refused, source))
    return taken


def copy_kernels(store: Store, entries: Iterable[KernelEntry]) -> Copied:
    """Publish kernels that were admitted, or that lie in a directory of the operator's own.

    One that is there stays, whatever its bytes: a process may have loaded it, and what vouches for it may not vouch for another build.
    """
    new = existing = signed = left_out = 0
    libraries: set[str] = set()
    published: dict[str, Path] = {}
    for entry in entries:
        folder = entry.folder
        libraries.update(sha256 for name, sha256 in entry.files.items() if name.endswith(".so"))
        known = store.kernel(entry.digest)
        if known is not None and entry.signatures.items() <= known.signatures.items():
            existing += 1
            continue
        files: dict[str, Path | bytes] = {
            name: published.get(sha256, folder / name) for name, sha256 in entry.files.items()
        }
        stored = store.put_kernel(entry.key, files, entry.resources, entry.further)
        published.update((sha256, stored.path(name)) for name, sha256 in stored.files.items())
        existing += known is not None
        new += known is None
        signed += known is None and _is_vouched_for(store, entry)
        if known is not None:
            left_out += left_out_signatures(known, entry, stored)
    return Copied(new, existing, len(libraries), signed, left_out)


def _is_vouched_for(store: Store, entry: KernelEntry) -> bool:
    """Return whether a kernel was taken by a signature, and of a key that this cache trusts, too."""
    if entry.taken is None or entry.taken.by != "signature":
        return False
    return vouched(entry, store.trust).voucher is not None


def _taken(entry: KernelEntry, way: Way, source: str) -> KernelEntry:
    return replace(entry, signatures=true_signatures(entry), taken=Taken(way, source))


def _source(name: str) -> str:
    """Return a file's name for a document: it may have bytes that are no text."""
    return name.encode(errors="replace").decode()[:_LONGEST_SOURCE]


def _refusal(refused: dict[str, list[KernelEntry]], source: str) -> str:
    """Return one sentence on all refused kernels, with the way out."""
    parts = [
        f"{len(entries)} kernels, {entries[0].digest[:12]} first: {reason}"
        for reason, entries in sorted(refused.items())
    ]
    is_forged = any("changed after it was signed" in reason for reason in refused)
    way_out = "get it again from whoever signed it" if is_forged else WAY_OUT
    return f"{source} holds native code that is not trusted ({'; '.join(parts)}); {way_out}"
