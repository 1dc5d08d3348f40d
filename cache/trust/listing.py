"""Who vouches for the kernels of a cache, for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from inductor_plugin.cache.entry import ENTRY, KernelEntry, Way
from inductor_plugin.cache.guard import why_not_trusted_kernel
from inductor_plugin.cache.trust.policy import Trust, vouched, why_not_loaded

_WORDS: dict[str, str] = {
    "built": "built here",
    "operator": "taken with --trust",
    "directory": "merged from another cache",
    "artifacts": "loaded with artifacts",
    "signature": "signed",
    "nobody": "refused",
}


@dataclass(frozen=True)
class Voucher:
    """Who vouches for a kernel of a cache.

    Attributes:
        by: ``built``: it was built there, or by a version that kept no account; a way of `entry.Taken`; ``nobody``: it is not loaded.
        key: The trusted public key that has signed it; empty without one, and for what was built there.
        name: The key's name in ``trusted_keys``.
        reason: Why nobody vouches for it, or who else could have changed it; empty if it is loaded.
    """

    by: Literal["built", "nobody"] | Way
    key: str = ""
    name: str = ""
    reason: str = ""

    def text(self) -> str:
        """Return it in a few words, as `Vouchers.text` does."""
        return f"signed by {self.name or self.key}" if self.key else _WORDS[self.by]


@dataclass(frozen=True)
class Signed:
    """Kernels that one trusted key vouches for.

    Attributes:
        key: The public key.
        name: Its name in ``trusted_keys``.
        kernels: Their number.
    """

    key: str
    name: str
    kernels: int


@dataclass(frozen=True)
class RefusedKernel:
    """A kernel that is not loaded.

    Attributes:
        digest: The kernel.
        reason: Why no trusted key vouches for it, or who else could have changed it.
    """

    digest: str
    reason: str


@dataclass(frozen=True)
class Vouchers:
    """Who vouches for the kernels of a cache.

    Attributes:
        built: Kernels that were built in it, or by a version that kept no account.
        operator: Kernels that were taken with ``--trust``, and no trusted key has signed.
        artifacts: Kernels that were among artifacts of ``torch.compiler`` which a process has loaded; no key vouches for them.
        directory: Kernels that were merged with another cache's directory.
        signed: Kernels from elsewhere that a trusted key has signed, by key.
        refused: Kernels that are not loaded.
    """

    built: int
    operator: int
    artifacts: int
    directory: int
    signed: tuple[Signed, ...]
    refused: tuple[RefusedKernel, ...]

    def fields(self) -> dict[str, Any]:
        """Return them as plain JSON values."""
        return asdict(self)

    def signers(self) -> str:
        """Return the names, or keys, of those who have signed."""
        return ", ".join(each.name or each.key for each in self.signed)

    def text(self, place: str = "here") -> str:
        """Return one line; ``place`` is the cache."""
        parts = [f"{self.built} built {place}"]
        parts += [f"{s.kernels} signed by {s.name or s.key}" for s in self.signed]
        parts += [f"{self.operator} {_WORDS['operator']}"] if self.operator else []
        parts += [f"{self.directory} {_WORDS['directory']}"] if self.directory else []
        loaded = f"{_WORDS['artifacts']} of torch.compiler, for which nobody vouches"
        parts += [f"{self.artifacts} {loaded}"] if self.artifacts else []
        if self.refused:
            first = self.refused[0]
            parts += [f"{len(self.refused)} refused ({first.digest[:12]}: {first.reason})"]
        return ", ".join(parts)


def voucher(root: Path, entry: KernelEntry, trust: Trust) -> Voucher:
    """Return who vouches for a kernel of a cache directory; the checksums of its files are `verify`'s business."""
    reason = _changeable(root, entry) or why_not_loaded(entry, trust)
    if reason is not None:
        return Voucher("nobody", reason=reason)
    if entry.taken is None:
        return Voucher("built")
    # A trusted signature counts however the kernel came: it may have been added to one that was here.
    key = vouched(entry, trust).voucher
    return Voucher(entry.taken.by) if key is None else Voucher("signature", key, trust.keys[key])


def vouchers(root: Path, entries: Iterable[KernelEntry], trust: Trust) -> Vouchers:
    """Return who vouches for which kernels of a cache directory, as `voucher` does."""
    ways: Counter[str] = Counter()
    signed: Counter[str] = Counter()
    refused: list[RefusedKernel] = []
    for entry in entries:
        own = voucher(root, entry, trust)
        if own.by == "nobody":
            refused.append(RefusedKernel(entry.digest, own.reason))
        elif own.by == "signature":
            signed[own.key] += 1
        else:
            ways[own.by] += 1
    by_key = tuple(Signed(key, trust.keys.get(key, ""), n) for key, n in sorted(signed.items()))
    return Vouchers(
        built=ways["built"],
        operator=ways["operator"],
        artifacts=ways["artifacts"],
        directory=ways["directory"],
        signed=by_key,
        refused=tuple(refused),
    )


def _changeable(root: Path, entry: KernelEntry) -> str | None:
    """Return who else could have changed a kernel; None if no other user could, or it is not whole."""
    try:
        refusal = why_not_trusted_kernel(root, entry.folder, (ENTRY, *entry.files))
    except OSError:
        return None
    return None if refusal is None else str(refusal)
