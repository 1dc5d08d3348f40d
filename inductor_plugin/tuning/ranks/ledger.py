"""What this rank has compiled so far, for `verify_ranks`: its decisions, and the code of its graphs."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from inductor_plugin.cache import digest_of
from inductor_plugin.problem.description import described
from inductor_plugin.tuning.ranks.code import input_sizes, normalized, operators
from inductor_plugin.tuning.ranks.terms import Terms
from inductor_plugin.tuning.ticket import TuningTicket


@dataclass(frozen=True)
class RankGraph:
    """A graph that was compiled, or came from Inductor's cache.

    Attributes:
        outline: Digest of what two ranks know a graph by for the same, whatever is fused: its problems (without any, its operators)
            and the sizes of its inputs. Stages of a pipeline with the same products have other inputs.
        code: Digest of its code, as `normalized`.
    """

    outline: str
    code: str


@dataclass(frozen=True)
class Statement:
    """What one rank says.

    Attributes:
        winners: What runs, by group and problem: under other options another kernel may.
        names: The problems in words.
        graphs: Its graphs, in order.
        terms: What the decisions of each group rest on, as of `Terms.said`.
    """

    winners: Mapping[str, str] = field(default_factory=dict[str, str])
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    graphs: tuple[RankGraph, ...] = ()
    terms: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])


class Ledger:
    """The decisions and the code of a process; filled from any thread that compiles."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._guard = threading.Lock()
        self._winners: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self._graphs: list[RankGraph] = []
        self._texts: dict[str, bytes] = {}
        self._terms: dict[str, Mapping[str, str]] = {}

    def add_decisions(
        self, tickets: Iterable[tuple[str, TuningTicket]], terms: Iterable[Terms] = ()
    ) -> None:
        """Store the decisions of a graph, each with the name of its group, and what they rest on; of two about one problem the later."""
        with self._guard:
            self._terms |= {each.group: each.said for each in terms}
        for group, ticket in tickets:
            if ticket.verdict is not None and ticket.verdict.winner is not None:
                place = f"{group}/{ticket.problem.op}/{ticket.digest}"
                text = described(ticket.problem.fields(), ticket.problem.describe())
                with self._guard:
                    self._winners[place], self._names[place] = ticket.verdict.winner, text

    def add_winners(self, winners: Mapping[str, str]) -> None:
        """Store the decisions of a graph out of Inductor's cache, by group and problem."""
        with self._guard:
            self._winners |= winners

    def add_code(self, problems: Sequence[str], code: str) -> None:
        """Store the code of a graph, and the problems in it."""
        text = normalized(code)
        digest = hashlib.sha256(text.encode()).hexdigest()
        # Without operators where there are problems: an epilogue is a part of a product on the rank that has fused it.
        own = {"problems": [*problems]} if problems else {"operators": operators(text)}
        outline = digest_of({**own, "inputs": input_sizes(text)})
        with self._guard:
            self._graphs.append(RankGraph(outline, digest))
            self._texts.setdefault(digest, zlib.compress(text.encode()))

    def statement(self) -> Statement:
        """Return what is known so far."""
        with self._guard:
            graphs, terms = tuple(self._graphs), {**self._terms}
            return Statement({**self._winners}, {**self._names}, graphs, terms)

    def text(self, digest: str) -> str:
        """Return the code with a digest; empty if there is none."""
        with self._guard:
            data = self._texts.get(digest)
        return "" if data is None else zlib.decompress(data).decode()

    def forget(self) -> None:
        """Drop everything."""
        with self._guard:
            for kept in (
                self._winners,
                self._names,
                self._graphs,
                self._texts,
                self._terms,
            ):
                kept.clear()


LEDGER = Ledger()
"""What this process has compiled."""
