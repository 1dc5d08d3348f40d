"""The templates that packages bring, alone or with a device, in the registry of this process."""

from __future__ import annotations

from inductor_plugin.device import DEVICES, Device, Devices
from inductor_plugin.errors import DeviceError, RegistrationError
from inductor_plugin.registry import Registry, default_registry

_ADDED: set[tuple[int, Device]] = set()


def add_templates(registry: Registry | None = None, devices: Devices = DEVICES) -> None:
    """Register the templates of installed packages and of all devices, each once: before a graph is looked up, whose key names them.

    A device whose templates cannot be registered is left to Inductor alone.
    """
    own = registry or default_registry()
    own.add_installed()
    for name in devices.names():
        device, source = devices.get(name), devices.source(name)
        if device is None or source is None or (id(own), device) in _ADDED:
            continue
        _ADDED.add((id(own), device))
        try:
            for template in source.ask("templates", device.templates):
                own.register(template)
        except DeviceError as error:
            devices.give_up(name, str(error))
        except (RegistrationError, TypeError) as error:
            devices.give_up(name, f"{source}: templates: {error}")
