"""The parent's end of the pipe to a worker: whole messages, each with a deadline.

`multiprocessing.connection.Connection`, which the worker uses, waits without a limit: `send` for a worker that
does not read (a socket takes 233 kB, a batch of CUDA sources has 480 kB), `recv` for one that stops in the
middle of an answer. So the same format is written and read here, with the socket's timeout.
"""

from __future__ import annotations

import math
import pickle
import socket
import struct
import time
from typing import Any

from inductor_plugin.errors import WorkerDiedError

_SHORT = struct.Struct("!i")
_LONG = struct.Struct("!Q")
"""A message is its length and its bytes; the length is -1 and the long form from 2 GiB on (`_send_bytes` in
https://github.com/python/cpython/blob/3.11/Lib/multiprocessing/connection.py)."""
_PIECE_BYTES = 1 << 20
_LEAST_S = 0.001
"""What has arrived is read even if the deadline has passed."""


class Pipe:
    """Sends and receives pickled messages over one end of a socket pair."""

    def __init__(self, end: socket.socket, name: str) -> None:
        """Own ``end``; ``name`` is the worker's, for errors."""
        self._end = end
        self._name = name

    def send(self, message: object, deadline: float) -> None:
        """Send a message until ``deadline``, a ``time.monotonic()``.

        Raises:
            TimeoutError: The other side did not read all of it in time.
            OSError: The other side is gone.
        """
        data = pickle.dumps(message)
        length = len(data)
        long = length > 0x7FFFFFFF
        head = _SHORT.pack(-1) + _LONG.pack(length) if long else _SHORT.pack(length)
        self._allow_until(deadline)
        self._end.sendall(head + data)

    def receive(self, deadline: float) -> Any:
        """Return the next message that arrives until ``deadline``, a ``time.monotonic()``.

        Raises:
            TimeoutError: It did not arrive, or not all of it.
            EOFError: The other side has closed its end.
            WorkerDiedError: What arrived is no message.
        """
        (length,) = _SHORT.unpack(self._read(_SHORT.size, deadline))
        if length == -1:
            (length,) = _LONG.unpack(self._read(_LONG.size, deadline))
        if length < 0:
            raise WorkerDiedError(f"{self._name} sent something that is no message")
        data = self._read(length, deadline)
        try:
            return pickle.loads(data)  # noqa: S301  from a process of this user that we started
        except Exception as error:  # the border: whatever bytes a broken worker leaves
            raise WorkerDiedError(
                f"{self._name} sent a message that cannot be read ({type(error).__name__}: {error})"
            ) from error

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def _read(self, count: int, deadline: float) -> bytearray:
        data = bytearray()
        while len(data) < count:
            self._allow_until(deadline)
            piece = self._end.recv(min(count - len(data), _PIECE_BYTES))
            if not piece:
                raise EOFError("the worker has closed its pipe")
            data += piece
        return data

    def _allow_until(self, deadline: float) -> None:
        left_s = max(_LEAST_S, deadline - time.monotonic())
        self._end.settimeout(None if left_s == math.inf else left_s)
