"""A cache that reads and writes a remote in the background. A read is waited for up to a limit, a write follows its decision."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping

from inductor_plugin.cache.remote.amounts import Amounts
from inductor_plugin.cache.remote.answer import Answer, reason_of, tell_local, tell_of, tell_unsent
from inductor_plugin.cache.remote.chain import KnownChains
from inductor_plugin.cache.remote.ending import before_exit
from inductor_plugin.cache.remote.exchange import Exchange, is_worth_sending
from inductor_plugin.cache.remote.files import Opener, WatchedFiles, WriteRefusedError, open_files
from inductor_plugin.cache.remote.health import PAUSES_S, Health, answered, failed, unusable
from inductor_plugin.cache.remote.lookup import Lookup
from inductor_plugin.cache.remote.name import Place
from inductor_plugin.cache.remote.options import RemoteOptions
from inductor_plugin.cache.remote.questions import Questions
from inductor_plugin.cache.store import Store
from inductor_plugin.cache.trust.keys import open_signer
from inductor_plugin.errors import CacheError, warn_once, without_user

logger = logging.getLogger(__name__)

_BATCH = 64
"""Records that are asked for together."""
_READ_STEPS, _WRITE_STEPS, _SLACK_S = 3, 30, 1.0
"""Requests one after the other, each up to its limit, and seconds more after which the client of the store is taken for hung.

