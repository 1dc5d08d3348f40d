from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_plugin.cache import KernelKey, Resources, Store, open_store
from tests.support.cache.records import ENVIRONMENT, decision, kernel_key, measured, record
from tests.support.cli.command import OTHER, answer_of, key, run
from tests.support.cli.scenarios import graph_that_gives_up


def test_ls_shows_what_show_takes(store: Store, capsys: pytest.CaptureFixture[str]):
    run(store, "ls", "--environment", record().environment)
    shown = capsys.readouterr().out
    assert record().digest[:12] in shown
    assert answer_of(store, capsys, "show", key())["describe"] == "mm(1x512)"
    run(store, "show", key())
    assert '"winner": "fast"' in capsys.readouterr().out
    assert answer_of(store, capsys, "show", kernel_key().digest[:9])["key"]["template"] == "gemm"
    assert answer_of(store, capsys, "show", record().environment[:9])["software"] == {
        "torch": "2.14.1"
    }


@pytest.mark.parametrize("verb", ["show", "explain"])
@pytest.mark.parametrize(
    ("name", "reason"),
    [("ffffffffff", "nothing in"), ("", "nothing in"), ("0/0/0/0", "nothing in")],
)
def test_an_unknown_key_is_one_line_and_2(
    store: Store, verb: str, name: str, reason: str, capsys: pytest.CaptureFixture[str]
):
    run(store, verb, name, status=2)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert reason in captured.err
    assert "inductor-plugin ls" in captured.err
    assert captured.err.count("\n") == 1


