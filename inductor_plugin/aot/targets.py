"""GPUs by their names: those that the plugin knows, and those whose figures packages describe."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from inductor_plugin.device import DEVICES
from inductor_plugin.errors import DeviceError, TargetError, warn_once
from inductor_plugin.problem.target import Target, names, target

logger = logging.getLogger(__name__)


def described() -> tuple[Target, ...]:
    """Return the figures of the devices that were registered, by hand or by entry points; each package is loaded."""
    figures: list[Target] = []
    for name in DEVICES.names():
        try:
            described_target = DEVICES.target(name, f"{name}:0")
        except DeviceError as error:
            warn_once(logger, f"{error}; it is no target")
            continue
        if described_target is not None:
            figures.append(described_target)
    return tuple(figures)


def named(name: str) -> Target:
    """Return a target by its name: a known one, or one that a package describes.

    Raises:
        TargetError: No target has that name.
    """
    try:
        return target(name)
    except TargetError:
        return target(name, described())


def every() -> Iterator[Target]:
    """Yield all targets, the known ones first: packages are loaded where none of them is the right one."""
    yield from map(target, names())
    yield from described()
