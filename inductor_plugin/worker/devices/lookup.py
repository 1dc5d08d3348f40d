"""Which device is described how, and what its description says, checked."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from typing import Any

import torch

from inductor_plugin.device import DEVICES, Device, DeviceSource, Json
from inductor_plugin.errors import DeviceError, warn_once
from inductor_plugin.problem import Problem
from inductor_plugin.problem.target import Target
from inductor_plugin.worker import interface
from inductor_plugin.worker.devices.cpu import CPU
from inductor_plugin.worker.devices.cuda import CUDA

logger = logging.getLogger(__name__)

_BUILT_IN = {"cpu": CPU, "cuda": CUDA}
_NO_NAME = re.compile(r"[^\w.-]")
"""What a name of a lock's file does not have."""
_PLAIN = (bool, int, float, str, type(None))


def name_of(device: str) -> str:
    """Return the name under which a device is described: its type, or ``hip`` for an AMD GPU that a package describes.

    Args:
        device: ``npu``, ``npu:0`` ...
    """
    kind = device.partition(":")[0]
    is_amd = kind == "cuda" and torch.version.hip is not None
    return "hip" if is_amd and DEVICES.get("hip") is not None else kind


def device_of(device: str) -> Device | None:
    """Return the description of a device; None if neither the plugin nor an entry point has one."""
    name = name_of(device)
    return _BUILT_IN.get(name) or DEVICES.get(name)


def known(device: str) -> Device:
    """Return how a device is described.

    Raises:
        DeviceError: Nothing describes it, or its description is wrong.
    """
    described = device_of(device)
    if described is None:
        raise DeviceError(why_not_tuned(device))
    return described


def on_host(device: str) -> bool:
    """Return whether a device computes with the host's cores; one that is not described does not."""
    described = device_of(device)
    return described is not None and described.on_host


def is_nvidia(device: str) -> bool:
    """Return whether nvcc compiles for a device."""
    return name_of(device) == "cuda" and torch.version.hip is None


def is_for_triton(device: str) -> bool:
    """Return whether the Triton kernels of templates are offered for a device: not for an AMD GPU that no package describes."""
    described = device_of(device)
    built_in_amd = name_of(device) == "cuda" and torch.version.hip is not None
    return described is not None and described.triton and not built_in_amd


def why_not_tuned(device: str) -> str | None:
    """Return why a device is not tuned on, None if it is."""
    if device_of(device) is not None:
        return None
    name = name_of(device)
    return DEVICES.fault(name) or (
        f"devices of type {name!r} are left to Inductor alone: no package describes them in the group of entry points "
        "inductor_plugin.devices (docs/own-device.md)"
    )


def give_up(device: str, error: DeviceError) -> None:
    """Leave a device whose description is wrong to Inductor alone, with one warning."""
    DEVICES.give_up(name_of(device), str(error))


def registered() -> tuple[str, ...]:
    """Return the names of devices that packages describe, rightly or wrongly."""
    return DEVICES.names()


def present() -> tuple[str, ...]:
    """Return the devices of this machine that packages describe rightly, each as ``npu:0`` ..."""
    names = [name for name in registered() if DEVICES.get(name) is not None]
    types = {name: "cuda" if name == "hip" else name for name in names}
    return tuple(
        f"{kind}:{index}"
        for name, kind in types.items()
        if name != "hip" or torch.version.hip is not None
        for index in range(interface.count(kind))
    )


def adopt(device: str, reference: str) -> Device:
    """Return how a device of the parent is described, in the benchmark worker.

    Args:
        device: The device.
        reference: Where the parent has found the description; empty for what is built in.

    Raises:
        DeviceError: The description does not load here.
    """
    name = device.partition(":")[0]
    if reference:
        source = DeviceSource("hip" if name == "cuda" else name, reference, f"from {reference}")
        if DEVICES.source(source.name) is None or DEVICES.fault(source.name):
            DEVICES.register(source.name, reference, source.origin)
    return known(device)


def reference_of(device: str) -> str:
    """Return from where a worker loads the description of a device; empty for what is built in."""
    name = name_of(device)
    source = None if name in _BUILT_IN else DEVICES.source(name)
    return "" if source is None else source.reference


def facts_of(device: str) -> dict[str, Json]:
    """Return what has to be equal for timings on a device to be comparable.

    Raises:
        DeviceError: Its description is wrong.
    """
    name, described = name_of(device), known(device)
    if name in _BUILT_IN:
        return dict(described.facts(device))
    return dict(_own_facts(device, described))


