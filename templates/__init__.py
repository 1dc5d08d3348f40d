"""The built-in kernel templates. Imports as ``inductor_plugin.templates``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from inductor_plugin.template import Template

if __name__ != "inductor_plugin.templates":
    raise ImportError(
        f"templates/ was imported as {__name__!r}, which would register every template twice; "
        "import inductor_plugin.templates"
    )


class Registers(Protocol):
    """Where templates go; the part of a registry that is needed here."""

    def register(self, template: Template) -> None:
        """Add a template."""
        ...


BUILTIN: tuple[Template, ...] = ()
"""All built-in templates, in the order in which they are registered."""


def register_builtin(registry: Registers) -> None:
    """Register all built-in templates."""
    for template in BUILTIN:
        registry.register(template)
