"""Whether what a node measures belongs into the records of an environment. Pure.

A record says under which environment its times hold: device, versions, settings. A node with another environment would fill
the records of this one with times that do not hold here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

_SECTIONS = ("device", "software", "numerics")
_OF_THE_NODE = {"device": "memory_bytes", "software": "driver"}
"""What a machine without the GPU cannot know: the memory its driver leaves, the driver."""


@dataclass(frozen=True)
class NodeFacts:
    """What a node says of the process that measures there.

    Attributes:
        host: The machine.
        plugin: Version of the plugin.
        environment: As of `tuning.environment.environment`, of its device and software, under the sender's settings.
    """

    host: str
    plugin: str
    environment: Mapping[str, Any]


def why_not(wanted: Mapping[str, Any], node: NodeFacts, plugin: str) -> str | None:
    """Return why a node's times are not those of an environment; None if they are.

    Software that the environment names and the node does not know is what compiles here: the C++ compiler.

    Args:
        wanted: The environment under which they would be recorded.
        node: The node.
        plugin: Version of the plugin here.
    """
    if node.plugin != plugin:
        return _differs("inductor-plugin", plugin, node.plugin)
    for section in _SECTIONS:
        ours, theirs = _part(wanted, section), _part(node.environment, section)
        for name in {**ours, **theirs}:
            known = name in theirs or section != "software"
            if known and ours.get(name) != theirs.get(name):
                return _differs(f"{section}.{name}", ours.get(name), theirs.get(name))
    return None


def why_not_target(lowered: Mapping[str, Any], node: NodeFacts, plugin: str) -> str | None:
    """Return why a node is not of the GPU that is lowered for on a machine without one; None if it is.

    What such a machine cannot know is the node's; all else has to be as here, where kernels are made.

    Args:
        lowered: The environment of the GPU that is not here, as of `aot.fake_device`.
        node: The node.
        plugin: Version of the plugin here.
    """
    theirs = {section: dict(_part(node.environment, section)) for section in _SECTIONS}
    adopted = {section: dict(_part(lowered, section)) for section in _SECTIONS}
    for section, name in _OF_THE_NODE.items():
        if name in theirs[section]:
            adopted[section][name] = theirs[section][name]
    return why_not(adopted, node, plugin)


def _part(environment: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", environment.get(section, {}))


def _differs(what: str, ours: object, theirs: object) -> str:
    return f"{what} is {theirs!r} there and {ours!r} here"
