"""One call of a graph between its choices and its decision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch._inductor import ir, select_algorithm

from inductor_plugin.inductor.candidates.layouts import Layouts
from inductor_plugin.inductor.candidates.offers import Call, is_library
from inductor_plugin.tuning.decision import guarded
from inductor_plugin.tuning.selection import Ticket

if TYPE_CHECKING:
    from inductor_plugin.inductor.graph.session import Session


class Claim:
    """One call's ticket together with the choices it stands for."""

    def __init__(
        self, session: Session, ticket: Ticket, choices: Mapping[str, Any], call: Call
    ) -> None:
        """Bind a ticket to the choices of one call, by candidate."""
        self._session = session
        self.ticket = ticket
        self.call = call
        self._choices = choices
        self._layouts = Layouts(ticket.problem, call.nodes)
        if not self._libraries:
            self._layouts.hold()

    @property
    def choices(self) -> Mapping[str, Any]:
        """The choices, by candidate."""
        return self._choices

    @property
    def _libraries(self) -> list[Any]:
        return [one for one in self._choices.values() if is_library(one)]

    def hold(self) -> None:
        """Let the inputs lie as they were measured, unless the library kernel runs."""
        if self._layouts.open and self.winner() not in self._libraries:
            self._layouts.hold()

    def compare(self) -> None:
        """Say so where an input lies otherwise than it was measured; Inductor may not ask again."""
        if self._layouts.moved():
            self.winner()

    def winner(self) -> ir.ChoiceCaller:
        """Return the choice that runs, waiting for it if necessary.

        Raises:
            NoValidChoicesError: Nothing could be measured and there is no library kernel.
        """
        self._session.await_ticket(self.ticket)
        chosen = self._session.selection(self.ticket).decide(self.ticket).winner
        if chosen is not None and chosen in self._choices:
            return self._layouts.kept(self._choices[chosen], self._libraries)
        if self._libraries:
            return self._libraries[0]
        # Nothing was measured, or not yet: what has not failed may run.
        measured = self.ticket.measured
        for name, choice in self._choices.items():
            if name not in measured or measured[name].status == "skipped":
                return choice
        raise select_algorithm.NoValidChoicesError(
            f"no candidate for {self.ticket.problem.describe()} could be used"
        )

    def timings(self, _hint_override: int | None = None) -> dict[Any, float]:
        """Return milliseconds by choice, the winner the fastest, as Inductor's scheduler asks."""
        winner = self.winner()
        selection = self._session.selection(self.ticket)
        verdict = selection.decide(self.ticket)
        values = guarded(selection.medians(self.ticket), verdict)
        timed = {self._choices[n]: t for n, t in values.items() if n in self._choices}
        # Without timings (a lost worker, a tight budget) the scheduler still needs one entry.
        timed = timed if winner in timed and not self._layouts.moved() else {winner: 1.0}
        # Where a template does not fit the layout, it looks up every library kernel, failed or not.
        for choice in self._libraries:
            timed.setdefault(choice, float("inf"))
        return timed
