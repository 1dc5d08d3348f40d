"""What the decisions of a rank rest on, in words, so that a warning can say why ranks decide apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from inductor_plugin.cache import digest_of
from inductor_plugin.cache.document import table, table_of, text, typed, whole
from inductor_plugin.config import Config
from inductor_plugin.tuning.ranks.group import group_of, shared_options
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.packing import packed, unpacked
from inductor_plugin.version import __version__

_POLICY = "policy"
_LAUNCHES = "launches by the host"
_DEVICE = ("environment.device.type", "environment.device.name")
_NOTHING = "missing"
_READERS: dict[str, Any] = {"rank": whole, "group": text, "facts": table_of(text)}


@dataclass(frozen=True)
class Terms:
    """What the decisions of a rank rest on.

    Attributes:
        group: The digest of `facts`; ranks with the same digest decide together.
        device: Names the kind of device: ranks with another GPU decide apart, as they should.
        facts: What `group` is the digest of, as texts by their names.
        policy: How this rank decides, which its group need not do.
    """

    group: str
    device: str
    facts: Mapping[str, str]
    policy: str

    @property
    def said(self) -> dict[str, str]:
        """The facts, and the policy."""
        return {**self.facts, _POLICY: self.policy}


def terms_of(
    environment: str,
    fields: Mapping[str, Any],
    config: Config,
    templates: Sequence[tuple[str, str, str]],
    *,
    host_counts: bool,
) -> Terms:
    """Return the terms of a rank.

    Args:
        environment: Digest of the environment.
        fields: Its fields.
        config: The options.
        templates: Name, class and version of each registered template.
        host_counts: Whether the host's time for a launch counts.
    """
    group = group_of(environment, config, templates, host_counts=host_counts)
    facts = _flat("environment", fields)
    facts |= {f"option {name}": str(value) for name, value in shared_options(config).items()}
    facts |= {f"template {name}": f"{cls} {version}" for name, cls, version in templates}
    facts |= {"plugin": __version__, _LAUNCHES: str(host_counts)}
    kind = digest_of({name: facts.get(name) for name in _DEVICE})
    policy = config.policy if config.ranks != "off" else f"{config.policy}, ranks=off"
    if config.policy == "pinned":
        policy += f" by {config.pin_file}"
    return Terms(group, kind, facts, policy)


def differing(own: Mapping[str, str], other: Mapping[str, str], rank: int, other_rank: int) -> str:
    """Return the first fact in which two ranks differ, with both values; empty if there is none, or one has said nothing."""
    if not own or not other:
        return ""
    for name in sorted(own.keys() | other.keys(), key=lambda name: (name == _POLICY, name)):
        mine, theirs = own.get(name, _NOTHING), other.get(name, _NOTHING)
        if mine != theirs:
            return f"{name} is {mine!r} on rank {rank}, {theirs!r} on rank {other_rank}"
    return ""


def is_same_device(own: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether two ranks have the same kind of device; those with another GPU decide apart, as they should."""
    return device_of(own) == device_of(other)


def device_of(facts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the kind of device in the facts of terms; empty texts where they do not say it."""
    return tuple(facts.get(name, "") for name in _DEVICE)


def introduce(job: Job, terms: Terms) -> str:
    """Say on what this rank's decisions rest, and return how another rank differs that has said so before; empty if none does.

    Only for the same kind of device, and not by whether a graph is captured: a rank may compile more than others. The n-th
    group of a rank is compared with the n-th of whoever was first.

    Raises:
        StoreLostError: The store does not answer.
    """
    number = job.roll.add(terms.device, terms.group)
    if number is None:
        return ""
    own = {"rank": job.rank, "group": terms.group, "facts": dict(terms.facts)}
    stored = job.store.put_once(f"terms/{terms.device}/{number}", packed(own))
    try:
        first = typed(table(unpacked(stored)), _READERS)
    except ValueError:
        return ""
    if job.roll.has(terms.device, first["group"]):
        return ""
    theirs = cast("Mapping[str, str]", first["facts"])
    shared = {_LAUNCHES: terms.facts[_LAUNCHES]}
    return differing(terms.facts, {**theirs, **shared}, job.rank, first["rank"])


def _flat(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {name: str(value)}
    fields = cast("Mapping[str, object]", value)
    return {
        path: leaf
        for key, part in fields.items()
        for path, leaf in _flat(f"{name}.{key}", part).items()
    }
