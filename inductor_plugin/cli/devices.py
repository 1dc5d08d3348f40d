"""What `doctor` finds of the devices that packages describe, and their environments for the other verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inductor_plugin.cli.finding import Finding
from inductor_plugin.device import DEVICES
from inductor_plugin.errors import DeviceError
from inductor_plugin.tuning.environment import environment
from inductor_plugin.worker.devices import lookup


def devices() -> Finding:
    """Ask each device that a package describes all that a compile would ask it."""
    name = "devices"
    described = lookup.registered()
    here = lookup.present()
    faults = [*filter(None, map(DEVICES.fault, described)), *filter(None, map(_fault, here))]
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


def environments() -> list[Mapping[str, Any]]:
    """Return the environments of the devices of this machine that packages describe rightly."""
    return [environment(device) for device in lookup.present() if not _fault(device, timed=False)]


def _fault(device: str, *, timed: bool = True) -> str:
    """Return what is wrong with how a device is described, empty if nothing is."""
    source = DEVICES.source(lookup.name_of(device))
    try:
        environment(device)
        lookup.target_of(device)
        if timed and source is not None:
            source.ask("timer", lookup.known(device).timer, device)
    except DeviceError as error:
        return str(error)
    return ""


def _shown(device: str) -> str:
    """Return name and software of a device."""
    software = ", ".join(f"{name} {text}" for name, text in lookup.versions_of(device).items())
    return ", ".join(filter(None, (str(lookup.facts_of(device)["name"]), software)))


def _origin(device: str) -> str:
    source = DEVICES.source(lookup.name_of(device))
    return source.origin if source is not None else ""
