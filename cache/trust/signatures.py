"""Several signatures of one kernel: which of them are true, and which are kept where an entry has no room for all."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from inductor_plugin.cache.entry import MAX_SIGNATURES, KernelEntry
from inductor_plugin.cache.trust.keys import is_installed, is_key, is_signature
from inductor_plugin.cache.trust.policy import Trust, vouched
from inductor_plugin.cache.trust.statement import statement


def true_signatures(entry: KernelEntry) -> dict[str, str]:
    """Return the signatures of a kernel that their keys have made, trusted or not; any text can be in their place.

    Without `cryptography` those are returned whose keys are keys.
    """
    claimed = {key: text for key, text in entry.signatures.items() if is_key(key)}
    if not claimed or not is_installed():
        return claimed
    return {key: text for key, text in claimed.items() if is_signature(entry, key, text)}


def joined(*groups: Mapping[str, str]) -> dict[str, str]:
    """Return signatures by key, of each key the first, from the first groups as many as an entry may have."""
    signatures: dict[str, str] = {}
    for group in groups:
        for key, text in group.items():
            signatures.setdefault(key, text)
    return dict(islice(signatures.items(), MAX_SIGNATURES))


def countersigned(known: KernelEntry, other: KernelEntry, trust: Trust) -> dict[str, str]:
    """Return the signatures of a kernel that is here with those that the same files have elsewhere.

    Those of here stay, but for one that a trusted key has made there: it takes the place of a false one, or of one whose
    key is not trusted here if there are too many.
    """
    voucher = vouched(other, trust).voucher
    first = {} if voucher is None else {voucher: other.signatures[voucher]}
    trusted = {key: text for key, text in known.signatures.items() if key in trust.keys}
    return joined(first, trusted, known.signatures, other.signatures)


def left_out_signatures(known: KernelEntry, other: KernelEntry, kept: KernelEntry) -> int:
    """Return how many keys have signed a kernel, here or elsewhere, for which its entry has no room any more.

    Args:
        known: The kernel as it was here.
        other: The one that was taken over; of other files its signatures say nothing here, and do not count.
        kept: The kernel as it is here now.
    """
    if len(kept.signatures) < MAX_SIGNATURES or statement(kept) != statement(other):
        return 0
    return len((known.signatures.keys() | other.signatures.keys()) - kept.signatures.keys())
