from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import options_table
from inductor_plugin.config import (
    Config,
    default_cache_dir,
    enabled_by_environment,
    launched_rank,
    local_ranks,
    option_names,
    process_environment,
    set_environment,
    split,
)
from inductor_plugin.config.backends import backends_of, why_not_listed
from inductor_plugin.config.value import limit_of
from inductor_plugin.config.variables import default_variable
from inductor_plugin.errors import OptionError

CODE_CHANGES: dict[str, object] = {
    "cache_dir": "/elsewhere",
    "cache_read": "/shared",
    "remote_url": "memory://shared",
    "gemm_backends": "ATEN",
    "attention_backends": "flash",
    "policy": "cached",
    "tune_budget_s": 60,
    "max_candidates": 3,
    "decompose_k": False,
    "never_slower_margin": 1.5,
    "verify_numerics": False,
    "check_outputs": "nan",
    "max_fusion_buffers": 24,
    "max_kernel_arguments": "cuda=100",
    "max_fusion_registers": "cuda=200,64",
}


def test_an_option_wins_over_its_variable_and_the_variable_over_the_default():
    environ = {"INDUCTOR_PLUGIN_MAX_CANDIDATES": "4", "INDUCTOR_PLUGIN_COMPILE_WORKERS": "2"}
    config = Config.load({"max_candidates": 7}, environ)
    assert (config.max_candidates, config.compile_workers) == (7, 2)
    assert config.bench_timeout_s == 30.0


def test_variables_of_this_process_are_read_by_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("INDUCTOR_PLUGIN_TUNE_BUDGET_S", "1.5")
    assert Config.load().tune_budget_s == 1.5


@pytest.mark.parametrize(
    ("rank", "world", "said"),
    [("3", "8", 3), ("0", "2", 0), ("0", "1", None), ("8", "8", None), ("-1", "8", None), ("x", "8", None), ("", "", None)],
)  # fmt: skip
def test_a_launcher_says_which_rank_of_several_a_process_is(
    rank: str, world: str, said: int | None
):
    assert launched_rank({"RANK": rank, "WORLD_SIZE": world}) == said
    assert launched_rank({"RANK": rank}) is None


def test_an_empty_variable_counts_as_unset():
    assert Config.load({}, {"INDUCTOR_PLUGIN_MAX_CANDIDATES": ""}).max_candidates == 0


def test_an_unknown_option_names_the_closest_and_all_that_are_known():
    with pytest.raises(OptionError, match="unknown option 'tune_budget'") as caught:
        Config.load({"tune_budget": 1}, {})
    assert "did you mean 'tune_budget_s'?" in str(caught.value)
    assert all(name in str(caught.value) for name in option_names())


def test_an_unknown_variable_is_one_warning(caplog: pytest.LogCaptureFixture):
    for _ in range(2):
        assert Config.load({}, {"INDUCTOR_PLUGIN_POLICE": "cached"}).policy == "tune"
    (record,) = caplog.records
    assert "INDUCTOR_PLUGIN_POLICE='cached' has no effect" in record.getMessage()
    assert "did you mean 'INDUCTOR_PLUGIN_POLICY'?" in record.getMessage()


def test_a_list_is_taken_as_text_and_as_a_list():
    for value in ("aten, cpp", ["ATEN", "CPP"], ("ATEN", "CPP")):
        assert Config.load({"gemm_backends": value}, {}).gemm_backends == "ATEN,CPP"
    with pytest.raises(OptionError, match="use text"):
        Config.load({"gemm_backends": [1]}, {})


