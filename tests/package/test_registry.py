from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import inductor_plugin
from inductor_plugin.errors import RegistrationError
from inductor_plugin.problem import Problem
from inductor_plugin.registry import (
    GROUP,
    Registry,
    TemplateSource,
    default_registry,
    entry_points,
)
from inductor_plugin.template import Candidate
from inductor_plugin.templates import BUILTIN, register_builtin
from tests.support.fakes import templates as fakes
from tests.support.own_device import describe
from tests.support.warned import forget

HERE = fakes.__name__


class FakeTemplate:
    """A template that has nothing to offer."""

    def __init__(self, name: Any = "fake_gemm", ops: Any = ("mm",)) -> None:
        self.name = name
        self.ops = ops
        self.version: Any = None

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


@pytest.mark.parametrize(("version", "known"), [(None, ""), (3, "3"), ("1.2", "1.2")])
def test_a_version_is_a_text_or_a_number(version: Any, known: str):
    registry, template = Registry(), FakeTemplate()
    template.version = version
    registry.register(template)
    assert [row[2] for row in registry.identity()] == [known]
    template.version = template.reject
    with pytest.raises(RegistrationError, match="its version is <bound method"):
        Registry().register(template)


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


def sources(*references: str) -> list[TemplateSource]:
    return [TemplateSource(name, name, f"entry point {name}") for name in references]


@pytest.mark.parametrize(
    ("attribute", "names"),
    [
        ("Plain", ("plain",)),
        ("PLAIN", ("plain",)),
        ("plain", ("plain",)),
        ("several", ("plain", "other")),
        ("CLASSES", ("plain", "other")),
    ],
)
def test_an_entry_point_names_a_template_or_what_returns_templates(
    attribute: str, names: tuple[str, ...]
) -> None:
    registry = Registry()
    registry.add_installed(lambda: sources(f"{HERE}:{attribute}"))
    assert registry.names() == names
    assert registry.for_op("mm")[0].reject(fakes.PRODUCT) is None
    registry.add_installed(lambda: sources(f"{HERE}:nothing"))  # looked up once a process
    assert registry.names() == names


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("no_such_module:X", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("without_a_colon", "ModuleNotFoundError: No module named 'without_a_colon'"),
        (f"{HERE}:gone", "AttributeError: module '"),
        (f"{HERE}:broken", "OSError: libkernels.so: cannot open shared object file"),
        (f"{HERE}:nothing", "builtins.NoneType cannot be registered: it is no Template"),
        (f"{HERE}:half_wrong", "its name is 'Not A Name'"),
        (f"{HERE}:twice", "template 'plain' is already registered"),
    ],
)
def test_a_wrong_entry_point_is_one_warning_that_names_it_and_the_others_are_registered(
    reference: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    forget()
    registry = Registry()
    with caplog.at_level(logging.WARNING):
        registry.add_installed(lambda: sources(reference, f"{HERE}:OTHER"))
    assert registry.names() == ("other",)
    (record,) = caplog.records
    text = record.getMessage()
    assert text.startswith(f"inductor-plugin: templates (entry point {reference}) cannot be used: ")
    assert said in text
    assert text.endswith("uninstall the package: until then none of them is offered")


def test_a_template_that_the_program_has_registered_by_hand_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forget()
    registry = Registry()
    registry.register(fakes.PLAIN)
    registry.add_installed(lambda: sources(f"{HERE}:several"))
    assert registry.names() == ("plain", "other")
    assert registry.get("plain") is fakes.PLAIN
    assert caplog.records == []
    other = Registry()
    other.register(FakeTemplate("plain"))  # another one of this name
    other.add_installed(lambda: sources(f"{HERE}:several"))
    assert other.names() == ("plain",)
    assert "is already registered by " in caplog.text


def test_a_module_may_register_its_template_when_its_entry_point_is_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forget()
    registry = Registry()

    def load(source: TemplateSource) -> list[FakeTemplate]:
        registry.register(fakes.PLAIN)  # as the import of the module does
        return [fakes.PLAIN]  # pyright: ignore[reportReturnType]

    monkeypatch.setattr(TemplateSource, "load", load)
    registry.add_installed(lambda: sources("registering"))
    assert registry.names() == ("plain",)
    assert caplog.records == []


def test_entry_points_are_those_of_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(tmp_path, "my_kernels:SplitMM", "split", "my_kernels", "inductor_plugin.templates")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (source,) = (each for each in entry_points() if each.name == "split")
    assert source.origin == "entry point split = my_kernels:SplitMM of my_kernels 1.0"
    assert GROUP == "inductor_plugin.templates"  # packages have it in their metadata


def test_who_asks_while_installed_templates_are_registered_waits_for_them() -> None:
    registry, begun, go = Registry(), threading.Event(), threading.Event()

    def points() -> list[TemplateSource]:
        begun.set()
        go.wait(10.0)
        return sources(f"{HERE}:PLAIN")

    def asked() -> tuple[str, ...]:
        registry.add_installed(points)
        return registry.names()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(asked)
        assert begun.wait(10.0)
        second = pool.submit(asked)
        wait([second], 0.1)
        go.set()
        assert [each.result() for each in (first, second)] == [("plain",)] * 2
