"""Templates by name. Registering is a call on an object, never a side effect of an import."""

from __future__ import annotations

import functools
import re

from inductor_plugin.errors import RegistrationError
from inductor_plugin.template import Template
from inductor_plugin.templates import register_builtin

_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Registry:
    """Templates in the order they were registered."""

    def __init__(self) -> None:
        self._templates: dict[str, Template] = {}

    def register(self, template: Template) -> None:
        """Add a template.

        Raises:
            RegistrationError: It is not a template, its name or operators are not valid, or the name
                is already registered. The registry is then unchanged.
        """
        reason = _why_not(template)
        if reason is not None:
            raise RegistrationError(f"{_holder(template)} cannot be registered: {reason}")
        holder = self._templates.get(template.name)
        if holder is not None:
            raise RegistrationError(
                f"template {template.name!r} is already registered by {_holder(holder)}; "
                "unregister it first or choose another name"
            )
        self._templates[template.name] = template

    def unregister(self, name: str) -> Template:
        """Remove a template and return it.

        Raises:
            RegistrationError: No template has this name.
        """
        template = self.get(name)
        del self._templates[name]
        return template

    def get(self, name: str) -> Template:
        """Return the template of a name.

        Raises:
            RegistrationError: No template has this name.
        """
        if name not in self._templates:
            registered = ", ".join(self._templates) or "none"
            raise RegistrationError(f"no template is named {name!r}; registered are: {registered}")
        return self._templates[name]

    def names(self) -> tuple[str, ...]:
        """Return the names of all templates, in the order of registration."""
        return tuple(self._templates)

    def identity(self) -> tuple[tuple[str, str, str], ...]:
        """Return name, class and ``version`` (an attribute, if any) of each template."""
        return tuple(
            (name, _holder(template), str(getattr(template, "version", "")))
            for name, template in self._templates.items()
        )

    def for_op(self, op: str) -> tuple[Template, ...]:
        """Return the templates that serve an operator, in the order of registration."""
        return tuple(t for t in self._templates.values() if op in t.ops)


@functools.cache
def default_registry() -> Registry:
    """Return the registry of this process, which includes the built-in templates."""
    registry = Registry()
    register_builtin(registry)
    return registry


def register(template: Template) -> None:
    """Add a template to the registry of this process; see `Registry.register`."""
    default_registry().register(template)


def unregister(name: str) -> Template:
    """Remove a template from the registry of this process; see `Registry.unregister`."""
    return default_registry().unregister(name)


def _why_not(template: object) -> str | None:
    """Return why an object cannot serve as a template, or None if it can."""
    if not isinstance(template, Template):
        return "it is no Template; give it name, ops, reject(problem) and candidates(problem)"
    name: object = getattr(template, "name", None)
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        return f"its name is {name!r}; use lower-case letters, digits and underscores"
    ops: object = getattr(template, "ops", None)
    if not isinstance(ops, tuple) or not ops:
        return f"its ops are {ops!r}; use a tuple of operator names such as ('mm',)"
    return None


def _holder(template: object) -> str:
    kind = type(template)
    return f"{kind.__module__}.{kind.__qualname__}"
