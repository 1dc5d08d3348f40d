"""The templates that packages bring, alone or with a device, in the registry of this process."""

from __future__ import annotations

from collections.abc import Iterator

from inductor_plugin.device import DEVICES, Device, Devices, DeviceSource
from inductor_plugin.errors import DeviceError, RegistrationError
from inductor_plugin.registry import Registry, default_registry

_ADDED: set[tuple[int, Device]] = set()


def add_templates(registry: Registry | None = None, devices: Devices = DEVICES) -> None:
    """Register the templates of installed packages and of all devices, each once: before a graph is looked up, whose key names them.

    A device whose templates cannot be registered is left to Inductor alone.
    """
    own = registry or default_registry()
    own.add_installed()
    for device, source in _described(devices):
        if (id(own), device) in _ADDED:
            continue
        _ADDED.add((id(own), device))
        if fault := _add(own, device, source):
            devices.give_up(source.name, fault)


def template_faults(registry: Registry) -> dict[str, str]:
    """Return why the templates of a device could not be registered, for each device of which that is so; none is given up.

    Args:
        registry: Gets the templates: a new one, with those of installed packages.
    """
    added = {source.name: _add(registry, device, source) for device, source in _described(DEVICES)}
    return {name: fault for name, fault in added.items() if fault}


def _described(devices: Devices) -> Iterator[tuple[Device, DeviceSource]]:
    for name in devices.names():
        device, source = devices.get(name), devices.source(name)
        if device is not None and source is not None:
            yield device, source


def _add(registry: Registry, device: Device, source: DeviceSource) -> str:
    """Register the templates of a device; return why one could not be, empty if all are registered."""
    try:
        for template in source.ask("templates", device.templates):
            registry.register(template)
    except DeviceError as error:
        return str(error)
    except (RegistrationError, TypeError) as error:
        return f"{source}: templates: {error}"
    return ""
