"""The table of what `doctor` may find names each finding, and has each remedy that the source has."""

from __future__ import annotations

from docs.findings import UNKNOWN, findings
from inductor_plugin.cache.trust.keys import INSTALL
from inductor_plugin.kernels.nvcc import INSTALL_CUTLASS
from tests.support.repository import REPOSITORY

AT_RUN_TIME = {
    ("nvcc", "no CUTLASS kernels: …"),
    ("cutlass", "no CUTLASS kernels: …"),
    ("packs", "…"),
    ("trust", "…"),
    ("cache", "…"),
    ("cache_read", "…"),
}
"""Findings whose remedy an object has that only a machine makes: what is missing, what was refused."""


def rows() -> list[list[str]]:
    """Return the cells of each row: finding, state, detail, remedy."""
    lines = findings().splitlines()[2:]
    return [line.removeprefix("| ").removesuffix(" |").split(" | ") for line in lines]


def test_each_finding_has_a_name_and_stands_in_the_table_once() -> None:
    table = rows()
    assert all(len(row) == 4 for row in table)
    assert [row for row in table if UNKNOWN in row[0]] == []
    assert {"trust", "cache", "cache_read", "farm", "remote", "devices"} <= {
        row[0] for row in table
    }
    assert len(set(map(tuple, table))) == len(table)


def test_a_remedy_is_unknown_only_where_a_machine_has_to_say_it() -> None:
    unknown = {(name, said) for name, _, said, remedy in rows() if remedy == UNKNOWN}
    assert unknown == AT_RUN_TIME
    partly = [row for row in rows() if UNKNOWN in row[3] and row[3] != UNKNOWN]
    assert partly == []


def test_constants_of_other_modules_are_in_the_table() -> None:
    remedies = {(name, remedy) for name, _, _, remedy in rows()}
    assert {("trust", INSTALL), ("cutlass", INSTALL_CUTLASS)} <= remedies
    assert ("cache", "set INDUCTOR_PLUGIN_CACHE_DIR to a folder of your own") in remedies
    assert ("torch", "install a torch from 2.11 to 2.15") in remedies


def test_a_remedy_is_the_one_of_its_own_finding() -> None:
    """A name that a function assigns twice has at each finding what was assigned before it."""
    said = {detail: remedy for _, _, detail, remedy in rows()}
    assert said["this torch is built without CUDA"].startswith("install a CUDA build of torch")
    assert said["torch sees no device"].startswith("run on a machine with an NVIDIA GPU")


def test_what_a_check_returns_of_another_function_is_its_finding_too() -> None:
    table = rows()
    assert [row[3] for row in table if row[:3] == ["cache", "broken", "… is not used: …"]]
    assert [row[3] for row in table if row[:3] == ["farm", "broken", "… does not answer: …"]]


def test_the_page_says_what_the_sign_for_the_unknown_means() -> None:
    text = (REPOSITORY / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    assert f"`{UNKNOWN}` depends on your machine" in text
