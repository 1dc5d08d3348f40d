"""What has gone over a remote's line, as counters."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Amounts:
    """What has gone over a remote's line; each field is a counter of the cache, with ``remote_`` before it.

    Attributes:
        asked: Records that were asked for.
        hits: Those of which the remote knew more than the cache.
        kernels: Kernels that were fetched.
        refused: Kernels that were not fetched, since no trusted key has signed them.
        sent: Editions that were written.
        bytes_read: Bytes read.
        bytes_written: Bytes written.
        corrupt: Damaged objects.
        failures: Requests, or groups of them, without an answer.
        unsent: Records that were not written: not in time, or to a remote that cannot be opened or written.
        full: Records that took no more: they have all their editions, or would be too large.
        saved_ms: Milliseconds of compiling and of samples that other machines have spent on what was taken over.
        waited_ms: Milliseconds that compiles waited for answers.
    """

    asked: int = 0
    hits: int = 0
    kernels: int = 0
    refused: int = 0
    sent: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    corrupt: int = 0
    failures: int = 0
    unsent: int = 0
    full: int = 0
    saved_ms: float = 0.0
    waited_ms: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        """Return the sums."""
        return Amounts(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def counters(self) -> dict[str, int]:
        """Return those that are not 0, as counters of a cache."""
        return {
            f"remote_{name}": round(value) for name, value in vars(self).items() if round(value)
        }