def test_the_switch_is_no_unknown_variable():
    assert Config.load({}, {"INDUCTOR_PLUGIN_ENABLE": "1"}) == Config.load({}, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("policy", "fast"),
        ("max_candidates", -1),
        ("max_candidates", 1.5),
        ("max_candidates", True),
        ("max_candidates", "9" * 5000),
        ("compile_timeout_s", 10**400),
        ("cache_limit_bytes", "9" * 400),
        ("compile_timeout_s", "soon"),
        ("compile_timeout_s", float("nan")),
        ("compile_timeout_s", float("inf")),
        ("never_slower_margin", 0.9),
        ("verify_numerics", "yes please"),
        ("cache_limit_bytes", "10 potatoes"),
        ("cache_limit_bytes", -1),
        ("cache_dir", ""),
        ("cache_dir", 5),
        ("gemm_backends", None),
        ("max_fusion_buffers", -1),
        ("max_fusion_buffers", True),
        ("max_fusion_buffers", None),
        ("max_fusion_buffers", "cuda=many"),
        ("max_fusion_buffers", "cuda=3,cuda=4"),
        ("max_fusion_buffers", "3,"),
    ],
)
def test_a_bad_value_names_the_option_the_value_and_what_to_use(name: str, value: object):
    with pytest.raises(OptionError) as caught:
        Config.load({name: value}, {})
    message = str(caught.value)
    assert f"option {name} is " in message
    assert "use " in message or "name a folder" in message


@pytest.mark.parametrize("value", [0, "0.5", 4.9, -1])
def test_no_time_out_of_ranks_is_so_short_that_every_rank_is_silent(value: object):
    """Signs of life are a second apart, and a busy rank gives them late."""
    with pytest.raises(OptionError, match=f"ranks_timeout_s is {value!r}; use 5 or more"):
        Config.load({"ranks_timeout_s": value}, {})
    assert Config.load({"ranks_timeout_s": 5}, {}).ranks_timeout_s == 5.0


def test_a_bad_variable_is_named():
    with pytest.raises(OptionError, match="variable INDUCTOR_PLUGIN_PROGRESS is 'maybe'"):
        Config.load({}, {"INDUCTOR_PLUGIN_PROGRESS": "maybe"})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("10GiB", 10 * 2**30),
        ("1.5 MiB", 1.5 * 2**20),
        ("500MB", 500_000_000),
        ("2k", 2000),
        ("7", 7),
        (9, 9),
    ],
)
def test_sizes_are_given_in_words(text: object, size: int):
    assert Config.load({"cache_limit_bytes": text}, {}).cache_limit_bytes == size


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("On", True), ("true", True), ("0", False), ("off", False), (False, False)],
)
def test_switches_are_given_in_words(text: object, value: bool):
    assert Config.load({"verify_numerics": text}, {}).verify_numerics is value


@pytest.mark.parametrize(
    ("text", "cuda", "cpu"),
    [("", 0, 0), (24, 24, 24), ("cuda=24", 24, 0), ("cuda=24, 64", 24, 64), ("cpu=0,8", 8, 0)],
)
def test_a_limit_is_one_number_or_one_for_each_device_type(text: object, cuda: int, cpu: int):
    stated = Config.load({"max_kernel_arguments": text}, {}).max_kernel_arguments
    assert (limit_of(stated, "cuda"), limit_of(stated, "cpu")) == (cuda, cpu)


def test_a_pinned_policy_needs_its_file():
    with pytest.raises(OptionError, match="set pin_file"):
        Config.load({"policy": "pinned"}, {})
    pinned = {"policy": "pinned", "pin_file": "pins.json", "strict": True}
    assert Config.load(pinned, {}).strict
    with pytest.raises(OptionError, match="option strict is on, and policy is 'tune'"):
        Config.load({"strict": True}, {})


def test_options_travel_as_json():
    config = Config.load({"cache_dir": "/somewhere", "max_candidates": 3}, {})
    assert Config.load(json.loads(json.dumps(config.to_dict())), environ={}) == config


def test_options_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().policy = "cached"  # type: ignore[misc]


@pytest.mark.parametrize(("name", "value"), CODE_CHANGES.items())
def test_an_option_that_changes_code_changes_the_key(name: str, value: object):
    assert Config.load({name: value}, {}).code_key() != Config.load({}, {}).code_key()


def test_other_options_leave_the_key_alone():
    others = {
        "compile_workers": 3,
        "progress": "off",
        "table": "on",
        "trace_path": "trace.json",
        "worker_idle_s": 5,
    }
    assert Config.load(others, {}).code_key() == Config.load({}, {}).code_key()


