"""Templates by name. Registering is a call on an object, never a side effect of an import."""

from __future__ import annotations

import functools
import logging
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from inductor_plugin.device import installed, referred
from inductor_plugin.errors import RegistrationError, warn_once
from inductor_plugin.template import Template
from inductor_plugin.templates import register_builtin

logger = logging.getLogger(__name__)

GROUP = "inductor_plugin.templates"
"""Group of entry points: the value is a template's class, or a function that returns a template or a list of them."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class TemplateSource:
    """Templates of another package.

    Attributes:
        name: Name of the entry point.
        reference: ``module:attribute`` of a template's class, or of a function that returns one or several templates.
        origin: Who says so, for people.
    """

    name: str
    reference: str
    origin: str

    def load(self) -> Sequence[Template]:
        """Import the templates.

        Raises:
            RegistrationError: They cannot be imported or created.
        """
        try:
            value = _created(referred(self.reference))
            several = isinstance(value, (list, tuple))
            listed: Sequence[Any] = cast("Sequence[Any]", value) if several else (value,)
            return [_created(each) for each in listed]
        # The border to a package's code, whose import may raise anything.
        except Exception as error:
            logger.debug("%s cannot be loaded", self.origin, exc_info=True)
            raise RegistrationError(f"{type(error).__name__}: {error}") from error


def entry_points() -> Iterable[TemplateSource]:
    """Yield the entry points of all installed packages."""
    return (TemplateSource(*point) for point in installed(GROUP))


class Registry:
    """Templates in the order they were registered."""

    def __init__(self) -> None:
        self._templates: dict[str, Template] = {}
        self._guard = threading.RLock()
        self._has_installed = False

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

    def add_installed(self, points: Callable[[], Iterable[TemplateSource]] = entry_points) -> None:
        """Register the templates of installed packages, at the first call.

        One that the program has registered by hand stays. What is wrong with an entry point is one warning, and none of its
        templates is registered.
        """
        with self._guard:
            if self._has_installed:
                return
            self._has_installed = True
            for source in points():
                if fault := self.add_source(source):
                    warn_once(logger, fault)

    def add_source(self, source: TemplateSource) -> str:
        """Register all templates of an entry point, or none if one is refused; return the reason, empty if they are registered."""
        added: list[Template] = []
        try:
            loaded = source.load()
            # Not before: a module may register its templates when it is imported.
            by_hand = {(name, type(each)) for name, each in self._templates.items()}
            for template in loaded:
                if (str(getattr(template, "name", "")), type(template)) not in by_hand:
                    self.register(template)
                    added.append(template)
        except RegistrationError as error:
            for template in added:
                self.unregister(template.name)
            return (
                f"templates ({source.origin}) cannot be used: {error}; "
                "mend, update or uninstall the package: until then none of them is offered"
            )
        return ""

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
            (name, _holder(template), version_of(template))
            for name, template in self._templates.items()
        )

    def for_op(self, op: str) -> tuple[Template, ...]:
        """Return the templates that serve an operator, in the order of registration."""
        return tuple(t for t in self._templates.values() if op in t.ops)


def new_registry() -> Registry:
    """Return a registry of the built-in templates."""
    registry = Registry()
    register_builtin(registry)
    return registry


@functools.cache
def default_registry() -> Registry:
    """Return the registry of this process, which includes the built-in templates."""
    return new_registry()


def register(template: Template) -> None:
    """Add a template to the registry of this process; see `Registry.register`."""
    default_registry().register(template)


def unregister(name: str) -> Template:
    """Remove a template from the registry of this process; see `Registry.unregister`."""
    return default_registry().unregister(name)


def _created(value: Any) -> Any:
    """Return what a class or a function returns; anything else is a template, or several, itself."""
    create: Any = value
    return create() if callable(value) else value


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
    version: object = getattr(template, "version", None)
    if version is not None and not isinstance(version, (str, int, float)):
        return (
            f"its version is {version!r}; use a text or a number, which is the same in each process"
        )
    return None


def version_of(template: object) -> str:
    """Return the version of a template, empty if it has none."""
    version: object = getattr(template, "version", None)
    return "" if version is None else str(version)


def _holder(template: object) -> str:
    kind = type(template)
    return f"{kind.__module__}.{kind.__qualname__}"
