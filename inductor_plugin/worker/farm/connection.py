"""A connection to a Ray cluster: the only module that imports Ray."""

from __future__ import annotations

import threading
from typing import Any

from inductor_plugin.errors import OptionError, WorkerError
from inductor_plugin.worker.affinity import own_cores
from inductor_plugin.worker.failure import one_line

_CONNECTING = threading.Lock()
"""A process has one connection; what compiles and what measures may ask for it at the same time."""


class Connection:
    """This process's connection to a cluster; the user's program, or another option, may have made it.

    Attributes:
        ray: Ray.
    """

    def __init__(self, farm: str, option: str) -> None:
        """Connect.

        Args:
            farm: Value of the option.
            option: Its name, for errors.

        Raises:
            OptionError: Ray is not installed.
            WorkerError: The cluster cannot be reached.
        """
        self.ray = _imported(farm, option)
        self._farm = farm
        with _CONNECTING:
            self._own = not self.alive
            try:
                if self._own:
                    self.ray.init(**_arguments(farm))
            except Exception as error:  # Ray's errors of connecting have no common class
                raise self.failed(error) from error

    @property
    def alive(self) -> bool:
        """False once the connection has ended: Ray would start a cluster on this machine."""
        return bool(self.ray.is_initialized())

    def failed(self, error: Exception) -> WorkerError:
        """Return the error of a cluster that cannot be used."""
        return WorkerError(f"the farm {self._farm} cannot be reached: {reason_of(error)}")

    def check(self) -> None:
        """Check that the connection has not ended.

        Raises:
            WorkerError: It has.
        """
        if not self.alive:
            raise WorkerError("the connection to the cluster has ended")

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are there now, as Ray describes them."""
        return [node for node in self.ray.nodes() if node["Alive"]]

    def only_on(self, node: str) -> Any:
        """Return the scheduling strategy of what runs on one node, or not at all."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415  optional, as Ray

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def close(self) -> None:
        """Disconnect, unless the connection had been made before."""
        if self._own and self.alive:
            self.ray.shutdown()


def reason_of(error: BaseException) -> str:
    """Return what Ray raised, in one line."""
    return one_line(f"{type(error).__name__}: {error}")


def _imported(farm: str, option: str) -> Any:
    try:
        import ray  # noqa: PLC0415  optional, 240 MB, and takes a second
    except ImportError as error:
        raise OptionError(
            f"option {option} is {farm!r}, and Ray is not installed; run: pip install 'inductor-plugin[ray]'"
        ) from error
    return ray


def _arguments(farm: str) -> dict[str, Any]:
    """Return the arguments of ``ray.init`` for an option."""
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
    if farm == "ray:local":
        cores = len(own_cores())
        return {**quiet, "address": "local", "num_cpus": cores, "include_dashboard": False}
    if farm.startswith("ray://"):
        return {**quiet, "address": farm}
    return {**quiet, "address": farm.removeprefix("ray:")}
