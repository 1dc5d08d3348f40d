from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from inductor_plugin.aot import models
from inductor_plugin.aot.decoder import tiny
from inductor_plugin.errors import OptionError

USER = """
import torch
from torch import nn

def positional():
    return nn.Linear(2, 2), (torch.ones(1, 2),)

def named():
    return nn.Linear(2, 2), {"input": torch.ones(1, 2)}

def alone():
    return nn.Linear(2, 2)

def no_model():
    return print, ()

def no_inputs():
    return nn.Linear(2, 2), 5

value = 5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current directory, with a user's module in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "users_model.py").write_text(USER, encoding="utf-8")
    (tmp_path / "broken_model.py").write_text("import no_such_package\n", encoding="utf-8")
    return tmp_path


def test_the_decoder_goes_from_tokens_to_logits():
    decoder, inputs = tiny()
    with torch.no_grad():
        logits = models.call(decoder, inputs)
    assert logits.shape == (2, 128, 2048)
    assert logits.isfinite().all()


def test_the_decoder_is_the_same_every_time():
    (first, inputs), (second, _) = tiny(), tiny()
    with torch.no_grad():
        assert torch.equal(first(*inputs), second(*inputs))


def test_a_token_does_not_see_those_behind_it():
    decoder, (tokens,) = tiny()
    changed = tokens.clone()
    changed[:, 64:] = 0
    with torch.no_grad():
        torch.testing.assert_close(decoder(tokens)[:, :64], decoder(changed)[:, :64])


@pytest.mark.parametrize("name", ["positional", "named"])
def test_a_model_is_found_in_the_current_directory(here: Path, name: str):
    model, inputs = models.load(f"users_model:{name}")
    assert models.call(model, inputs).shape == (1, 2)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("users_model", "write module:function"),
        ("users_model:", "write module:function"),
        ("nowhere:f", "no module 'nowhere' in "),
        ("users_model:nothing", "has no 'nothing'"),
        ("users_model:value", "has no callable 'value'"),
        ("users_model:alone", r"type Linear; return \(model, example_inputs\)"),
        ("users_model:no_model", "return an nn.Module"),
        ("users_model:no_inputs", "return a tuple"),
    ],
)
def test_a_wrong_model_names_what_to_do(here: Path, spec: str, message: str):
    with pytest.raises(OptionError, match=message) as caught:
        models.load(spec)
    assert repr(spec) in str(caught.value)


def test_an_import_that_fails_inside_the_users_module_is_shown_as_it_is(here: Path):
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        models.load("broken_model:anything")


def test_tensors_are_found_in_nested_answers_and_moved_in_nested_inputs():
    tensor, other = torch.zeros(1), torch.ones(2)
    assert [t.numel() for t in models.tensors({"a": (tensor, [other]), "b": None})] == [1, 2]
    moved = models.moved({"a": (tensor, [other]), "b": 5}, "meta")
    assert moved["a"][0].device.type == moved["a"][1][0].device.type == "meta"
    assert moved["b"] == 5


def test_only_a_module_that_is_named_or_its_package_is_the_users_to_install(here: Path):
    (here / "broken_too.py").write_text("import broken\n", encoding="utf-8")
    (here / "nameless.py").write_text("raise ModuleNotFoundError('no name')\n", encoding="utf-8")
    with pytest.raises(ModuleNotFoundError, match="'broken'"):
        models.load("broken_too:anything")
    with pytest.raises(ModuleNotFoundError, match="no name"):
        models.load("nameless:anything")
    with pytest.raises(OptionError, match="no module 'nowhere' in "):
        models.load("nowhere.inside:anything")
    with pytest.raises(OptionError, match="write module:function"):
        models.load(":anything")
