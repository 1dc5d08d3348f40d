"""A connection to a Ray cluster: the only module that imports Ray."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from inductor_plugin.errors import OptionError, WorkerError
from inductor_plugin.worker.failure import one_line
from inductor_plugin.worker.farm.address import LOCAL, arguments, patient, quiet

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

ANSWER_S = 60.0
"""Limit of a call that a cluster answers at once. Ray's client takes up to 30 s to connect again, and waits 600 s for a head
that says nothing."""
_END_S = 5.0
"""The same once the connection is to end, as the process may."""
_HURRY_S = 0.2
"""Seconds after which a call that waits notices that the connection is to end."""
_START_S = 300.0
"""Limit of the start of a cluster on this machine, which takes 5 s, and 200 s where ten times as many processes run as there are cores."""
_STAY_S = 60.0
"""Seconds after which the thread that has started a cluster sees that it has ended."""
_MARK = "inductor-plugin job "
_CONNECTING = threading.Lock()
"""A process has one connection; what compiles and what measures may ask for it at the same time."""


@dataclass
class _SharedConnection:
    """The connection that options have made, which several may use.

    Attributes:
        farm: What it was made for; empty if there is none.
        identity: Of Ray: with another one the user's program has connected since.
        number: How many were begun; what belongs to an earlier one is lost.
        users: How many use it.
        ending: What ends the last one, or has; it lasts where the head says nothing any more. Also what connects after its limit.
    """

    farm: str = ""
    identity: str = ""
    number: int = 0
    users: int = 0
    ending: threading.Thread | None = None


_SHARED = _SharedConnection()


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
            WorkerError: The cluster cannot be reached, or this process is connected to another one.
        """
        self.ray = _imported(farm, option)
        self._farm, self._most_s = farm, math.inf
        self._silent, self._own, self._number = False, False, 0
        with _CONNECTING:
            try:
                self._own = self._joined(option)
            except WorkerError:
                raise
            except Exception as error:  # Ray's errors of connecting have no common class
                raise self.failed(error) from error

    def _joined(self, option: str) -> bool:
        """Connect, or use the connection that there is; return whether it is one that options have made.

        Raises:
            WorkerError: It is one to another cluster, or one that was lost has not ended.
            Exception: What Ray raises.
        """
        if _SHARED.ending is not None:
            _SHARED.ending.join(_END_S)
        if _SHARED.ending is not None and _SHARED.ending.is_alive():
            raise WorkerError(f"a former connection to {self._farm} has not ended yet")
        self._number = _SHARED.number
        if not self.ray.is_initialized():
            self._number = _SHARED.number = _SHARED.number + 1  # whatever was connected is lost
            _SHARED.identity = self._connected()
            _SHARED.farm, _SHARED.users = self._farm, 0
        elif not _SHARED.farm or _SHARED.identity != self.within(ANSWER_S, self._identity):
            return False  # the user's program has connected, to whatever it wants
        if _SHARED.farm != self._farm:
            raise WorkerError(
                f"option {option} is {self._farm!r}, and this process is connected to {_SHARED.farm!r}; a process is "
                "connected to one cluster: name the same"
            )
        _SHARED.users += 1
        return True

    def _connected(self) -> str:
        """Connect, within a limit, and return the identity; what comes later disconnects itself.

        Raises:
            WorkerError: There is no answer within the limit.
            Exception: What Ray raises.
        """
        is_lost, answer = bool(_SHARED.farm), Future[str]()
        limit_s = _START_S if self._farm == LOCAL else ANSWER_S

        def begin() -> None:
            identity, error = "", None
            try:
                if is_lost:  # Ray's client refuses another connection before a lost one is ended
                    self.ray.shutdown()
                with patient(self._farm), quiet():
                    self.ray.init(**arguments(self._farm))
                identity = self._identity()
            except BaseException as raised:  # noqa: BLE001  whatever Ray raises, who waits for the answer gets it
                error = raised
            if not answer.set_running_or_notify_cancel():
                if error is None:
                    self.ray.shutdown()
            elif error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(identity)
                self._stay()

        thread = threading.Thread(target=begin, name="farm begin", daemon=True)
        thread.start()
        try:
            wait([answer], timeout=limit_s)
        finally:  # after Ctrl-C, too
            if answer.cancel():
                _SHARED.ending = thread
        if answer.cancelled():
            raise WorkerError(
                f"the farm {self._farm} cannot be reached: no answer in {limit_s:g} s"
            )
        return answer.result()

    def _stay(self) -> None:
        """Last as long as a cluster that this thread has started: with it Linux ends its processes (Ray sets PR_SET_PDEATHSIG)."""
        while self._farm == LOCAL and self._number == _SHARED.number and self.ray.is_initialized():
            time.sleep(_STAY_S)

    def _identity(self) -> str:
        """Return what distinguishes this connection from others: jobs are counted by each cluster."""
        context = self.ray.get_runtime_context()
        return f"{context.get_node_id()} {context.get_job_id()}"

    @property
    def alive(self) -> bool:
        """False once the connection has ended, where Ray would start a cluster on this machine, or is silent."""
        is_former = self._own and self._number != _SHARED.number
        return not self._silent and not is_former and bool(self.ray.is_initialized())

    def failed(self, error: Exception) -> WorkerError:
        """Return the error of a cluster that cannot be used."""
        return WorkerError(f"the farm {self._farm} cannot be reached: {reason_of(error)}")

    def check(self) -> None:
        """Check that the connection has not ended.

        Raises:
            WorkerError: It has.
        """
        if self._silent:
            raise WorkerError("the cluster does not answer any more")
        if not self.alive:
            raise WorkerError("the connection to the cluster has ended")

    def within(self, limit_s: float, do: Callable[[], Result]) -> Result:
        """Return what a call of Ray returns, which has no limit of its own.

        Args:
            limit_s: Seconds after which the connection is given up.
            do: The call.

        Raises:
            WorkerError: The connection has ended, or there is no answer within the limit.
            Exception: What the call raises.
        """
        self.check()
        answer: Future[Result] = Future()

        def call() -> None:
            try:
                answer.set_result(do())
            except BaseException as error:  # noqa: BLE001  whatever Ray raises, who waits for the answer gets it
                answer.set_exception(error)

        threading.Thread(target=call, name="farm call", daemon=True).start()
        started = time.monotonic()
        while not answer.done():
            most_s = min(limit_s, self._most_s)
            left_s = most_s - (time.monotonic() - started)
            if left_s <= 0:
                self._silent = True
                raise WorkerError(f"the cluster has not answered for {most_s:.0f} s")
            wait([answer], timeout=min(left_s, _HURRY_S))
        return answer.result()

    def hurry(self) -> None:
        """Give calls a few seconds from now on, those that wait included: a caller that is about to close it shall not wait for them."""
        self._most_s = _END_S

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that are there now, as Ray describes them.

        Raises:
            WorkerError: As of `within`.
            Exception: What Ray raises.
        """
        nodes = self.within(ANSWER_S, lambda: self.ray.nodes())
        return [node for node in nodes if node["Alive"]]

    def marks(self, beginning: str) -> dict[str, set[str]]:
        """Return the keys of marked jobs, each with the nodes that have marked it, lost ones included; see `marked`.

        Args:
            beginning: What their keys begin with.

        Raises:
            WorkerError: As of `within`.
            Exception: What Ray raises.
        """
        names = self.within(ANSWER_S, lambda: _keys()._internal_kv_list(_MARK + beginning))
        nodes: dict[str, set[str]] = {}
        for name in names:
            key, _, node = name.decode().removeprefix(_MARK).rpartition(" ")
            nodes.setdefault(key, set()).add(node)
        return nodes

    def free_cpus(self) -> int:
        """Return how many CPUs of the cluster run nothing.

        Raises:
            WorkerError: As of `within`.
            Exception: What Ray raises.
        """
        free = self.within(ANSWER_S, lambda: self.ray.available_resources())
        return int(free.get("CPU", 0))

    def only_on(self, node: str) -> Any:
        """Return the scheduling strategy of what runs on one node, or not at all."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415  optional, as Ray

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def close(self) -> None:
        """Disconnect, unless others use the connection, or the user's program has made it.

        It takes some seconds at most: what a head that says nothing keeps longer goes on in a thread.
        """
        self.hurry()
        if _CONNECTING.acquire(timeout=_END_S):
            try:
                self._leave()
            finally:
                _CONNECTING.release()
        else:  # another thread waits for a head that does not answer
            threading.Thread(target=self._leave_later, name="farm close", daemon=True).start()

    def _leave_later(self) -> None:
        with _CONNECTING:
            self._leave()

    def _leave(self) -> None:
        """Use the connection no more, and end it if no other does; called with the lock held."""
        if not self._own or self._number != _SHARED.number or not self.ray.is_initialized():
            return
        if self._is_the_users():
            return
        self._own = False
        _SHARED.users -= 1
        if _SHARED.users > 0 and not self._silent:
            return
        _SHARED.farm = ""
        end = threading.Thread(target=self.ray.shutdown, name="farm end", daemon=True)
        _SHARED.ending = end
        end.start()
        if not self._silent:  # a head that has not answered before does not answer this, either
            end.join(_END_S)

    def _is_the_users(self) -> bool:
        """Return whether the user's program has connected since this connection has ended."""
        try:
            return self.within(ANSWER_S, self._identity) != _SHARED.identity
        except Exception as error:  # noqa: BLE001  whatever Ray raises where its cluster is gone
            logger.debug("the connection to the farm is lost: %s", reason_of(error))
            return False