def test_code_that_calls_kernels_of_its_process_alone_has_another_key():
    key = Config.load({}, {}).code_key()
    assert Config.load({"cache": "on"}, {}).code_key() == key
    assert Config.load({"cache": "off"}, {}).code_key() != key


def test_the_key_follows_the_content_of_the_pin_file(tmp_path: Path):
    file = tmp_path / "pins.json"
    config = Config.load({"policy": "pinned", "pin_file": str(file)}, {})
    file.write_text("{}", encoding="utf-8")
    before = config.code_key()
    file.write_text('{"a": 1}', encoding="utf-8")
    assert config.code_key() != before


def test_a_missing_pin_file_is_named(tmp_path: Path):
    config = Config.load({"policy": "pinned", "pin_file": str(tmp_path / "none.json")}, {})
    with pytest.raises(OptionError, match=r"none\.json.*cannot be read"):
        config.code_key()


def test_options_are_split_from_those_of_inductor():
    ours, others = split({"max_autotune": True, "policy": "cached"})
    assert (ours, others) == ({"policy": "cached"}, {"max_autotune": True})


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"INDUCTOR_PLUGIN_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/inductor_plugin"),
        ({}, "~/.cache/inductor_plugin"),
    ],
)
def test_the_cache_directory_comes_from_the_environment(environ: dict[str, str], folder: str):
    assert default_cache_dir(environ) == Path(folder).expanduser()
    assert Config.load({}, environ).cache_dir == Path(folder).expanduser()


@pytest.mark.parametrize(("text", "enabled"), [("", False), ("0", False), ("1", True)])
def test_the_switch_is_read_from_the_environment(text: str, enabled: bool):
    assert enabled_by_environment({"INDUCTOR_PLUGIN_ENABLE": text}) is enabled
    assert enabled_by_environment({}) is False


def test_a_bad_switch_is_an_error():
    with pytest.raises(OptionError, match="INDUCTOR_PLUGIN_ENABLE is 'maybe'"):
        enabled_by_environment({"INDUCTOR_PLUGIN_ENABLE": "maybe"})


def test_a_child_gets_a_copy_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOMETHING", "here")
    copy = process_environment()
    copy["SOMETHING"] = "changed"
    assert process_environment()["SOMETHING"] == "here"


def test_every_option_is_described_in_the_table():
    rows = options_table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(option_names())
    assert all(row.rstrip(" |").endswith(".") for row in rows)


def test_options_load_without_torch():
    code = "import sys, inductor_plugin.config; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_list_of_backends_is_checked_word_by_word() -> None:
    assert Config.load({"gemm_backends": "aten, triton"}).gemm_backends == "ATEN,TRITON"
    assert Config.load({"gemm_backends": ""}).gemm_backends == ""
    with pytest.raises(OptionError, match="ATEN, TRITON, CPP"):
        Config.load({"gemm_backends": "ATEN,FOO"})


def test_a_list_of_backends_excludes_those_that_it_does_not_name() -> None:
    listed = backends_of(Config.load({"gemm_backends": "aten, triton"}).gemm_backends)
    assert why_not_listed("gemm_backends", listed, "TRITON") is None
    reason = "gemm_backends is ATEN,TRITON, without CPP"
    assert why_not_listed("gemm_backends", listed, "CPP") == reason
    assert why_not_listed("gemm_backends", backends_of(""), "CPP") is None


@pytest.mark.parametrize(
    ("url", "text"),
    [("s3://bucket/a/", "s3://bucket/a"), ("file:///tmp/x", "file:///tmp/x"), ("", "")],
)
def test_a_remote_is_a_url(url: str, text: str) -> None:
    assert Config.load({"remote_url": url}, environ={}).remote_url == text


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("/tmp/x", "use a URL such as s3://"),
        ("s3:/bucket", "use a URL such as s3://"),
        ("s3://bucket/a b", "use a URL such as s3://"),
        ("dir://me:secret@x::file:///t", "'dir://x::file:///t'; use a URL .*, without a chain"),
        ("gss://me:a@b", r"'gss://b', and fsspec knows no gss://; did you mean 'gs'\?"),
        (3, "use text"),
    ],
)
def test_a_remote_that_is_no_url_is_an_error_when_the_option_is_read(
    url: object, reason: str
) -> None:
    with pytest.raises(OptionError, match=f"option remote_url is .*{reason}"):
        Config.load({"remote_url": url}, environ={})


