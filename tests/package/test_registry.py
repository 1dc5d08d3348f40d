from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import inductor_plugin
from inductor_plugin.errors import RegistrationError
from inductor_plugin.problem import Problem
from inductor_plugin.registry import Registry, default_registry
from inductor_plugin.template import Candidate
from inductor_plugin.templates import BUILTIN, register_builtin


class FakeTemplate:
    """A template that has nothing to offer."""

    def __init__(self, name: Any = "fake_gemm", ops: Any = ("mm",)) -> None:
        self.name = name
        self.ops = ops

    def reject(self, problem: Problem) -> str | None:
        return None

    def candidates(self, problem: Problem) -> Sequence[Candidate]:
        return ()


@pytest.fixture
def registered() -> Iterator[FakeTemplate]:
    template = FakeTemplate("test_only")
    inductor_plugin.register(template)
    yield template
    if "test_only" in default_registry().names():
        inductor_plugin.unregister("test_only")


def test_templates_are_found_by_name_and_by_operator_in_the_order_of_registration():
    registry = Registry()
    first, second = FakeTemplate("first", ("mm", "addmm")), FakeTemplate("second", ("mm",))
    registry.register(first)
    registry.register(second)
    assert registry.names() == ("first", "second")
    assert registry.get("second") is second
    assert registry.for_op("mm") == (first, second)
    assert registry.for_op("addmm") == (first,)
    assert registry.for_op("bmm") == ()


def test_a_name_can_be_registered_once():
    registry = Registry()
    holder = FakeTemplate()
    registry.register(holder)
    with pytest.raises(RegistrationError, match=r"'fake_gemm' is already registered by .*FakeTemp"):
        registry.register(FakeTemplate())
    assert registry.get("fake_gemm") is holder


def test_a_template_that_was_removed_can_come_again():
    registry = Registry()
    template = FakeTemplate()
    registry.register(template)
    assert registry.unregister("fake_gemm") is template
    assert registry.names() == ()
    registry.register(template)
    assert registry.names() == ("fake_gemm",)


def test_an_unknown_name_lists_those_that_are_there():
    registry = Registry()
    registry.register(FakeTemplate())
    with pytest.raises(RegistrationError, match="'other'; registered are: fake_gemm"):
        registry.unregister("other")


@pytest.mark.parametrize("name", ["", "Upper", "1st", "with-dash", "with space", None])
def test_a_name_that_cannot_be_part_of_a_key_is_refused(name: object):
    registry = Registry()
    with pytest.raises(RegistrationError, match="lower-case letters"):
        registry.register(FakeTemplate(name))
    assert registry.names() == ()


@pytest.mark.parametrize("ops", [(), "mm", ["mm"], None])
def test_operators_that_are_no_tuple_of_names_are_refused(ops: object):
    with pytest.raises(RegistrationError, match="use a tuple"):
        Registry().register(FakeTemplate(ops=ops))


def test_an_object_that_is_no_template_is_refused():
    with pytest.raises(RegistrationError, match=r"builtins\.object cannot be registered"):
        Registry().register(object())  # type: ignore[arg-type]


def test_registries_do_not_share_templates(registered: FakeTemplate):
    assert default_registry().get("test_only") is registered
    assert Registry().names() == ()


def test_the_public_functions_use_the_registry_of_the_process(registered: FakeTemplate):
    assert inductor_plugin.unregister("test_only") is registered
    assert "test_only" not in default_registry().names()


def test_the_builtin_templates_are_listed_in_one_place():
    registry = Registry()
    register_builtin(registry)
    assert registry.names() == tuple(template.name for template in BUILTIN)
    assert set(registry.names()) <= set(default_registry().names())
