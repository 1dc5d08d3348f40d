"""A trace of torch.profiler names the records of its kernels, by the ranges of chosen kernels."""

# torch types these partly; what it leaves open says nothing about the tests.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import record_function

from inductor_plugin.cache import Record, open_store
from inductor_plugin.cli import main
from inductor_plugin.tuning.report.profile import profiled
from tests.support.cache.records import decision, measured, record
from tests.support.cli.committed import hold

WHY = "1.873x faster than the library kernel"


def product(winner: str, rows: int) -> Record:
    """Return the record of a product; its library kernel is ``lib``."""
    chosen = replace(decision(winner), library="lib", reason=WHY)
    known = record(measured("fast"), measured("lib"), problem=rows, decision=chosen)
    return replace(known, describe=f"mm({rows}x4, 4x5) fp32")


def key(known: Record) -> str:
    return f"{known.environment[:12]}/{known.digest[:12]}"


def label(known: Record, candidate: str) -> str:
    return f"inductor_plugin {key(known)} {candidate} {known.describe}"


def trace_of(folder: Path, *labels: str) -> Any:
    """Return the trace of ranges with these names, each around an operator, and of an operator outside."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, acc_events=True) as run:
        for name in labels:
            with record_function(name):
                torch.mm(torch.ones(3, 4), torch.ones(4, 5))
        torch.mm(torch.ones(3, 4), torch.ones(4, 5))
    file = folder / "trace.json"
    run.export_chrome_trace(str(file))
    return json.loads(file.read_text(encoding="utf-8"))


def test_a_range_leads_to_its_record_and_reason(tmp_path: Path) -> None:
    known, gone = product("fast", 7), product("fast", 8)
    trace = trace_of(tmp_path, *[label(known, "fast")] * 2, label(gone, "fast"))
    kernels = {kernel.problem: kernel for kernel in profiled(trace, [known])}
    kept, dropped = kernels[known.describe], kernels[gone.describe]
    assert (kept.record, kept.candidate, kept.calls) == (key(known), "fast", 2)
    assert (kept.runs, kept.reason) == (True, WHY)
    assert kept.host_ms > 0.0
    assert (dropped.record, dropped.runs, dropped.reason) == (key(gone), None, None)


def test_a_candidate_that_the_cache_does_not_choose_any_more_is_said_to_be_old(
    tmp_path: Path,
) -> None:
    known = product("lib", 7)
    (kernel,) = profiled(trace_of(tmp_path, label(known, "fast")), [known])
    assert (kernel.candidate, kernel.runs) == ("fast", False)


def event(name: str, cat: str | None, ts: float, dur: float, tid: int = 1, **arguments: int) -> Any:
    return {"pid": 1, "tid": tid, "name": name, "cat": cat, "ts": ts, "dur": dur, "args": arguments}


def test_a_kernel_of_a_gpu_is_of_the_range_that_launched_it() -> None:
    known = product("fast", 7)
    events = [
        event(label(known, "fast"), "cpu_op", 10.0, 5.0, 1),
        event("cuLaunchKernel", "cuda_driver", 12.0, 1.0, 1, correlation=5),
        event("cuLaunchKernel", "cuda_driver", 12.0, 1.0, 2, correlation=6),  # another thread
        event("cuLaunchKernel", "cuda_driver", 16.0, 1.0, 1, correlation=7),  # behind it
        event("triton_tem_fused_mm_0", "kernel", 30.0, 2000.0, 9, correlation=5),
        event("other", "kernel", 30.0, 1.0, 9, correlation=6),
        event("later", "kernel", 30.0, 1.0, 9, correlation=7),
        {"name": 3, "ts": 1, "dur": 1},
        "no event",
    ]
    (kernel,) = profiled({"traceEvents": events}, [known])
    assert kernel.device_ms == {"triton_tem_fused_mm_0": 2.0}
    assert kernel.host_ms == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("category", "launches"),
    [
        ("privateuse1_runtime", True),
        ("privateuse1_driver", True),
        ("xpu_runtime", True),
        ("mtia_runtime", True),
        ("cpu_op", False),
        (None, False),
    ],
)
def test_a_kernel_of_another_device_is_of_the_range_that_launched_it(
    category: str | None, launches: bool
) -> None:
    known = product("fast", 7)
    events = [
        event(label(known, "fast"), "cpu_op", 10.0, 5.0),
        event("aclrtLaunchKernel", category, 12.0, 1.0, correlation=5),
        event("npu_mm", "kernel", 30.0, 2000.0, 9, correlation=5),
    ]
    (kernel,) = profiled({"traceEvents": events}, [known])
    assert kernel.device_ms == ({"npu_mm": 2.0} if launches else {})


def test_figures_of_another_kind_are_left_out() -> None:
    known = product("fast", 3)
    span = {"ph": "X", "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}
    odd = [
        {**span, "name": label(known, "fast"), "dur": float("inf")},
        {**span, "name": label(known, "fast"), "ts": float("nan")},
        {**span, "name": label(known, "fast"), "ts": 10**400},
    ]
    assert profiled({"traceEvents": odd}, [known]) == []


def test_the_verb_says_it_and_follows_its_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known, store = product("fast", 7), open_store(tmp_path / "cache")
    store.put_record(known)
    file = tmp_path / "trace.json.gz"
    trace = trace_of(tmp_path, label(known, "fast"))
    odd = label(product("fast", 8), "x\x1b[2J")  # as the profiler itself would not write it
    trace["traceEvents"].append({"name": odd, "ts": 1, "dur": 2})
    file.write_bytes(gzip.compress(json.dumps(trace).encode()))
    words = ["explain", "--profile", str(file), "--cache-dir", str(store.root)]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"{known.describe}   {key(known)}\n  fast: 1 call, " in said
    assert f"on the host\n  {WHY}\n" in said
    assert "this cache has no decision of it" in said
    assert "\x1b" not in said
    assert main([*words, "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)
    hold("explain_profile", fields)
    assert {kernel["problem"] for kernel in fields["kernels"]} >= {known.describe}


def test_what_is_no_trace_is_an_error_and_an_empty_one_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, file = open_store(tmp_path / "cache"), tmp_path / "trace.json"
    words = ["explain", "--profile", str(file), "--cache-dir", str(store.root)]
    for text in (None, "{", "[]", '{"traceEvents": 3}'):
        if text is not None:
            file.write_text(text, encoding="utf-8")
        assert main(words) == 2
        assert "is no trace of torch.profiler" in capsys.readouterr().err
    packed = bytearray(gzip.compress(b'{"traceEvents": []}'))
    packed[10] ^= 0xFF  # no deflate stream any more
    (tmp_path / "cut.json.gz").write_bytes(packed)
    assert main([*words[:2], str(tmp_path / "cut.json.gz"), *words[3:]]) == 2
    assert "is no trace of torch.profiler" in capsys.readouterr().err
    file.write_text('{"traceEvents": []}', encoding="utf-8")
    assert main(words) == 0
    assert "it has no range of a chosen kernel" in capsys.readouterr().out


def test_a_launch_is_of_the_call_of_its_thread_in_which_it_is() -> None:
    first, second = product("fast", 7), product("fast", 8)
    events = [
        event("cudaLaunchKernel", "cuda_runtime", 5.0, 1.0, correlation=1),  # before all calls
        event(label(second, "fast"), "cpu_op", 30.0, 5.0),
        event(label(first, "fast"), "cpu_op", 10.0, 5.0),
        event("cudaLaunchKernel", "cuda_runtime", 11.0, 1.0, correlation=2),
        event("cudaLaunchKernel", "cuda_runtime", 13.0, 1.0, correlation=3),
        event("cuLaunchKernel", "cuda_driver", 31.0, 1.0, correlation=4),
        event("aten::mm", "cpu_op", 32.0, 1.0, correlation=5),
        *(event("gemm", "kernel", 50.0, 1000.0, 9, correlation=number) for number in range(1, 6)),
    ]
    kernels = {k.problem: k for k in profiled({"traceEvents": events}, [first, second])}
    assert kernels[first.describe].device_ms == {"gemm": 2.0}
    assert kernels[second.describe].device_ms == {"gemm": 1.0}


def test_the_kernels_that_took_the_longest_on_host_and_device_come_first() -> None:
    short, long, on_device = (product("fast", rows) for rows in (7, 8, 9))
    events = [
        event(label(short, "fast"), "cpu_op", 0.0, 1.0),
        event(label(long, "fast"), "cpu_op", 10.0, 3.0),
        event(label(on_device, "fast"), "cpu_op", 20.0, 2.0),
        event("cuLaunchKernel", "cuda_driver", 21.0, 1.0, correlation=1),
        event("gemm", "kernel", 50.0, 5.0, 9, correlation=1),
    ]
    kernels = profiled({"traceEvents": events}, [])
    assert [k.problem for k in kernels] == [each.describe for each in (on_device, long, short)]
