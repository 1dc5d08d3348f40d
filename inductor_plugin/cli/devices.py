"""What `doctor` finds of the devices and templates that packages bring, and the devices' environments for the other verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inductor_plugin.cli.finding import Finding
from inductor_plugin.device import DEVICES
from inductor_plugin.errors import DeviceError
from inductor_plugin.problem import Operand, Problem
from inductor_plugin.registry import Registry, entry_points, new_registry
from inductor_plugin.tuning.environment import environment
from inductor_plugin.worker.devices import lookup
from inductor_plugin.worker.devices.templates import template_faults

_EXTENT = 64


def devices() -> Finding:
    """Ask each device that a package describes all that a compile would ask it, but for `start`, which is the worker's.

    Its templates are registered in a scratch registry, and its guardrail is asked about a small product.
    """
    name = "devices"
    described = lookup.registered()
    here = lookup.present()
    scratch = new_registry()
    for source in entry_points():
        scratch.add_source(source)  # what is wrong there is the finding `templates`
    own = template_faults(scratch)
    faults = [*filter(None, map(DEVICES.fault, described)), *own.values()]
    faults += filter(None, (_fault(device, scratch) for device in here))
    if faults:
        remedy = "mend, update or uninstall the package that describes the device"
        return Finding(name, "broken", "; ".join(faults), remedy)
    if not described:
        return Finding(
            name, "ok", "none besides CPU and CUDA; docs/own-device.md says how to add one"
        )
    lines = [f"{each}: {_shown(each)} ({_origin(each)})" for each in here]
    absent = {each: DEVICES.source(each) for each in described}
    for each in here:
        absent.pop(lookup.name_of(each), None)
    lines += [f"no {each} here ({source.origin})" for each, source in absent.items() if source]
    return Finding(name, "ok", "; ".join(lines))


def templates() -> Finding:
    """Register the templates of each entry point as a compile does, in a scratch registry."""
    name = "templates"
    scratch = new_registry()
    built_in = scratch.names()
    faults = [fault for source in entry_points() if (fault := scratch.add_source(source))]
    if faults:
        remedy = "mend, update or uninstall the package that brings the templates"
        return Finding(name, "broken", "; ".join(faults), remedy)
    brought = [each for each in scratch.names() if each not in built_in]
    if not brought:
        return Finding(
            name, "ok", "none besides the built-in ones; docs/own-kernel.md says how to add one"
        )
    return Finding(name, "ok", ", ".join(brought))


def environments() -> list[Mapping[str, Any]]:
    """Return the environments of the devices of this machine that packages describe rightly."""
    return [environment(device) for device in lookup.present() if not _fault(device)]


def _fault(device: str, registry: Registry | None = None) -> str:
    """Return what is wrong with how a device is described, empty if nothing is.

    Args:
        device: The device.
        registry: Has the templates about which its guardrail is asked; None to ask for its environment and figures alone.
    """
    try:
        environment(device)
        lookup.target_of(device)
        if registry is not None:
            _ask_more(device, registry)
    except DeviceError as error:
        return str(error)
    return ""


def _ask_more(device: str, registry: Registry) -> None:
    """Ask a device for all that its environment and figures are not.

    Raises:
        DeviceError: Its description is wrong.
    """
    described, source = lookup.known(device), DEVICES.source(lookup.name_of(device))
    if source is None:
        return
    source.ask("timer", described.timer, device)
    source.ask("conditions", described.conditions, device)
    source.ask("scarcity", described.scarcity, device)
    if described.turn is not None:
        source.ask("turn", described.turn, device)
    product = _product(device)
    for template in registry.for_op(product.op):
        lookup.why_not_offered(product, template.name)


def _product(device: str) -> Problem:
    """Return a small product in float32, as a compile would ask about it."""
    square = Operand((_EXTENT, _EXTENT), (_EXTENT, 1), "float32", device.partition(":")[0])
    return Problem("mm", (square, square), square, target=lookup.target_of(device))


def _shown(device: str) -> str:
    """Return name and software of a device."""
    software = ", ".join(f"{name} {text}" for name, text in lookup.versions_of(device).items())
    return ", ".join(filter(None, (str(lookup.facts_of(device)["name"]), software)))


def _origin(device: str) -> str:
    source = DEVICES.source(lookup.name_of(device))
    return source.origin if source is not None else ""
