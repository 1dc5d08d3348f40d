"""A call with an echo: the same kernel on other operands, which brings back its code where the caches have been evicted."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_plugin.device import BoundCall


@dataclass(frozen=True)
class Echoed:
    """A call of a kernel, for a timer that evicts the caches of the processor that also runs the host's code.

    What evicts operands evicts the kernel's code and data, too, and the library's are large: on a Xeon with 300 MB of level 3
    oneMKL's product of 4 x 96 x 160 takes 148 us behind a read of all caches, a generated kernel 33 us. A network calls the same
    kernel layer after layer, with other weights: 24 such layers take 37 and 33 us each behind that read.

    Attributes:
        call: The call.
        echo: The same kernel on other operands; called once, behind the read, before the call that is timed.
    """

    call: BoundCall
    echo: BoundCall

    def __call__(self) -> object:
        """Call the kernel on its operands."""
        return self.call()
