"""Records as the plugin writes them while it lowers a call for a GPU that is not there, with times that a test makes up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from inductor_plugin.cache import Record
from inductor_plugin.cache.record import from_fields
from inductor_plugin.problem.target import target
from inductor_plugin.worker.jobs import BenchCandidate
from tests.emulator.recorded.lowering import lowering
from tests.support.lowering import Arg, Lab


def record_of(
    cache: Path, function: Callable[..., Any], *arguments: Arg, fastest: str = "", gpu: str = "H100"
) -> Record:
    """Lower a call, and return its record, which the cache keeps.

    Args:
        cache: The cache's folder.
        function: The call, which returns a tuple.
        arguments: Its operands.
        fastest: How the identities of those candidates begin that are measured as the fastest.
        gpu: Name of the GPU.
    """

    def milliseconds(candidate: BenchCandidate) -> float:
        return 0.1 if fastest and candidate.candidate_id.startswith(fastest) else 1.0

    with lowering(target(gpu)):
        lab = Lab(milliseconds, cache)
        with lab.open():
            lab.lower(function, *arguments)
    return from_fields(lab.record())