@contextmanager
def marked(key: str) -> Generator[None]:
    """Let the sender of a job see that it runs, while the block does; on a node. See `Connection.marks`.

    A process that is killed leaves its mark, some bytes in the head's memory. So the mark names the node: once that is lost,
    the job does not run there.
    """
    if not key:
        yield
        return
    name = ""
    try:
        name = f"{_MARK}{key} {node_here()}"
        _keys()._internal_kv_put(name, b"1")
    except Exception as error:  # noqa: BLE001  the head does not answer: its sender may compile it, too
        logger.debug("a job is not marked: %s", reason_of(error))
    try:
        yield
    finally:
        if name:
            _unmark(name)


def _keys() -> Any:
    """Return Ray's functions for the table of keys that the head has."""
    from ray.experimental import internal_kv  # noqa: PLC0415  optional, as Ray

    return internal_kv


def _unmark(name: str) -> None:
    try:
        _keys()._internal_kv_del(name)
    except Exception as error:  # noqa: BLE001  as of `marked`
        logger.debug("the mark of a job stays: %s", reason_of(error))


def node_here() -> str:
    """Return what the cluster calls the node that this process, one of Ray's, runs on."""
    import ray  # noqa: PLC0415  optional; a process of Ray has it

    return str(ray.get_runtime_context().get_node_id())


def reason_of(error: BaseException) -> str:
    """Return what Ray raised as one line: the heading and the text after it; of a server's traceback, the last line only."""
    heading, _, rest = f"{type(error).__name__}: {error}".partition("\n")
    if not heading.rstrip().endswith(":"):
        return one_line(heading)
    if rest.lstrip().startswith("Traceback"):
        rest = rest.rstrip().rpartition("\n")[2]
    return one_line(f"{heading.rstrip()} {one_line(rest)}")


def _imported(farm: str, option: str) -> Any:
    try:
        with patient(farm):
            import ray  # noqa: PLC0415  optional, 240 MB, and takes a second
    except ImportError as error:
        raise OptionError(
            f"option {option} is {farm!r}, and Ray is not installed; run: pip install 'inductor-plugin[ray]'"
        ) from error
    return ray