@functools.lru_cache(maxsize=64)
def _own_facts(device: str, described: Device) -> Mapping[str, Json]:
    facts = _plain(device, "facts", _ask(device, "facts", described.facts, device))
    if not isinstance(facts.get("name"), str):
        raise DeviceError(
            f"{_source(device)}: facts({device!r}) has no text `name`: {dict(facts)!r}"
        )
    return {"type": device.partition(":")[0], **facts}


def versions_of(device: str) -> dict[str, Json]:
    """Return the versions of a device's software besides torch.

    Raises:
        DeviceError: Its description is wrong.
    """
    described = known(device)
    if name_of(device) in _BUILT_IN:
        return dict(described.versions())
    return _plain(device, "versions", _ask(device, "versions", described.versions))


def numerics_of(device: str) -> dict[str, Json]:
    """Return the settings of this process that change results on a device, besides those of all devices.

    Raises:
        DeviceError: Its description is wrong.
    """
    described = known(device)
    return _plain(device, "numerics", _ask(device, "numerics", described.numerics))


def conditions_of(device: str) -> dict[str, Json]:
    """Return how a device is now; nothing, with one warning, where its description is wrong: a record is worth more."""
    try:
        asked = _ask(device, "conditions", known(device).conditions, device)
        return _plain(device, "conditions", asked)
    except DeviceError as error:
        warn_once(logger, f"{error}; records do not say how it was")
        return {}


def target_of(device: str) -> Target | None:
    """Return the figures of a device that a package describes; None for one that is built in, and where there are none.

    Raises:
        DeviceError: Its description is wrong.
    """
    name = name_of(device)
    return None if name in _BUILT_IN else DEVICES.target(name, device)


def uuid_of(device: str) -> str:
    """Return the name under which one process of the machine measures on a device at a time, empty if all may."""
    described = device_of(device)
    if described is None:
        return ""
    kind, _, index = device.partition(":")
    try:
        if described.turn is not None:
            turn = str(_ask(device, "turn", described.turn, device))
            return turn if name_of(device) in _BUILT_IN else _NO_NAME.sub("_", turn)
    except DeviceError as error:
        warn_once(logger, f"{error}; turns are taken by its index")
    return f"{kind}-{index or 0}"


def why_scarce(device: str) -> str:
    """Return why a second process may not get to a device, empty if it should, or if that is not known."""
    described = device_of(device)
    try:
        return (
            "" if described is None else str(_ask(device, "scarcity", described.scarcity, device))
        )
    except DeviceError as error:
        warn_once(logger, str(error))
        return ""


def why_not_offered(problem: Problem, template: str) -> str | None:
    """Return why a template's kernels may not be offered for a problem, None if they may.

    Raises:
        DeviceError: The description of its device is wrong.
    """
    device = problem.output.device
    described = known(device)
    reason = _ask(device, "refusal", described.refusal, problem, template)
    return str(reason) if reason else None


def start(device: str) -> None:
    """Prepare the benchmark worker for its device."""
    described = known(device)
    if described.start is not None:
        described.start(device)
    else:
        interface.start(device)


def _source(device: str) -> str:
    return str(DEVICES.source(name_of(device)) or f"device {device!r}")


def _ask(device: str, what: str, function: Any, *arguments: object) -> Any:
    """Call a function of a description; where it is a package's, what it raises names the package."""
    source = None if name_of(device) in _BUILT_IN else DEVICES.source(name_of(device))
    return function(*arguments) if source is None else source.ask(what, function, *arguments)


def _plain(device: str, what: str, fields: Any) -> dict[str, Json]:
    """Return the fields of a key or a record.

    Raises:
        DeviceError: They are no mapping, or not of the types of JSON.
    """
    if not isinstance(fields, Mapping):
        raise DeviceError(f"{_source(device)}: {what} returned a {type(fields).__name__}, no dict")
    plain: dict[Any, Any] = dict(fields)  # pyright: ignore[reportUnknownArgumentType]
    for name, value in plain.items():
        if not isinstance(name, str) or not _is_json(value):
            raise DeviceError(
                f"{_source(device)}: {what} has {name!r}: {value!r}, which is no JSON; a key needs plain values"
            )
    return plain


def _is_json(value: Any) -> bool:
    if isinstance(value, Mapping):
        fields: dict[Any, Any] = dict(value)  # pyright: ignore[reportUnknownArgumentType]
        return all(isinstance(name, str) and _is_json(each) for name, each in fields.items())
    if isinstance(value, (list, tuple)):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return all(map(_is_json, items))
    return isinstance(value, _PLAIN)
