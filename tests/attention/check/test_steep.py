"""When an attention is run with large scores, and what it must compute there."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from inductor_plugin.attention.check.steep import exponents, wrong
from inductor_plugin.problem.attention import Attention, Mask

FACTS = Attention(False, 1, 2, 2, 8, 8, 64, 64, 0.125, Mask(), 0.0, ("q", "k", "v"), "float32")


def test_scores_get_a_deviation_of_64() -> None:
    q = torch.ones(1, 2, 8, 64)
    assert exponents(FACTS, q, q) == (6, -20)
    assert exponents(FACTS, 16 * q, q / 4) == (4, -20)
    assert exponents(FACTS, q.half(), q.half()) == (6, -6)


def test_there_are_attentions_without_such_a_run() -> None:
    q = torch.ones(1, 2, 8, 64)
    assert exponents(replace(FACTS, backward=True), q, q) is None
    assert exponents(FACTS, q.to(torch.float8_e5m2), q.to(torch.float8_e5m2)) is None
    assert exponents(FACTS, q, q[:, :, :0]) is None
    assert exponents(FACTS, q, torch.zeros_like(q)) is None
    assert exponents(replace(FACTS, scale=1e-6), q, q) is None  # q would be infinite in float16


def test_outputs_are_held_against_the_library_kernel_s() -> None:
    library = {"out": torch.randn(64, 64) * 2.0**-20, "lse": torch.full((64,), 200.0)}
    assert wrong(library, library) == ""
    near = {"out": library["out"] * 1.2, "lse": library["lse"] + 1}
    assert wrong(near, library) == ""
    flushed = {"out": torch.zeros(64, 64), "lse": library["lse"]}
    assert wrong(flushed, library).startswith("out: off the library kernel's by 1 of its")
    infinite = {"out": library["out"], "lse": torch.full((64,), math.inf)}
    assert wrong(infinite, library).startswith("lse: 64 of 64 numbers are NaN or infinite")


def test_what_the_library_kernel_has_not_is_not_compared() -> None:
    out = torch.randn(8, 8)
    hidden = out.clone()
    hidden[2:] = math.nan
    assert wrong({"out": out, "lse": out[0]}, {"out": hidden}) == ""
    assert wrong({"out": 3 * out}, {"out": hidden}).startswith("out: off")
    assert wrong({"out": out}, {"out": torch.zeros(8, 8)}).startswith("out: off the library")


def test_what_is_no_number_in_the_library_kernel_s_output_either_is_not_lost() -> None:
    lse = torch.full((64,), 200.0)
    lse[:16] = math.inf  # rows that see no key
    assert wrong({"lse": lse.clone()}, {"lse": lse}) == ""
    fewer = lse.clone()
    fewer[16] = math.inf
    assert wrong({"lse": fewer}, {"lse": lse}).startswith(
        "lse: 1 of 48 numbers are NaN or infinite"
    )
