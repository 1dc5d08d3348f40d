"""What editions say of one kernel: builds and signatures of several machines, in an order that depends on nothing else. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from inductor_plugin.cache import document
from inductor_plugin.cache.entry import KernelEntry, parse_entry
from inductor_plugin.cache.trust.signatures import joined, true_signatures
from inductor_plugin.cache.trust.statement import statement

Description = Mapping[str, Any]
"""The fields of an ``entry.json``, which have the SHA-256 of each file."""

MOST = 16
"""Descriptions of one kernel that an edition has: builds differ by machine, and somebody may write false ones."""
MOST_OF_A_KEY = 4
"""Those of one signer, and those without a signature: a writer of many takes no room of other signers."""

_NOBODY = frozenset({""})
"""In place of the signers of a description that has none."""


def joined_descriptions(
    descriptions: Iterable[Description], keys: Collection[str]
) -> tuple[Description, ...]:
    """Return what several editions say of one kernel, without repetition, the one to use first.

    Those of the same files become one that has the true signatures of all. First comes what one of the keys has signed, then
    what anybody has: a description that somebody else writes takes the place of none that counts here. Of each signer, whether
    it counts here or not, `MOST_OF_A_KEY` are kept, and where that is too much the first of each before the second of any: those
    that read the next edition have other keys.

    Args:
        descriptions: At least one.
        keys: The public keys that count on this machine.
    """
    unique: list[Description] = []
    for each in descriptions:
        if each not in unique:
            unique.append(each)
    if len(unique) == 1:
        return (unique[0],)
    groups: dict[bytes, list[tuple[Description, KernelEntry]]] = {}
    for each in unique:
        entry = _entry(each)
        if entry is not None:
            groups.setdefault(statement(entry), []).append((each, entry))
    whole = [_of_group(group, keys) for group in groups.values()]
    if not whole:  # they are damage, whichever is looked at
        return (min(unique, key=_text),)
    return _chosen(sorted(whole, key=lambda each: _rank(each, keys)), keys)


def signers(descriptions: Sequence[Description]) -> set[str]:
    """Return the public keys that have signed one of these, as it is."""
    entries = filter(None, map(_entry, descriptions))
    return {key for entry in entries for key in true_signatures(entry)}


def _of_group(
    group: Sequence[tuple[Description, KernelEntry]], keys: Collection[str]
) -> Description:
    """Return one description of the same files: the first by its text, with all signatures that are true."""
    base = min((_unsigned(fields) for fields, _ in group), key=_text)
    every = sorted({pair for _, entry in group for pair in true_signatures(entry).items()})
    signatures = joined({key: text for key, text in every if key in keys}, dict(every))
    return {**base, "signatures": signatures} if signatures else base


def _rank(fields: Description, keys: Collection[str]) -> tuple[bool, bool, str]:
    authors = _authors(fields)
    return authors.isdisjoint(keys), authors == _NOBODY, _text(fields)


def _chosen(ranked: Sequence[Description], keys: Collection[str]) -> tuple[Description, ...]:
    """Return the descriptions that are kept, in their order."""
    taken: Counter[str] = Counter()
    turns: list[tuple[bool, bool, int, int]] = []
    for place, fields in enumerate(ranked):
        authors = _authors(fields)
        turn = min(taken[author] for author in authors)  # it counts for the one with the most room
        taken.update(authors)
        if turn < MOST_OF_A_KEY:
            turns.append((authors.isdisjoint(keys), authors == _NOBODY, turn, place))
    kept = sorted(place for *_, place in sorted(turns)[:MOST])
    return tuple(ranked[place] for place in kept)


def _authors(fields: Description) -> frozenset[str]:
    """Return the keys that have signed a description, or `_NOBODY`."""
    signatures: Mapping[str, str] = fields.get("signatures", {})
    return frozenset(signatures) or _NOBODY


def _unsigned(fields: Description) -> Description:
    return {name: value for name, value in fields.items() if name != "signatures"}


def _text(fields: Description) -> str:
    return json.dumps(fields, sort_keys=True)


def _entry(fields: Description) -> KernelEntry | None:
    """Return what a description says, None if it is none of a kernel."""
    try:
        return parse_entry(document.dump(fields), Path())
    except (ValueError, RecursionError):
        return None