def test_a_key_that_is_not_unique_names_what_it_could_be(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    run(store, "show", record().digest, status=2)
    said = capsys.readouterr().err
    assert "not unique" in said
    assert record().environment[:12] in said
    for environment in (ENVIRONMENT, OTHER):
        digest = store.put_environment(environment)
        store.put_record(record(environment=digest, op="packed_linear_unary", problem=9))
    run(store, "show", record(problem=9).digest, status=2)
    assert "/packed_linear_unary/" in capsys.readouterr().err


def test_explain_tells_why_and_what_would_be_a_miss(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    answer = answer_of(store, capsys, "explain", key())
    assert (answer["winner"], answer["reason"]) == ("fast", "fastest")
    assert [candidate["candidate"] for candidate in answer["candidates"]] == ["fast", "slow", "bad"]
    assert answer["candidates"][2]["reason"] == "no answer in 30 s"
    assert answer["rejected"] == {"cutlass": "A must be row-major"}
    assert answer["nearest"]["differences"] == [
        {"field": "size", "left": [2, 512], "right": [1, 512]}
    ]
    (other,) = answer["environments"]
    assert other["has_this_problem"]
    assert other["differences"] == [
        {"field": "software.torch", "left": "2.15.0", "right": "2.14.1"}
    ]
    run(store, "explain", key())
    said = capsys.readouterr().out
    for words in (
        "Runs: fast",
        "no answer in 30 s",
        "A must be row-major",
        "software.torch",
        "size:",
    ):
        assert words in said


@pytest.mark.parametrize(
    ("winner", "gives_up"),
    [
        ("library", True),
        (f"tuned, less {record().digest[:12]}", True),
        (f"tuned, less {record(problem=2).digest[:12]}", False),
        ("tuned", False),
    ],
)
def test_explain_names_the_graphs_in_which_the_library_kernel_runs_all_the_same(
    store: Store, capsys: pytest.CaptureFixture[str], winner: str, gives_up: bool
):
    graph = graph_that_gives_up(record(), record(problem=2), winner=winner)
    store.put_record(graph)
    store.put_record(replace(graph_that_gives_up(record(problem=9)), digest="another"))
    row = {"graph": graph.digest, "describe": "graph of 9 nodes", "reason": "fastest"}
    assert answer_of(store, capsys, "explain", key())["given_up_by"] == [row] * gives_up
    run(store, "explain", key())
    said = capsys.readouterr().out
    words = f"the library kernel runs in graph {graph.digest[:12]} (graph of 9 nodes), which is"
    assert (words in said) == gives_up


def test_the_winner_s_kernel_is_shown_with_what_it_takes(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    assert answer_of(store, capsys, "show", key())["winner_kernel"]["registers"] is None
    run(store, "explain", key())
    assert "its registers and memory are not known" in capsys.readouterr().out
    spilling = store.put_kernel(kernel_key("k2"), {"kernel.so": b"2"}, Resources(168, 8, 512, 384))
    store.put_record(
        record(
            measured("fast", 1.0, kernel=spilling.digest),
            measured("wide", None, status="pruned", reason="it spills 96 bytes a thread"),
            problem=3,
            decision=decision("fast"),
        )
    )
    name = f"{record().environment[:12]}/{record(problem=3).digest[:12]}"
    wanted = {
        "key": spilling.digest,
        "registers": 168,
        "spills": 8,
        "shared_bytes": 512,
        "threads": 384,
    }
    assert answer_of(store, capsys, "show", name)["winner_kernel"] == wanted
    assert answer_of(store, capsys, "explain", name)["kernel"] == wanted
    for verb in ("show", "explain"):
        run(store, verb, name)
        said = capsys.readouterr().out
        assert f"{spilling.digest[:12]}, 168 registers a thread, 8 bytes spilled a thread" in said
        assert "512 bytes of shared memory a block, 384 threads a block" in said
        assert "pruned" in said
        assert "it spills 96 bytes a thread" in said
    store.layout.kernel(spilling.digest).joinpath("entry.json").write_bytes(b"damaged")
    assert answer_of(store, capsys, "explain", name)["kernel"] is None
    nothing = f"{record().environment[:12]}/{record(problem=2).digest[:12]}"
    assert answer_of(store, capsys, "show", nothing)["winner_kernel"] is None


def test_explain_of_a_kernel_says_what_to_use(store: Store, capsys: pytest.CaptureFixture[str]):
    run(store, "explain", kernel_key().digest, status=2)
    assert "use `show`" in capsys.readouterr().err


def test_diff_names_fields(store: Store, capsys: pytest.CaptureFixture[str]):
    other = f"{open_store(store.root).put_environment(OTHER)[:12]}/{record().digest[:12]}"
    results = {
        answer["field"]: (answer.get("left"), answer.get("right"))
        for answer in answer_of(store, capsys, "diff", key(), other)
    }
    assert results["environment.software.torch"] == ("2.14.1", "2.15.0")
    assert results["winner"] == ("fast", "slow")
    assert results["median_ms.slow"] == (2.0, 3.0)
    assert not any(name.startswith("problem") for name in results)
    assert results["median_ms.fast"] == (1.0, None)  # the other has no such field
    run(store, "diff", key(), kernel_key().digest, status=2)
    capsys.readouterr()
    run(store, "diff", key(), key())
    assert capsys.readouterr().out == "they do not differ\n"


ESCAPE = "\x1b]0;pwned\x07\x1b[2J\x9b31m"


def test_a_record_cannot_write_to_the_terminal(
    cache_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    store = open_store(cache_dir)
    environment = store.put_environment({"device": {"name": f"x{ESCAPE}"}})
    forged = f"r{ESCAPE}\nFAKE: all kernels verified"
    odd = record(
        measured(f"c{ESCAPE}", description=forged, reason=forged, status=forged, kind=ESCAPE),
        environment=environment,
        describe=f"mm(2x2, 2x2){ESCAPE}\nFAKE",
        decision=replace(decision(f"c{ESCAPE}"), reason=forged),
        rejected={f"t{ESCAPE}": forged},
    )
    store.put_record(odd)
    fields = {"status": forged, "reason": forged, "candidate": ESCAPE, "problem": forged}
    store.quarantine(environment, "bad-1", fields)
    name = odd.digest[:12]
    for verb in (
        *(("ls",), ("ls", "--wide"), ("ls", "--quarantine"), ("show", name), ("explain", name)),
        *(("repro", name), ("diff", name, name), ("pin", tmp_path / "pins"), ("stats",)),
        *(("check", tmp_path / "pins"), ("show", f"x{ESCAPE}"), ("release", "--all")),
        *(("repro", name, "--out", tmp_path / "script.py"), ("retune", name)),
    ):
        # Its environment is none of this machine's.
        status = 1 if verb[0] == "check" else 2 if verb[-1] == f"x{ESCAPE}" else 0
        run(store, *verb, status=status)
        captured = capsys.readouterr()
        said = captured.out + captured.err
        assert said
        assert all(text.isprintable() or text in "\n\t" for text in said), verb
        assert not any(line.startswith("FAKE") for line in said.splitlines()), verb


def test_show_writes_no_control_characters_that_json_allows(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    kept = record(op="raw", describe="mm(1x512)")
    store.put_record(kept)
    path = store.layout.record(kept.environment, kept.op, kept.digest)
    rest = path.read_bytes().split(b"\n", 2)[2].replace(b"mm(1x512)", "mm(1x512)\x9b2J".encode())
    checksum = hashlib.sha256(rest).hexdigest().encode()
    path.write_bytes(b'{\n  "sha256": "' + checksum + b'",\n' + rest)
    run(store, "show", f"{kept.environment}/raw/{kept.digest}")
    said = capsys.readouterr().out
    assert "\x9b" not in said
    assert "mm(1x512)\\x9b2J" in said


def test_show_cuts_what_a_compiler_says_of_itself(store: Store, capsys: pytest.CaptureFixture[str]):
    chatty = KernelKey("gemm", "k", "64x64", "x86_64", "gcc -v" * 500, "-O3")
    store.put_kernel(chatty, {"kernel.so": b"x"})
    run(store, "show", chatty.digest[:12])
    said = capsys.readouterr().out
    assert len(said) < 1500
    assert "2800 more characters; --json has all" in said
    assert answer_of(store, capsys, "show", chatty.digest)["key"]["toolchain"] == "gcc -v" * 500


def test_a_damaged_record_is_named_by_show_and_ls(store: Store, capsys: pytest.CaptureFixture[str]):
    kept = record()
    store.layout.record(kept.environment, kept.op, kept.digest).write_bytes(b"damaged")
    run(store, "show", key(), status=2)
    assert "is damaged" in capsys.readouterr().err
    run(store, "ls", "--json")
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 2
    assert "is damaged" in captured.err


def test_diff_says_which_side_lacks_a_field(store: Store, capsys: pytest.CaptureFixture[str]):
    other = f"{open_store(store.root).put_environment(OTHER)[:12]}/{record().digest[:12]}"
    for sides, side in (((key(), other), "left"), ((other, key()), "right")):
        rows = answer_of(store, capsys, "diff", *sides)
        (row,) = (row for row in rows if row["field"] == "median_ms.fast")
        assert row == {"field": "median_ms.fast", side: 1.0}


def test_diff_takes_two_keys(store: Store, capsys: pytest.CaptureFixture[str]):
    run(store, "diff", key(), key(), key(), status=2)
    assert "diff compares two keys" in capsys.readouterr().err


def test_what_a_machine_has_refused_since_is_no_winner(
    store: Store, capsys: pytest.CaptureFixture[str]
):
    refused = measured("fast", None, status="wrong")
    store.put_record(record(refused, problem=4, decision=decision("fast")))
    name = f"{record().environment[:12]}/{record(problem=4).digest[:12]}"
    answer = answer_of(store, capsys, "explain", name)
    assert (answer["winner"], answer["decided_from"], answer["kernel"]) == (None, 0, None)
    assert answer["reason"].startswith("fast was chosen on one machine and is wrong on another")