@pytest.mark.parametrize(
    "farm", ["ray://head:10001", "ray:auto", "ray:local", "ray:10.0.0.1:6379", ""]
)
def test_a_farm_is_a_ray_cluster(farm: str) -> None:
    assert Config.load({"compile_farm": f" {farm} "}, environ={}).compile_farm == farm


@pytest.mark.parametrize("farm", ["ray", "auto", "ray://head", "dask://head:8786", "ray://a b:1"])
def test_a_farm_that_is_none_is_an_error_when_the_option_is_read(farm: str) -> None:
    with pytest.raises(OptionError, match=f"option compile_farm is '{farm}'; use ray://HOST:PORT"):
        Config.load({"compile_farm": farm}, environ={})


def test_compiling_and_measuring_are_in_one_cluster() -> None:
    both = {"compile_farm": "ray:auto", "bench_farm": "ray:auto"}
    assert Config.load(both, environ={}).bench_farm == "ray:auto"
    with pytest.raises(OptionError, match="a process is connected to one cluster"):
        Config.load({**both, "bench_farm": "ray://other:10001"}, environ={})
    assert "bench_farm" not in dict(Config().code_key())  # where it is measured changes no code


def test_fsspec_is_imported_only_where_a_remote_is_named() -> None:
    code = (
        "import sys; from inductor_plugin.config import Config; import inductor_plugin.cache.remote.tier; "
        "Config.load({}, {}); assert 'fsspec' not in sys.modules; "
        "Config.load({'remote_url': 'memory://x'}, {}); assert 'fsspec' in sys.modules; "
        "assert 's3fs' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("count", "ranks"), [("8", 8), ("1", 1), ("0", 1), ("", 1), ("-2", 1), ("x", 1)]
)
def test_a_launcher_says_how_many_processes_it_has_started_here(count: str, ranks: int):
    assert local_ranks({"LOCAL_WORLD_SIZE": count}) == ranks
    assert local_ranks({}) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("never_slower_margin", 1), ("max_candidates", 0), ("tune_budget_s", 0.0), ("cache_limit_bytes", 0), ("remote_timeout_s", 0.1)],
)  # fmt: skip
def test_the_least_value_of_an_option_is_one(name: str, value: float):
    assert getattr(Config.load({name: value}, {}), name) == value
    with pytest.raises(OptionError, match=f"option {name} is .*; use {value:g} or more"):
        Config.load({name: value - 1}, {})


def test_a_cache_that_is_named_is_on_where_inductors_are_off(tmp_path: Path):
    auto, named = Config.load({}, {}), Config.load({"cache_dir": str(tmp_path)}, {})
    assert [auto.with_cache(disabled=off).cache for off in (False, True)] == ["on", "off"]
    assert [named.with_cache(disabled=off).cache for off in (False, True)] == ["on", "on"]
    for chosen in ("on", "off"):
        stated = Config.load({"cache": chosen}, {})
        assert [stated.with_cache(disabled=off).cache for off in (False, True)] == [chosen] * 2


def test_variables_are_those_that_are_set_and_no_others(monkeypatch: pytest.MonkeyPatch):
    before = process_environment()
    monkeypatch.setenv("SOMETHING", "new")
    set_environment({**before, "OTHER": "1"})
    assert process_environment() == {**before, "OTHER": "1"}
    set_environment(before)
    assert process_environment() == before


def test_a_default_of_a_variable_is_gone_after_the_block(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SOMETHING", raising=False)
    with default_variable("SOMETHING", "default"):
        assert process_environment()["SOMETHING"] == "default"
    assert "SOMETHING" not in process_environment()
    monkeypatch.setenv("SOMETHING", "mine")
    with default_variable("SOMETHING", "default"):
        assert process_environment()["SOMETHING"] == "mine"
    assert process_environment()["SOMETHING"] == "mine"
