"""A call of a graph whose candidates are being tuned and whose kernel is not chosen yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch._inductor import ir, select_algorithm

from inductor_plugin.errors import OptionError
from inductor_plugin.inductor.candidates.call import AutotuneCall
from inductor_plugin.inductor.candidates.layouts import Layouts
from inductor_plugin.inductor.candidates.offers import is_library
from inductor_plugin.tuning.decision import guarded
from inductor_plugin.tuning.ticket import TuningTicket

logger = logging.getLogger(__name__)


class PendingChoice:
    """A call's tuning ticket together with Inductor's choices."""

    def __init__(
        self,
        ticket: TuningTicket,
        choices: Mapping[str, Any],
        call: AutotuneCall,
        wait: Callable[[TuningTicket], None],
    ) -> None:
        """Bind a ticket to the choices of a call.

        Args:
            ticket: The call's problem and candidates.
            choices: Inductor's choices by candidate.
            call: The call.
            wait: Returns once a ticket can be decided.
        """
        self.ticket = ticket
        self.choices = choices
        self.call = call
        self._wait = wait
        self._undecidable = False
        self._libraries = [choice for choice in choices.values() if is_library(choice)]
        self._layouts = Layouts(call)
        if not self._libraries:
            self._layouts.hold()

    def hold(self) -> None:
        """Keep the inputs' layouts as they were measured, unless the library kernel runs."""
        if self._layouts.open and self.winner() not in self._libraries:
            self._layouts.hold()

    def compare(self) -> None:
        """Warn if an input's layout is not the measured layout; Inductor may not ask again."""
        if self._layouts.moved():
            self.winner()

    def winner(self) -> ir.ChoiceCaller:
        """Return the choice that runs, waiting for it if necessary.

        Raises:
            NoValidChoicesError: Nothing could be measured and there is no library kernel.
        """
        winner = self._decided()
        if winner is not None and winner in self.choices:
            return self._layouts.kept(self.choices[winner], self._libraries)
        if self._libraries:
            return self._libraries[0]
        # Nothing has been measured: any choice that has not failed may run.
        measured = self.ticket.measured
        for name, choice in self.choices.items():
            if name not in measured or measured[name].status == "skipped":
                return choice
        raise select_algorithm.NoValidChoicesError(
            f"no candidate for {self.ticket.problem.describe()} could be used"
        )

    @property
    def is_undecidable(self) -> bool:
        """Whether an error has kept the selection from deciding; a library kernel runs."""
        return self._undecidable

    def _decided(self) -> str | None:
        """Return the candidate that the selection decides for, or None."""
        if self._undecidable:
            return None
        try:
            self._wait(self.ticket)
            return self.ticket.selection.decide(self.ticket).winner
        except OptionError:
            raise
        except Exception:  # the border where Inductor asks for the decision: a library kernel runs
            logger.exception(
                "inductor-plugin: nothing could be decided for %s; Inductor's own kernel is used",
                self.ticket.problem.describe(),
            )
            self._undecidable = True
            return None

    def timings(self, _hint_override: int | None = None) -> dict[Any, float]:
        """Return milliseconds by choice, the winner the fastest, as Inductor's scheduler asks."""
        winner, selection = self.winner(), self.ticket.selection
        values: dict[str, float] = {}
        if not self._undecidable:
            values = guarded(selection.medians(self.ticket), selection.decide(self.ticket))
        timed = {self.choices[n]: t for n, t in values.items() if n in self.choices}
        # Without timings (a lost worker, a tight budget) the scheduler still needs one entry.
        timed = timed if winner in timed and not self._layouts.moved() else {winner: 1.0}
        # Where a template does not fit the layout, it looks up every library kernel, failed or not.
        for choice in self._libraries:
            timed.setdefault(choice, float("inf"))
        return timed
