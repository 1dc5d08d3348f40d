"""How a remote is used."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RemoteOptions:
    """How a remote is used.

    Attributes:
        url: Where it is, as fsspec understands it.
        timeout_s: Longest time a request may take, and a compile or the end of the process may wait.
        writes: Whether records are written to it.
        kernels: Whether winners' kernels travel, too: native code, fetched only if a trusted key has signed it.
        signing_key: File of the private key that signs kernels that are written; empty for none.
    """

    url: str
    timeout_s: float
    writes: bool = True
    kernels: bool = False
    signing_key: str = ""
