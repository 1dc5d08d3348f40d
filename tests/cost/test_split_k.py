"""Where cutting K pays: few tiles and a long K, by the model and not by a threshold."""

from __future__ import annotations

import pytest

from inductor_plugin.cost import split_k
from inductor_plugin.cost.split_k import MOST, worthwhile
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.problem.target import target

GPUS = ("H100", "H200", "A100", "L40S", "RTX 4090", "B200")
OFFERED = (2, 4, 8, 16, 32, 64)


def product(
    m: int, n: int, k: int, gpu: str | None = "H100", dtype: str = "bfloat16", order: str = "nn"
) -> Problem:
    def operand(rows: int, columns: int, how: str = "n") -> Operand:
        stride = (columns, 1) if how == "n" else (1, rows)
        return Operand((rows, columns), stride, dtype, "cuda")

    inputs = (operand(m, k, order[0]), operand(k, n, order[1]))
    return Problem("mm", inputs, operand(m, n), target=target(gpu) if gpu else None)


@pytest.mark.parametrize("gpu", GPUS)
def test_a_long_k_with_few_tiles_is_cut(gpu: str) -> None:
    splits = worthwhile(product(64, 64, 8192, gpu), OFFERED)
    assert len(splits.parts) == MOST
    # 8 tiles of 16x64 do not fill a device; 16 parts of them do.
    assert 32 in splits.parts
    assert 2 not in splits.parts


def test_the_best_cut_comes_first_and_is_named() -> None:
    splits = worthwhile(product(128, 128, 65536), OFFERED)
    for part in splits.parts[1:]:
        alone = worthwhile(product(128, 128, 65536), (part,))
        assert float(alone.reason.split(" us")[0].split()[-1]) >= float(
            splits.reason.split(" us")[0].split()[-1]
        )
    assert splits.reason.startswith(f"K in {splits.parts[0]} parts is expected to take ")


@pytest.mark.parametrize("gpu", ["H100", "H200", "L40S", "RTX 4090"])
def test_a_product_that_fills_the_device_is_left_whole(gpu: str) -> None:
    # 128 tiles of 128x256 or more: float32 parts of 16 MB and more cost more than they bring.
    splits = worthwhile(product(4096, 4096, 131072, gpu), OFFERED)
    assert splits.parts == ()
    taken, whole = (float(part.split()[-1]) for part in splits.reason.split(" us")[:2])
    assert taken >= whole


def test_only_what_is_expected_to_win_is_kept() -> None:
    splits = worthwhile(product(2048, 2048, 65536, "B200"), OFFERED)
    assert splits.parts == (8,)


@pytest.mark.parametrize("limit", [1, 2])
def test_no_more_than_the_limit_is_kept(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = worthwhile(product(64, 64, 8192), OFFERED).parts
    monkeypatch.setattr(split_k, "MOST", limit)
    assert worthwhile(product(64, 64, 8192), OFFERED).parts == whole[:limit]


def test_a_gpu_that_is_not_known_leaves_inductors_order() -> None:
    splits = worthwhile(product(64, 64, 8192, None), OFFERED)
    assert splits.parts == OFFERED[:MOST]
    assert "not known" in splits.reason


def test_what_the_model_does_not_know_is_said() -> None:
    splits = worthwhile(product(64, 64, 8192, dtype="float64"), OFFERED)
    assert splits.parts == ()
    assert "float64" in splits.reason


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("order", ["nn", "nt", "tn", "tt"])
def test_every_type_and_order_of_memory_has_an_answer(dtype: str, order: str) -> None:
    assert worthwhile(product(32, 32, 16384, dtype=dtype, order=order), OFFERED).parts


def test_a_part_shorter_than_a_tile_step_is_no_cut() -> None:
    splits = worthwhile(product(16, 16, 512), (1024,))
    assert (splits.parts, splits.reason) == ((), "no tile fits a part of K")
