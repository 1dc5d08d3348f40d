from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from inductor_plugin.cache import KernelKey, differences, digest_of
from tests.support.cache.records import kernel_key


@pytest.mark.parametrize("name", [field_.name for field_ in fields(KernelKey)])
def test_every_field_of_a_kernel_key_changes_its_digest(name: str):
    key = kernel_key()
    assert replace(key, **{name: "another"}).digest != key.digest


def test_the_digest_of_a_kernel_key_is_the_same_in_every_process(repository: Path):
    code = "from inductor_plugin.cache import KernelKey; print(KernelKey(*'abcdef').digest)"
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == KernelKey(*"abcdef").digest
    assert len(said.stdout.strip()) == 64


def test_the_digest_of_a_kernel_key_is_that_of_versions_before():
    """The same in all versions up to 0.2.0: whatever changes it, every kernel in every cache is lost."""
    key = KernelKey("GEMM", "ab" * 32, "cpp_CppMicroGemmFP32Vec", "cpu avx512", "g++ 12", "-O3")
    assert key.digest == "4a3c6311aecb362e94ba6dfafa67fd00bca3efd14dd861d7b67e8e493fbc705c"


def test_the_order_of_fields_does_not_matter_but_types_do():
    assert digest_of({"a": 1, "b": (1, 2)}) == digest_of({"b": [1, 2], "a": 1})
    plain = [digest_of({"a": value}) for value in (1, 1.0, True, "1", [1], None)]
    assert len(set(plain)) == len(plain)


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, float("nan"), float("inf"), b"x", {1: "a"}, [[set[int]()]]]
)
def test_what_has_no_stable_form_is_refused(value: Any):
    with pytest.raises(TypeError, match="a"):
        digest_of({"a": value})


def test_a_structure_without_end_is_refused():
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="no stable form"):
        digest_of({"a": endless})


def test_differences_name_nested_fields_by_dotted_path():
    left = {"same": 1, "size": [1, 2], "software": {"torch": "2.14"}, "inputs": [{"d": 1}]}
    right = {
        "same": 1,
        "size": [1, 3],
        "software": {"torch": "2.15", "mkl": "1"},
        "inputs": [{"d": 2}],
    }
    differing = [
        (difference.path, difference.left, difference.right)
        for difference in differences(left, right)
    ]
    assert differing == [
        ("inputs.0.d", 1, 2),
        ("size", [1, 2], [1, 3]),
        ("software.mkl", "(absent)", "1"),
        ("software.torch", "2.14", "2.15"),
    ]
    assert differences(left, left) == []


@pytest.mark.parametrize(
    ("left", "right", "places"),
    [
        ({"b": 1}, 3, ["a"]),
        ([1, 2], 3, ["a"]),
        ({"b": 1}, [1], ["a"]),
        ([{"b": 1}, {"b": 2}], [{"b": 1}], ["a"]),  # of another length it is another list
        ([1, {"b": 1}], [1, {"b": 2}], ["a.1.b"]),
        ([[1, 2], [3]], [[1, 2], [4]], ["a.1"]),
        (1, True, ["a"]),
        (1, 1.0, ["a"]),
        ((1, 2), [1, 2], []),
    ],
)
def test_what_is_of_another_kind_differs_as_a_whole(left: Any, right: Any, places: list[str]):
    for sides in ((left, right), (right, left)):
        changed = differences({"a": sides[0]}, {"a": sides[1]})
        assert [difference.path for difference in changed] == places
