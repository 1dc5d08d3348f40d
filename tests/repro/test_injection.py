"""What a record says never becomes code of its script, wherever it stands."""

from __future__ import annotations

import ast
import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from inductor_plugin.cache.record import from_fields, to_fields
from inductor_plugin.repro.body import BARE, RUN
from inductor_plugin.repro.call import code
from inductor_plugin.repro.script import script
from tests.support.cache.calls import OPERAND, fused, known
from tests.support.cache.records import ENVIRONMENT

PAYLOADS = (
    "PWNED()",
    "x=PWNED()",
    "torch.float32) + PWNED(",
    repr("1) + PWNED("),
    'mm(2x2, 2x2)"""\nPWNED()\n"""',
    "2\nPWNED(),#",
    "' + PWNED() + '",
)
QKV = {**OPERAND, "size": [1, 2, 2, 2], "stride": [8, 4, 2, 1]}
ATTENTION = {
    "operands": "'q,k,v'",
    "softcap": "0.0",
    "left": "-1",
    "right": "0",
    "bottom_right": "False",
    "scale": "0.5",
}
CONVOLUTION = {
    "stride": "[1, 1]",
    "padding": "[0, 0]",
    "dilation": "[1, 1]",
    "transposed": "False",
    "output_padding": "[0, 0]",
    "groups": "1",
}


RECORDS = {
    "mm": known("mm", 2, out_dtype="torch.float32"),
    "addmm": known("addmm", 3, alpha="0.5", beta="1"),
    "scaled_mm": known("scaled_mm", 4, use_fast_accum="True", out_dtype="torch.bfloat16"),
    "convolution": known("convolution", 2, QKV, **CONVOLUTION),
    "linear_unary": known("linear_unary", 2, attr="'gelu'", algorithm="'tanh'"),
    "attention": known("attention", 3, QKV, **ATTENTION),
    "fused": fused(),
}


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each text and number, and of each name."""
    if isinstance(value, dict):
        for name, inner in cast("dict[str, Any]", value).items():
            yield from leaves(inner, (*path, name))
    elif isinstance(value, list):
        for place, inner in enumerate(cast("list[Any]", value)):
            yield from leaves(inner, (*path, place))
    else:
        yield path


def changed(fields: Any, path: tuple[Any, ...], text: str) -> Any:
    """Return fields with one leaf replaced: a text, and a text behind what was there."""
    inner = fields = copy.deepcopy(fields)
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = text
    return fields


def runs(text: str) -> set[str]:
    """Return the names in the code of a script, without the part that all scripts have."""
    text = text.replace(RUN, "").replace(BARE, "")
    return {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


@pytest.mark.parametrize("name", RECORDS)
def test_a_text_of_a_record_never_becomes_code(name: str) -> None:
    fields = json.loads(json.dumps(to_fields(RECORDS[name])))
    sound = script(from_fields(fields), ENVIRONMENT, "/cache")
    assert not sound.refused
    for path in leaves({name: value for name, value in fields.items() if name != "format"}):
        before: Any = fields
        for part in path:
            before = before[part]
        for payload in PAYLOADS:
            for text in (payload, f"{before}{payload}"):
                try:
                    odd = from_fields(changed(fields, path, text))
                except ValueError:
                    continue  # it cannot be read
                written = script(odd, ENVIRONMENT, "/cache").text
                assert "PWNED" not in runs(written), (path, text)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_text_of_an_environment_never_becomes_code(payload: str) -> None:
    facts = {"name": payload, "threads": payload}
    for environment in (
        {"device": facts, "numerics": {"float32_matmul_precision": payload}},
        {"device": payload, "numerics": [payload]},
    ):
        written = script(RECORDS["mm"], environment, f"/cache{payload}")
        assert not written.refused
        assert "PWNED" not in runs(written.text)


def test_a_script_that_is_refused_says_why_and_runs_nothing() -> None:
    odd = replace(RECORDS["mm"], describe='mm(2x2, 2x2)"""\nPWNED()\n"""')
    written = script(odd, ENVIRONMENT, "/cache")
    assert "are not those of mm" in written.refused
    assert "metadata only" in written.text
    terminal = script(replace(odd, describe="x\x1b[2J\nFAKE", op="\x1b[2J"), {}, "/cache")
    facts = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in ast.parse(terminal.text).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert facts["DESCRIBE"].isprintable()
    assert facts["REASON"].isprintable()
    many = fused()
    product = many.epilogue["product"].replace("readers=0", "readers=1000000000")
    odd = replace(many, epilogue={**many.epilogue, "product": product})
    assert "1000000000 other readers" in script(odd, ENVIRONMENT, "/cache").refused


@pytest.mark.parametrize(
    "text", ["'1'", "1e999", "{}", "[['x']]", "f(1)", "torch.load(1)", "torch.a.b", "1j", "..."]
)
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"no number|malformed"):
        code(text)


def test_numbers_dtypes_and_lists_of_them_are_code() -> None:
    assert code("[1, (True, None), 0.5, -1e-05]") == "[1, (True, None), 0.5, -1e-05]"
    assert code("torch.float8_e4m3fn") == "torch.float8_e4m3fn"
