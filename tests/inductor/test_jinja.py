"""Inductor's templates are parsed once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch._inductor.codegen.common import KernelTemplate

from inductor_plugin.inductor import jinja

pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    jinja.install()
    yield
    jinja.uninstall()


def test_a_text_is_parsed_once_and_rendered_anew() -> None:
    first = KernelTemplate._template_from_string("{{ a }} and {{ a }}")  # pyright: ignore[reportPrivateUsage]
    second = KernelTemplate._template_from_string("{{ a }} and {{ a }}")  # pyright: ignore[reportPrivateUsage]
    assert first is second
    assert (first.render(a=1), second.render(a="b")) == ("1 and 1", "b and b")


def test_installing_twice_and_removing_leaves_torch_as_it_was() -> None:
    jinja.install()
    jinja.uninstall()
    stock = vars(KernelTemplate)["_template_from_string"]
    assert not hasattr(stock.__func__, "cache_info")
    assert stock.__func__.__module__ == "torch._inductor.codegen.common"
    jinja.uninstall()
    assert vars(KernelTemplate)["_template_from_string"] is stock
