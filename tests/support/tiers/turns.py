"""Turns of the tests of several workers: most run beside others, and a test that is marked ``alone`` runs while no other does."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """The turns of one run. Each worker has an object of its own, with the same folder."""

    def __init__(self, folder: Path) -> None:
        self._gate, self._room = folder / "gate", folder / "room"

    @contextmanager
    def turn(self, *, alone: bool) -> Generator[None]:
        """Wait until a test may run, and hold off others: all of them if it runs ``alone``, else those that do.

        A test that waits for an empty room holds the gate, so that no other enters: two workers whose tests overlap would
        otherwise keep it waiting to the end of the run. `filelock.ReadWriteLock` holds a connection of SQLite, which the
        children that tests fork must not inherit.
        """
        kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        with self._room.open("w") as room:
            with self._gate.open("w") as gate:
                fcntl.flock(gate, kind)
                fcntl.flock(room, kind)
                fcntl.flock(gate, fcntl.LOCK_UN)
            try:
                yield
            finally:
                # Closing the file is not enough: a child that the test has forked may have it open still.
                fcntl.flock(room, fcntl.LOCK_UN)
