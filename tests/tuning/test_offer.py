"""``max_candidates``: who is tried when not all are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from inductor_plugin.tuning.offer import CandidateOffer
from tests.support.fakes import tasks
from tests.support.fakes.selection import rig


def offer(name: str, kind: str, index: int = 0) -> CandidateOffer:
    return tasks.offer(f"{name}-{index}", kind, name, library=kind == "extern")


def as_inductor_hands_them_over() -> list[CandidateOffer]:
    """Return its own first and ours last, each family's best first."""
    return [
        offer("mm", "extern"),
        offer("decompose_k_16", "subgraph"),
        offer("decompose_k_32", "subgraph"),
        *(offer("triton_mm", "triton", i) for i in range(20)),
        *(offer("cpp_gemm", "cpp", i) for i in range(2)),
        *(offer(f"cutlass::tile{i}", "template") for i in range(16)),
        *(offer("triton_split_k", "triton", i) for i in range(4)),
    ]


def kept(path: Path, limit: int, offers: Sequence[CandidateOffer]) -> list[str]:
    ticket = rig(path, max_candidates=limit).plan(offers)
    return [offered.candidate_id for offered in ticket.offers]


def test_each_family_has_its_turn(tmp_path: Path) -> None:
    assert kept(tmp_path, 7, as_inductor_hands_them_over()) == [
        "mm-0",
        "decompose_k_16-0",
        "decompose_k_32-0",
        "triton_mm-0",
        "triton_mm-1",
        "cpp_gemm-0",
        "cutlass::tile0-0",
        "triton_split_k-0",
    ]


def test_a_family_that_is_used_up_leaves_its_turns_to_the_others(tmp_path: Path) -> None:
    offers = kept(tmp_path, 20, as_inductor_hands_them_over())
    assert len(offers) == 21
    count = {
        name: sum(offered.startswith(name) for offered in offers)
        for name in ("decompose_k", "triton_mm", "cpp_gemm", "cutlass", "triton_split_k")
    }
    assert count == {
        "decompose_k": 2,
        "triton_mm": 6,
        "cpp_gemm": 2,
        "cutlass": 6,
        "triton_split_k": 4,
    }
    assert {f"cutlass::tile{i}-0" for i in range(6)} <= set(offers)


@pytest.mark.parametrize("limit", [0, 44, 1000])
def test_without_a_limit_that_bites_all_are_kept_in_their_order(tmp_path: Path, limit: int) -> None:
    offers = as_inductor_hands_them_over()
    assert kept(tmp_path, limit, offers) == [offered.candidate_id for offered in offers]


def test_library_kernels_do_not_count(tmp_path: Path) -> None:
    offers = [offer("a", "extern"), offer("b", "extern"), offer("t", "triton"), offer("c", "cpp")]
    assert kept(tmp_path, 1, offers) == ["a-0", "b-0", "t-0"]
