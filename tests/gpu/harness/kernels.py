"""Kernels of the GPU cases, built ahead of the tests in slices, so that no test waits for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError

from tests.gpu.harness.offers import Offered

TEST_S = 200.0
"""Longest test: pytest's faulthandler ends the whole run after 240 s of one (pyproject.toml)."""
WAIT_S = 120.0
"""Longest wait of a test for its kernels; the rest is for running them."""

Built = Mapping[str, list[Offered] | str]


class Kernels:
    """Builds one slice of the cases after the other in a thread, in the order of the tests."""

    def __init__(
        self, identities: Sequence[str], build: Callable[[Sequence[str]], Built], size: int
    ) -> None:
        """Begin to build.

        Args:
            identities: The cases that are going to be tested, in their order.
            build: Returns the built candidates of some cases, or why there are none.
            size: Cases of a slice.
        """
        self._thread = ThreadPoolExecutor(1, "build kernels")
        self._slices: dict[str, Future[Built]] = {}
        for first in range(0, len(identities), size):
            part = list(identities[first : first + size])
            self._slices |= dict.fromkeys(part, self._thread.submit(build, part))

    def of(self, identity: str, limit_s: float = WAIT_S) -> list[Offered] | str:
        """Return the built candidates of a case, or why there are none, after ``limit_s`` at most."""
        try:
            return self._slices[identity].result(limit_s)[identity]
        except NotYetError:
            return (
                f"still being built after {limit_s:.0f} s; what is built is found by the next run"
            )

    def close(self) -> None:
        """Begin no other slice."""
        self._thread.shutdown(wait=False, cancel_futures=True)
