"""What the GPU tests expect of a compile's records and of the kernels it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]


def products(records: Sequence[Record]) -> list[Record]:
    """Return the records of products alone.

    A fusion's record compares two kernels with one: it has no library kernel. One that was refused has no candidates.
    """
    return [each for each in records if each["candidates"] and not each["problem"].get("epilogue")]


def unexpected(record: Record) -> str:
    """Return what a product's record lacks, or has and should not have; empty if it is as it should be."""
    kinds = {(row["kind"], row["status"]) for row in record["candidates"].values()}
    lacking = [kind for kind in ("extern", "triton") if (kind, "ok") not in kinds]
    if lacking:
        return f"no kernel of {', '.join(lacking)} has run"
    return "a kernel is wrong" if "wrong" in {status for _, status in kinds} else ""


def strange(record: Record) -> str:
    """Return how Inductor's own candidates have ended that should not end so, empty if all is well."""
    statuses = [row["status"] for row in record["candidates"].values()]
    # A tile may want more shared memory than there is: that is known before it runs, or when it starts.
    others = sorted(set(statuses) - {"ok", "raised", "pruned"})
    if others:
        return f"candidates are {', '.join(others)}"
    return "" if statuses.count("ok") > len(statuses) / 2 else "most candidates have not run"


def triton_kernels(inductor_cache: Path) -> set[str]:
    """Return the folders of Triton's compiled products: each template has a name of its own."""
    return {path.parent.name for path in inductor_cache.glob("triton/0/*/triton_*.cubin")}
