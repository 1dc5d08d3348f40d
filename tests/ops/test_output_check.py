"""`check_outputs`: generated code that names the kernel which wrote NaN or Inf."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false, reportPrivateUsage=false
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch._inductor.config as inductor_config

import inductor_plugin
from inductor_plugin.cache import open_store
from inductor_plugin.cache.lookup.find import find
from inductor_plugin.errors import OutputError
from inductor_plugin.ops import output_check
from inductor_plugin.ops.output_check import check, finite
from tests.support.candidates import wrong_in_process
from tests.support.candidates.providers import offered
from tests.support.checked_outputs import checked
from tests.support.lowering import Lab, library_first

pytestmark = pytest.mark.compat

HUGE = 1e30
"""Finite in float32, and no product of two is."""


@pytest.fixture(autouse=True)
def fresh(inductor_cache: Path) -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with inductor_config.patch(fx_graph_cache=False):
        yield
    inductor_plugin.disable()
    torch._dynamo.reset()


def test_an_operator_that_writes_nan_is_named_with_its_problem_its_record_and_the_first_index(
    cache_dir: Path,
) -> None:
    a, b = torch.randn(24, 16), torch.randn(16, 32)
    with wrong_in_process.offered(), Lab(wrong_in_process.first, cache_dir).open():
        run = checked(torch.mm, cache_dir, check_outputs="nan")
        assert torch.allclose(run(a, b), a @ b, atol=1e-4)
        with wrong_in_process.betraying(5, 7), pytest.raises(OutputError) as caught:
            run(a, b)
    text = str(caught.value)
    assert "traitor::mm" in text
    assert "nan at [5, 7] of buf0 (torch.float32, 24x32; 1 of 768 elements)" in text
    assert "mm(24x16, 16x32)" in text
    key = re.search(r"inductor-plugin repro ([^`]+)`", text)
    assert key is not None
    assert find(open_store(cache_dir).layout, key[1]).kind == "record"


def test_a_library_kernel_that_overflows_is_named(cache_dir: Path) -> None:
    a, b = torch.full((8, 16), HUGE), torch.full((16, 8), HUGE)
    run = checked(torch.mm, cache_dir)
    with (
        offered("good"),
        Lab(library_first, cache_dir).open(),
        pytest.raises(OutputError, match=r"^mm wrote inf at \[0, 0\]"),
    ):
        run(a, b)


def test_only_what_is_asked_for_is_an_error(cache_dir: Path) -> None:
    a, b = torch.full((8, 16), HUGE), torch.full((16, 8), HUGE)
    with offered("good"), Lab(library_first, cache_dir).open():
        assert checked(torch.mm, cache_dir, check_outputs="nan")(a, b).isinf().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_kernel_is_not_blamed_for_what_it_was_given_and_that_is_said_once_with_the_input(
    cache_dir: Path, value: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_check, "_EXCUSED", set())
    a, b = torch.randn(24, 16), torch.randn(16, 32)
    with offered("good"), Lab(library_first, cache_dir).open():
        run = checked(torch.mm, cache_dir)
        run(a, b)
        assert warnings(caplog) == []
        a[3, 3] = value
        answer = run(a, b)
        run(a, b)
    assert not answer[3].isfinite().any()
    assert torch.allclose(answer[4:], a[4:] @ b, atol=1e-4)
    (warning,) = warnings(caplog)
    assert warning.startswith("mm is not judged for buf0 of mm(24x16, 16x32)")
    assert warning.endswith("in what it read (arg0_1)")


def test_each_record_is_said_to_be_unjudged_and_every_bad_input_is_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_check, "_EXCUSED", set())
    good, nan, inf = torch.ones(2), torch.full((2,), torch.nan), torch.full((2,), torch.inf)
    answers = finite(bias=nan, a=good, b=inf)
    for key in ("e/1", "e/2", "e/1"):
        check((("buf0", nan),), answers, mode="nan", kernel="k", problem="p", key=key)
    assert len(warnings(caplog)) == 2
    assert warnings(caplog)[0].endswith("(bias, b)")
    check((("buf0", inf),), answers, mode="nan", kernel="k", problem="p", key="e/3")
    assert len(warnings(caplog)) == 2  # Inf is not looked for, so that there is nothing to judge


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the looks have warned of."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == output_check.__name__ and record.levelname == "WARNING"
    ]


def test_values_of_one_byte_and_opaque_ones_are_taken() -> None:
    wide = torch.tensor([1.0, torch.nan])
    narrow = wide.to(torch.float8_e4m3fn)
    opaque = torch.ones(4, 4).to_mkldnn()
    answers = finite(narrow=narrow, opaque=opaque, whole=torch.ones(2, dtype=torch.int8))
    assert {name: bool(answer) for name, answer in answers.items()} == {"narrow": False}
    with pytest.raises(OutputError, match=r"wrote nan at \[1\] of buf0"):
        check((("buf0", narrow),), {}, mode="nan", kernel="k", problem="p", key="e/d")
    check((("buf0", wide),), finite(wide=wide), mode="nan", kernel="k", problem="p", key="e/d")


def test_complex_numbers_are_looked_at_and_whole_ones_are_not() -> None:
    answers = finite(
        z=torch.tensor([complex(0.0, torch.inf)]),
        good=torch.ones(1).cfloat(),
        n=torch.ones(1).int(),
    )
    assert {name: bool(answer) for name, answer in answers.items()} == {"z": False, "good": True}
    check((("buf0", torch.ones(3).int()),), {}, mode="nan", kernel="k", problem="p", key="e/d")
    bad = torch.tensor([1.0, complex(2.0, torch.inf)])
    with pytest.raises(OutputError, match=r"wrote \(2\+infj\) at \[1\] of buf0"):
        check((("buf0", bad),), {}, mode="nonfinite", kernel="k", problem="p", key="e/d")


def test_inside_a_cuda_graph_nothing_is_looked_at_which_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look waits for the device, which ends the capture."""
    nan = torch.full((2,), torch.nan)
    output_check._warn_of_capture.cache_clear()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert finite(a=nan) == {}
    for _ in range(2):
        check((("buf0", nan),), {}, mode="nan", kernel="k", problem="p", key="e/d")
    (warning,) = warnings(caplog)
    assert "not checked inside a CUDA graph" in warning
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert list(finite(a=nan)) == ["a"]
    with pytest.raises(OutputError, match=r"wrote nan at \[0\] of buf0"):
        check((("buf0", nan),), {}, mode="nan", kernel="k", problem="p", key="e/d")