A request that begins late, or has a longer limit, as a kernel has, ends this time later: with its own limit.
"""
_TRIES = 3
"""Failures after which a record is not written again, while others are."""


class RemoteTier:
    """A remote behind one cache. One daemon thread talks to it; all methods may be called from any thread.

    After a fork, the child's own thread starts with the first question.
    """

    def __init__(self, store: Store, options: RemoteOptions, opener: Opener = open_files) -> None:
        """Use a remote; nothing is opened, imported or started before there is a question.

        Args:
            store: The cache.
            options: The remote.
            opener: Opens its file system, in the background: some look for credentials on the network.
        """
        self._store = store
        self._options = options
        self._opener = opener
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._health = Health()
        self._exchange: Exchange | None = None
        self._writes = self._options.writes
        self._questions = Questions()
        self._unsent: dict[Place, None] = {}
        self._chains = KnownChains()
        self._tries: Counter[Place] = Counter()
        self._late_at = math.inf  # when what the thread does now has taken too long
        self._closed = self._drained = self._writing = self._registered = False
        self._expired: dict[Place, None] = {}  # whose kernels no machine can fetch any more
        self._thread: threading.Thread | None = None
        self._amounts = Amounts()

    @property
    def is_open(self) -> bool:
        """Whether its file system has been opened in this process."""
        return self._exchange is not None and os.getpid() == self._pid

    def look_up(self, environment: str, op: str, digest: str) -> Lookup | None:
        """Ask for a record in the background; None if it was asked for before, or nothing is asked now."""
        self._after_fork()
        place = Place(environment, op, digest)
        with self._changed:
            if self._questions.is_asked(place) or self._closed or not self._may_ask():
                return self._questions.get(place)
            question = self._questions.add(place)
            if self._wake():
                return question
            self._questions.dismiss([place])
        return None

    def wait(self, question: Lookup, limit_s: float) -> bool:
        """Wait for an answer; return whether there is one. What comes later is in the cache, too."""
        started = time.monotonic()
        in_time = question.done.wait(max(0.0, min(limit_s, self._options.timeout_s)))
        with self._changed:
            self._amounts += Amounts(waited_ms=1e3 * (time.monotonic() - started))
        return in_time

    def send(self, environment: str, op: str, digest: str) -> None:
        """Write what the cache knows of a record, in the background; where no thread can be started, with the next one."""
        self._after_fork()
        with self._changed:
            if is_late := self._writes and self._closed:
                self._amounts += Amounts(unsent=1)
            elif self._writes:
                self._unsent[Place(environment, op, digest)] = None
                self._drained = False
                self._wake()
        if is_late:
            self._count(Amounts())
            tell_unsent(1, self._options.url, "decided after the end")

    def drain(self, waited_s: float = 0.0) -> None:
        """Wait until all records are written, for the limit at most; what is left is counted, and stays in the cache.

        What was written before is read back, and written again where another machine has replaced it (`Exchange.overwritten`);
        kernels that had expired in the remote are written if they have been built here meanwhile.

        Args:
            waited_s: Seconds of the limit that are over.
        """
        if os.getpid() != self._pid:
            return
        ends = time.monotonic() + self._options.timeout_s - waited_s
        with self._changed:
            if self._closed or self._drained:
                return
            self._drained = True
            if self._writes:
                self._unsent |= self._expired
                self._expired.clear()
            self._changed.notify_all()
            while self._is_busy and not self._health.is_local_only:
                left_s = ends - time.monotonic()
                if left_s <= 0 or self._thread is None or not self._thread.is_alive():
                    break
                self._changed.wait(timeout=left_s)

    @property
    def _is_busy(self) -> bool:
        """Whether a drain has something to wait for; called with the lock held."""
        return bool(self._unsent) or self._writing or self._is_unconfirmed

    @property
    def _is_unconfirmed(self) -> bool:
        """Whether editions are to be read back once more before the process ends; called with the lock held."""
        return self._drained and self._exchange is not None and self._exchange.is_unconfirmed

    def close(self) -> None:
        """Drain, and ask and write nothing more; what is being answered is waited for within the same limit."""
        if os.getpid() != self._pid:
            return
        ends = time.monotonic() + self._options.timeout_s
        try:
            self.drain()
        finally:
            with self._changed:
                first, self._closed = not self._closed, True
                left = len(self._unsent) + self._writing
                questions = self._questions.open
                self._changed.notify_all()
        for question in questions:
            question.finish(hit=False)
        if first:
            self._count(Amounts(unsent=left))
        if first and left:
            limit = f"not written within {self._options.timeout_s:g} s"
            tell_unsent(left, self._options.url, self._health.reason or limit)
        if self._thread is not None:  # it still counts its last answer in the cache
            self._thread.join(max(0.0, ends - time.monotonic()))

    def _may_ask(self) -> bool:
        """Return True if the remote is asked now; called with the lock held."""
        now = time.monotonic()
        if now > self._late_at and self._health.may_ask(now):
            # A client that cannot be ended is not started again and again.
            self._health = Health(len(PAUSES_S))
            self._fail("it does not answer, and its client cannot be interrupted")
        return self._health.may_ask(now)

    def _wake(self) -> bool:
        """Let the thread look for work, started with the first; called with the lock held. Return False if it cannot be started."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._loop, name="inductor-plugin-remote", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system's limit of threads
                logger.debug("the remote is not asked: %s", error)
                return False
            self._thread = thread
            if not self._registered:
                self._registered = True
                before_exit(weakref.WeakMethod(self.drain))
        self._changed.notify_all()
        return True

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._late_at = math.inf
                self._changed.notify_all()
                while not (work := self._next()):
                    if self._closed:
                        return
                    self._changed.wait(timeout=self._pause_s())
                steps = _READ_STEPS if self._questions.open else _WRITE_STEPS
                self._late_at = time.monotonic() + _SLACK_S + steps * self._options.timeout_s
            self._guarded(work)

    def _begins(self, limit_s: float) -> None:
        """Give a request its time."""
        with self._changed:
            self._late_at = max(self._late_at, time.monotonic() + _SLACK_S + limit_s)

    def _next(self) -> Callable[[], None] | None:
        """Return what to do now: questions first; called with the lock held."""
        now = time.monotonic()
        if batch := self._questions.open[:_BATCH]:
            if self._health.may_ask(now):
                return lambda: self._answer(batch)
            return lambda: self._dismiss(batch)
        if self._unsent and not self._closed and self._health.may_ask(now):
            place = next(iter(self._unsent))
            return lambda: self._publish(place)
        if self._is_unconfirmed and not self._closed and self._health.may_ask(now):
            return self._confirm
        return None

    def _pause_s(self) -> float | None:
        """Return how long there is nothing to do, None for until something comes; called with the lock held."""
        is_idle = not (self._unsent or self._is_unconfirmed)
        if is_idle or self._closed or self._health.is_unusable:
            return None
        return max(0.01, self._health.retry_at - time.monotonic())

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the border around one exchange: nothing may end the thread
            logger.debug("remote exchange failed", exc_info=True)
            with self._changed:
                self._fail(reason_of(error))
                questions = self._questions.open
            self._dismiss(questions)

    def _opened(self) -> Exchange:
        """Return the exchange, opened once.

        Raises:
            CacheError: It cannot be opened in this process.
        """
        if self._exchange is None:
            try:
                files = WatchedFiles(self._opener(self._options.url), self._begins)
                signer = open_signer(self._options.signing_key) if self._options.kernels else None
            except CacheError as error:
                warn_once(logger, f"the remote cache is not used: {error}")
                with self._changed:  # what waits is counted at the end
                    self._health = unusable(str(error))
                    self._changed.notify_all()
                raise
            self._exchange = Exchange(
                files,
                self._store,
                kernels=self._options.kernels,
                signer=signer,
                source=without_user(self._options.url),
            )
        return self._exchange

    def _answer(self, batch: list[Lookup]) -> None:
        try:
            exchange = self._opened()
        except CacheError:
            self._dismiss(batch)
            return
        left, failures = {each.place: each for each in batch}, 0
        try:
            for answers in exchange.fetch_parts([*left], self._options.timeout_s):
                failures += sum(answer.error is not None for answer in answers.values())
                self._take(answers, is_gone=failures == len(batch))
                for place, answer in answers.items():
                    left.pop(place).finish(hit=answer.hit)
        except (OSError, CacheError) as error:  # of the cache: what a remote cannot do is an answer
            logger.debug("what was asked for is not in the cache: %s", error)
        self._dismiss([*left.values()])
        self._count(Amounts(failures=failures))

    def _take(self, answers: Mapping[Place, Answer], *, is_gone: bool) -> None:
        """Store answers, and close their questions; ``is_gone`` says that nothing of all that was asked for together had one."""
        tell_of(answers.values(), without_user(self._options.url))
        errors = {place: each.error for place, each in answers.items() if each.error is not None}
        with self._changed:
            for place, answer in answers.items() if self._writes else ():
                self._chains.add(place, answer.chain)
                if answer.expired:
                    self._expired[place] = None
            self._questions.close([*answers])
            self._questions.dismiss([*errors], counted=not is_gone)
            if is_gone:
                self._fail(reason_of(next(iter(errors.values()))))
            else:
                self._health = answered()

    def _dismiss(self, batch: list[Lookup]) -> None:
        """Leave questions without an answer; they may be asked again."""
        with self._changed:
            self._questions.dismiss([each.place for each in batch])
        for each in batch:
            each.finish(hit=False)

    def _publish(self, place: Place) -> None:
        with self._changed:
            known = self._chains.take(place)
            # What is sent meanwhile is sent again.
            self._writing = self._unsent.pop(place, True) is None
        try:
            record = self._store.record(*place)
            if record is not None and is_worth_sending(record):
                self._opened().publish(record, self._options.timeout_s, known)
                with self._changed:
                    self._health = answered()
        except (CacheError, ValueError, RecursionError) as error:  # of the cache's own entry
            logger.debug("%s is not sent: %s", place, error)
            with self._changed:
                if self._health.is_unusable:  # counted once, by an end in between, too
                    self._writing, self._unsent[place] = False, None
        except OSError as error:
            self._refused(place, error)
        finally:
            with self._changed:
                self._writing = False
        self._count(Amounts())

    def _confirm(self) -> None:
        """Read back what was written, and write again what another machine has replaced."""
        with self._changed:
            self._writing = True
        exchange = self._opened()
        try:
            lost = exchange.overwritten(self._options.timeout_s)
            with self._changed:
                self._health = answered()
                self._unsent |= dict.fromkeys(lost)
        except OSError as error:
            with self._changed:
                self._fail(reason_of(error))
                self._amounts += Amounts(failures=1)
        finally:
            with self._changed:
                self._writing = False
        self._count(Amounts())

    def _refused(self, place: Place, error: OSError) -> None:
        """Count that a record could not be written; it goes to the end of the queue, unless nothing may be written."""
        url = without_user(self._options.url)
        if isinstance(error, WriteRefusedError):
            with self._changed:
                self._writes = False
                self._amounts += Amounts(unsent=1 + len(self._unsent.keys() - {place}))
                self._unsent.clear()
            text = f"{url} is only read from now on: {reason_of(error)}; allow writing, or set remote_write=off"
            warn_once(logger, text, f"remote {url}")
            return
        with self._changed:
            self._tries[place] += self._health.failures == 0  # else the fault is not the record's
            self._fail(reason_of(error))
            self._amounts += Amounts(failures=1)
            is_left = self._tries[place] >= _TRIES
            if is_left:
                self._amounts += Amounts(unsent=1)
            else:
                self._writing, self._unsent[place] = False, None
        if is_left:
            text = f"{url} takes other records, and not {place.op}/{place.digest[:12]} ({reason_of(error)}); it stays in the cache"
            warn_once(logger, text, f"remote refuses a record {url}")

    def _fail(self, reason: str) -> None:
        """Count a failure, and warn once if only the local cache is used from now on; called with the lock held."""
        self._health = failed(self._health, time.monotonic(), reason)
        if self._health.is_local_only:
            tell_local(self._options.url, reason)
        self._changed.notify_all()

    def _count(self, amounts: Amounts) -> None:
        """Add to the counters of the cache, with what has gone over the line."""
        if self._exchange is not None:
            amounts += self._exchange.take_amounts()
        with self._changed:
            total, self._amounts = self._amounts + amounts, Amounts()
        self._store.add_counts(**total.counters())

    def _after_fork(self) -> None:
        """Begin anew in a forked child: the parent's thread and connections are not its own."""
        if os.getpid() != self._pid:
            self._begin()
