"""What the decisions of a rank rest on, in words, so that a warning can say why ranks decide apart."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from inductor_plugin.cache import digest_of
from inductor_plugin.cache.document import table, table_of, text, typed, whole
from inductor_plugin.config import Config
from inductor_plugin.errors import warn_once
from inductor_plugin.tuning.ranks.group import group_of, shared_options
from inductor_plugin.tuning.ranks.job import Job
from inductor_plugin.tuning.ranks.packing import packed, unpacked
from inductor_plugin.version import __version__

logger = logging.getLogger(__name__)

_PATIENCE_S = 60.0
"""Seconds in which a rank may come to the group of another rank, before it says that they decide apart."""
_POLICY = "policy"
_LAUNCHES = "launches by the host"
_DEVICE = ("environment.device.type", "environment.device.name")
_NOTHING = "missing"
_READERS: dict[str, Any] = {"rank": whole, "group": text, "facts": table_of(text)}


class Apart(NamedTuple):
    """Ranks that decide apart.

    Attributes:
        group: Their group.
        difference: The first fact in which it differs, with both values.
    """

    group: str
    difference: str


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
    """Return the first fact in which two ranks differ, with both values; empty if there is none, or one has stated nothing."""
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


class Introduction:
    """Says on what a rank's decisions rest, and warns where the decisions of others rest on something else."""

    def __init__(self, job: Job, terms: Terms) -> None:
        """Say nothing yet.

        Args:
            job: The job.
            terms: What the decisions rest on.
        """
        self._job, self._terms = job, terms
        self._is_given = False
        self._apart: Apart | None = None
        self._since = -math.inf

    def step(self, now: float) -> None:
        """Say it, once; a while later, warn if it applies: ranks may come to two groups in two orders.

        Args:
            now: The time.

        Raises:
            StoreLostError: The store does not answer.
        """
        if not self._is_given:
            self._is_given, self._since = True, now
            self._apart = introduce(self._job, self._terms)
        elif now - self._since > _PATIENCE_S:
            self.end()

    def end(self) -> None:
        """Warn if it applies; nothing is asked of the store."""
        apart, self._apart = self._apart, None
        if apart is not None and not self._job.roll.has(self._terms.device, apart.group):
            text = f"ranks decide apart: {apart.difference}; each side tunes by itself, and they may run different kernels"
            warn_once(logger, text, "ranks decide apart")


def introduce(job: Job, terms: Terms) -> Apart | None:
    """Say on what this rank's decisions rest, and return which others decide apart so far; None if none do.

    A list in the store has each group once. A rank that finds its own there decides together with the rank that has added it; a
    rank that has to add it is alone with it. Only groups for the same kind of device are compared, and not by whether a graph is captured: a rank
    may compile more than others.

    Raises:
        StoreLostError: The store does not answer.
    """
    if not job.roll.add(terms.device, terms.group):
        return None
    own = packed({"rank": job.rank, "group": terms.group, "facts": dict(terms.facts)})
    others: list[Mapping[str, Any]] = []
    for number in itertools.count():
        stored = job.store.put_once(f"terms/{terms.device}/{number}", own)
        if stored == own:
            break
        with suppress(ValueError):  # a damaged entry
            others.append(typed(table(unpacked(stored)), _READERS))
            if others[-1]["group"] == terms.group:
                return None
    for other in others:
        theirs = cast("Mapping[str, str]", other["facts"])
        shared = {_LAUNCHES: terms.facts[_LAUNCHES]}
        text = differing(terms.facts, {**theirs, **shared}, job.rank, other["rank"])
        if text and not job.roll.has(terms.device, other["group"]):
            return Apart(other["group"], text)
    return None


def _flat(name: str, value: object) -> dict[str, str]:
    if not isinstance(value, Mapping):
        return {name: str(value)}
    fields = cast("Mapping[str, object]", value)
    return {
        path: leaf
        for key, part in fields.items()
        for path, leaf in _flat(f"{name}.{key}", part).items()
    }
