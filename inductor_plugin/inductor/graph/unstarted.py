"""Problems of a graph whose races wait for the answer of a remote, while the rest of the graph is lowered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from inductor_plugin.tuning.ticket import TuningTicket


class Unstarted:
    """Tickets and what starts their races, in the order of the graph."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._waiting: list[tuple[TuningTicket, Callable[[], None]]] = []

    def add(self, ticket: TuningTicket, start: Callable[[], None]) -> None:
        """Start a ticket's race, once it is planned; and those of earlier ones that are answered meanwhile."""
        if ticket.planned:
            start()
        else:
            self._waiting.append((ticket, start))
        self._start(wait=False)

    def start_all(self) -> None:
        """Wait for all answers, within the limits, and start all races."""
        self._start(wait=True)

    def _start(self, *, wait: bool) -> None:
        waiting, self._waiting = deque(self._waiting), []
        try:
            while waiting:
                ticket, start = waiting.popleft()
                if wait or (ticket.lookup is not None and ticket.lookup.done.is_set()):
                    ticket.selection.settle(ticket)
                    start()
                else:
                    self._waiting.append((ticket, start))
        finally:  # an error of one of them keeps none after it from its race
            self._waiting += waiting
