"""The editions of a record, read from the first to the last, and kept until the next one is written."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from inductor_plugin.cache.remote.edition import MAX_BYTES, Edition, parse_edition, united
from inductor_plugin.cache.remote.name import MOST_EDITIONS, Place, edition_name, unused_name

_TOGETHER = 256
"""Editions that are read at once."""
_SMALL_BYTES = 256 << 10
"""Size up to which they are; one that is larger is read alone. A usual one has 5 to 50 KB."""
_MOST_CHAIN_BYTES = 4 * MAX_BYTES
"""Bytes of one record's editions that are read; each has all that those before it have, and most have a hundredth."""
_MOST_BYTES = 256 << 20
"""Bytes of records that are asked for together, so that no store can fill this machine's memory."""
_KNOWN_S = 3600.0
"""Seconds after which what was read of a record's editions is read again before the next one is written: they may have expired."""
_MOST_KNOWN = 256
"""Records whose editions are kept; those that are asked for earlier are read again."""

EXPIRED = 6
"""Number of the first edition that is not asked for where none of those before it is there."""

ReadParts = Callable[[Sequence[str], Sequence[int]], Sequence[bytes | OSError]]
"""Returns objects by their names, each up to a limit of bytes."""


@dataclass(frozen=True)
class Chain:
    """What a remote has of a record.

    Attributes:
        edition: What all sound editions know; None if there are none.
        next: Number of the first edition that is not there.
        bytes: Bytes that were read.
        damaged: Names of damaged editions, and why.
        error: Why editions could not be read, None if they could.
        keys: The public keys that count on this machine: of several builds of a kernel, theirs comes first.
    """

    edition: Edition | None = None
    next: int = 0
    bytes: int = 0
    damaged: tuple[str, ...] = field(default=())
    error: OSError | None = None
    keys: frozenset[str] = frozenset()


def read_chains(
    read: ReadParts,
    places: Iterable[Place],
    begun: Mapping[Place, Chain] | None = None,
    keys: frozenset[str] = frozenset(),
) -> dict[Place, Chain]:
    """Return the chains of several records, all read together: a round for 2 editions, two for 6, three for 14.

    Where the first 2 are not there, the next 4 are asked for, too: a bucket that expires objects by age removes the first of a
    chain before the last.

    Args:
        read: Reads objects.
        places: The records.
        begun: What is known of them already.
        keys: The public keys that count on this machine.
    """
    chains = {place: (begun or {}).get(place, Chain(keys=keys)) for place in places}
    first = {place: chain.next for place, chain in chains.items()}
    unread, width = first, 2
    while unread:
        goes_on: dict[Place, int] = {}
        for some in _parts([*unread], max(1, _TOGETHER // width)):
            if sum(chain.bytes for chain in chains.values()) > _MOST_BYTES:
                text = f"what was asked for has more than {_MOST_BYTES} bytes"
                error = OSError(errno.ENOMEM, text)
                chains |= {place: replace(chains[place], error=error) for place in some}
                continue
            windows = {
                place: range(unread[place], min(unread[place] + width, MOST_EDITIONS))
                for place in some
            }
            contents = _contents(read, windows)
            for place, window in windows.items():
                chains[place], is_open = _extended(read, place, chains[place], window, contents)
                if window.start == first[place]:
                    is_open |= chains[place] == Chain(next=window.start, keys=keys)
                if is_open and window.stop < MOST_EDITIONS:
                    goes_on[place] = window.stop
        unread, width = goes_on, width * 2
    return chains


def _parts(places: Sequence[Place], size: int) -> Iterator[Sequence[Place]]:
    return (places[start : start + size] for start in range(0, len(places), size))


def _contents(read: ReadParts, windows: Mapping[Place, range]) -> dict[str, bytes | OSError]:
    """Return small editions by their names, and EFBIG for those that are to be read alone."""
    names = [edition_name(place, n) for place, window in windows.items() for n in window]
    return dict(zip(names, read(names, [_SMALL_BYTES] * len(names)), strict=True))


def _extended(
    read: ReadParts,
    place: Place,
    chain: Chain,
    window: range,
    contents: dict[str, bytes | OSError],
) -> tuple[Chain, bool]:
    """Return a chain with the editions of a window, and whether there may be more behind it."""
    is_open = False
    for number in window:
        name = edition_name(place, number)
        content = contents[name]
        is_open = not isinstance(content, FileNotFoundError)
        if isinstance(content, FileNotFoundError):
            continue
        if isinstance(content, OSError) and content.errno == errno.EFBIG:
            content = read([name], [MAX_BYTES])[0]
        if not isinstance(content, OSError):
            chain = _taken(read, place, chain, name, content)
        elif content.errno == errno.EFBIG:  # damage, too: it must not keep others from writing
            chain = replace(chain, damaged=(*chain.damaged, f"{name}: {content.strerror}"))
        else:
            chain = replace(chain, error=content)
        if chain.error is not None:
            return chain, False
        chain = replace(chain, next=number + 1)
    return chain, is_open


def _taken(read: ReadParts, place: Place, chain: Chain, name: str, content: bytes) -> Chain:
    """Return a chain with one more edition; a damaged one is read once more, since it may be whole in the store."""
    reason = ""
    for attempt in range(2):
        again = read([name], [MAX_BYTES])[0] if attempt else content
        if isinstance(again, OSError):
            break
        chain = replace(chain, bytes=chain.bytes + len(again))
        if chain.bytes > _MOST_CHAIN_BYTES:
            reason = f"the record has more than {_MOST_CHAIN_BYTES} bytes, which none has"
            break
        try:
            edition = parse_edition(again, place)
        except (ValueError, RecursionError) as error:
            reason = str(error)
            continue
        return replace(chain, edition=united(chain.edition, edition, chain.keys))
    if not chain.damaged and not isinstance(read([unused_name()], [MAX_BYTES])[0], OSError):
        text = "it answers for objects that are not there, as a proxy or a login page does"
        return replace(chain, error=OSError(errno.EIO, text))
    return replace(chain, damaged=(*chain.damaged, f"{name}: {reason}"))


class KnownChains:
    """The editions of a few records, as they were read lately; used with a lock of the caller's."""

    def __init__(self) -> None:
        """Begin with none."""
        self._rows: dict[Place, tuple[float, Chain]] = {}

    @property
    def places(self) -> list[Place]:
        """The records, those that were read first at the front."""
        return [*self._rows]

    def add(self, place: Place, chain: Chain) -> None:
        """Keep what was read of a record, instead of that of the first one if there are too many."""
        self._rows[place] = time.monotonic(), chain
        if len(self._rows) > _MOST_KNOWN:
            del self._rows[next(iter(self._rows))]

    def take(self, place: Place) -> Chain | None:
        """Return what was read of a record lately, and forget it; None if nothing was, or not all."""
        read_at, chain = self._rows.pop(place, (0.0, None))
        is_usable = chain is not None and chain.error is None
        return chain if is_usable and time.monotonic() - read_at < _KNOWN_S else None
