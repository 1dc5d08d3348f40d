"""The contract of a device: what the plugin has to know of a type of device to tune on it, and who has registered which.

    npu = "my_npu.plugin:DEVICE"     an entry point of a package, group ``inductor_plugin.devices``
                 │ or register("npu", "my_npu.plugin:DEVICE")
                 ▼
    Device(facts, versions, timer, ...)     loaded in the user's process and in the benchmark worker

What torch's own `DeviceInterface` says already (synchronizing, events, how many devices) is not asked for again. CPU and CUDA
are described in the same way, in `worker/devices/`; docs/own-device.md goes through an example. No torch.
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from inductor_plugin.errors import DeviceError, RegistrationError, warn_once
from inductor_plugin.problem import Problem
from inductor_plugin.problem.target import Target
from inductor_plugin.template import Json, Template

if TYPE_CHECKING:
    from inductor_plugin.worker.event_timer import EventTimer

__all__ = [
    "DEVICES", "Device", "Devices", "EventTimer", "Json", "Problem", "Target", "Timer", "register",
]  # fmt: skip

logger = logging.getLogger(__name__)

GROUP = "inductor_plugin.devices"
"""Group of entry points: the name is torch's type of device, the value a `Device` or a function that returns one."""
BUILT_IN = ("cpu", "cuda")
"""Described here. An AMD GPU is of type ``cuda`` for torch; a package that describes it registers ``hip``."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_REFERENCE = re.compile(r"[\w.]+:[\w.]+")

_T = TypeVar("_T")


BoundCall = Callable[[], object]
"""A kernel with its operands, or a whole graph: calling it computes. What a timer measures."""


class Timer(Protocol):
    """Measures calls on one device."""

    @property
    def disturbed(self) -> bool:
        """Whether other work on the machine has prolonged the last sample, as far as it is known."""
        ...

    @property
    def host_bound(self) -> bool:
        """Whether the last sample holds time of the host, which was not hidden behind other work of the device."""
        ...

    @property
    def host_ms(self) -> float:
        """Milliseconds the host took to launch a call of the last sample; 0 where the host computes it."""
        ...

    def conditions(self) -> dict[str, object]:
        """Return how the device is now, for a record's provenance."""
        ...

    def warm(self, call: BoundCall) -> None:
        """Bring the device to the clock at which it computes."""
        ...

    def prepare(self) -> None:
        """Allocate what a sample needs, so that no sample does."""
        ...

    def release(self) -> None:
        """Free it."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has finished; raises errors of earlier kernels."""
        ...

    def sample(self, call: BoundCall, repeats: int, *, cold: bool) -> float:
        """Return milliseconds per call: the mean of ``repeats`` calls; of cold ones the median, or the shortest."""
        ...


def _unknown(_device: str) -> None:
    return None


def _nothing(*_: object) -> Mapping[str, Json]:
    return {}


def _unrefused(_problem: Problem, _template: str) -> str:
    return ""


def _silent(_device: str) -> str:
    return ""


@dataclass(frozen=True)
class Device:
    """What a type of device has to tell; only the first three have no default.

    The functions get a device as text, such as ``npu:0``. They may import torch; none is called where nothing is compiled for
    the device.

    Attributes:
        facts: Returns what has to be equal for timings to be comparable: ``name``, at least, and what distinguishes two
            devices of that name (cores, memory, clock limits). Part of every key.
        versions: Returns the versions of the software besides torch that timings depend on: driver, kernel libraries,
            compilers. Part of every key.
        timer: Returns the timer of a device, in the benchmark worker. `EventTimer` serves any device
            that has a `DeviceInterface`, and may be derived from.
        target: Returns the figures by which candidates are ranked, and from which the report draws the roofline of environments
            whose device has their ``device_name``; None if there are none.
        numerics: Returns the settings of this process that change a library kernel's results. Part of every key.
        conditions: Returns how a device is now, for the provenance of records.
        templates: Returns the templates of the device's own kernels, which are registered with it.
        refusal: Returns why a template's kernels are not offered for a problem, empty if they may be. The library kernels
            and Inductor's own choices are not asked about.
        compared: Whether a candidate's numbers are compared with the library kernel's. False only where the device cannot
            compute the comparison.
        turn: Returns a name of the physical device, under which one process of the machine measures at a time (a UUID);
            empty where measurements do not disturb each other. None names it by type and index.
        scarcity: Returns why a second process may not get to a device, empty if it should. Only then it is tried before
            anything is compiled.
        start: Called once in the benchmark worker. None sets the device and synchronizes.
        on_host: Whether it computes with the host's cores, so that nothing is measured while something is compiled.
        draws: Whether random operands are drawn on the device, by `torch.Generator`; if not, on the CPU, and copied.
        triton: Whether `TritonSource` candidates of templates are offered: Inductor and Triton generate code for it.
        kept_problems: Problems whose operands the benchmark worker keeps.
        warmup: Unmeasured calls of screening.
        sample_ms: Milliseconds that a sample takes at least, in screening and in the finals.
    """

    facts: Callable[[str], Mapping[str, Json]]
    versions: Callable[[], Mapping[str, str]]
    timer: Callable[[str], Timer]
    target: Callable[[str], Target | None] = _unknown
    numerics: Callable[[], Mapping[str, Json]] = _nothing
    conditions: Callable[[str], Mapping[str, Json]] = _nothing
    templates: Callable[[], Sequence[Template]] = tuple
    refusal: Callable[[Problem, str], str] = _unrefused
    compared: bool = True
    turn: Callable[[str], str] | None = None
    scarcity: Callable[[str], str] = _silent
    start: Callable[[str], None] | None = None
    on_host: bool = False
    draws: bool = False
    triton: bool = False
    kept_problems: int = 1
    warmup: int = 3
    sample_ms: tuple[float, float] = (0.2, 0.5)


@dataclass(frozen=True)
class DeviceSource:
    """Where a device is described.

    Attributes:
        name: Torch's type of the device, or ``hip``.
        reference: ``module:attribute`` of a `Device`, or of a function that returns one.
        origin: Who says so, for people.
    """

    name: str
    reference: str
    origin: str

    def __str__(self) -> str:
        return f"device {self.name!r} ({self.origin})"

    def load(self) -> Device:
        """Import the device.

        Raises:
            DeviceError: It cannot be imported, or is no `Device`.
        """
        try:
            value = referred(self.reference)
            device = value if isinstance(value, Device) else value()
        # The border to a package's code, whose import may raise anything.
        except Exception as error:
            logger.debug("%s cannot be loaded", self, exc_info=True)
            raise DeviceError(
                f"{self} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(device, Device):
            kind = type(device).__name__
            raise DeviceError(
                f"{self} is a {kind}, not an inductor_plugin.device.Device or a function that returns one"
            )
        return device

    def ask(self, what: str, function: Callable[..., _T], *arguments: object) -> _T:
        """Call a function of the device.

        Raises:
            DeviceError: It raised.
        """
        try:
            return function(*arguments)
        except Exception as error:  # the border to a package's code, as in `load`
            logger.debug("%s: %s raised", self, what, exc_info=True)
            called = f"{what}({', '.join(map(repr, arguments))})"
            raise DeviceError(f"{self}: {called} raised {type(error).__name__}: {error}") from error


class Devices:
    """The devices that packages have registered, each loaded when it is first asked for. Safe for threads."""

    def __init__(self, points: Callable[[], Iterable[DeviceSource]]) -> None:
        """Serve the sources that a function lists; it is called once."""
        self._points = points
        self._lock = threading.RLock()
        self._sources: dict[str, DeviceSource] | None = None
        self._loaded: dict[str, Device] = {}
        self._faults: dict[str, str] = {}

    def register(self, name: str, reference: str, origin: str = "") -> Device:
        """Register a device by hand, instead of an entry point of its name.

        Args:
            name: Torch's type of the device, such as ``npu``; ``hip`` for AMD GPUs.
            reference: ``module:attribute`` of a `Device`, or of a function that returns one. The benchmark worker imports it,
                too, so it must not be in ``__main__``.
            origin: Who says so, for errors.

        Raises:
            RegistrationError: Name or reference are not valid, or the device does not load. Nothing is then changed.
        """
        source = DeviceSource(name, reference, origin or f"registered as {reference}")
        reason = why_not(source)
        if reason:
            raise RegistrationError(f"{source} cannot be registered: {reason}")
        try:
            device = source.load()
        except DeviceError as error:
            raise RegistrationError(str(error)) from error
        with self._lock:
            self._listed()[name] = source
            self._loaded[name] = device
            self._faults.pop(name, None)
        return device

    def unregister(self, name: str) -> None:
        """Forget a device; nothing where there is none."""
        with self._lock:
            self._listed().pop(name, None)
            self._loaded.pop(name, None)
            self._faults.pop(name, None)

    def get(self, name: str) -> Device | None:
        """Return a device, None if it is not described, or wrongly."""
        with self._lock:
            source = self._listed().get(name)
            if source is None or name in self._faults:
                return None
            if name not in self._loaded:
                try:
                    self._loaded[name] = source.load()
                except DeviceError as error:
                    self.give_up(name, str(error))
                    return None
            return self._loaded[name]

    def target(self, name: str, device: str) -> Target | None:
        """Return the figures of a device; None where it has none, is not described, or wrongly.

        Args:
            name: Under which it is registered.
            device: ``npu:0`` ...

        Raises:
            DeviceError: Its description is wrong.
        """
        described, source = self.get(name), self.source(name)
        if described is None or source is None:
            return None
        function = cast("Callable[..., Any]", described.target)  # a package's may return anything
        target = source.ask("target", function, device)
        if target is not None and not isinstance(target, Target):
            kind = type(target).__name__
            raise DeviceError(f"{source}: target({device!r}) is a {kind}, not a Target")
        return target

    def source(self, name: str) -> DeviceSource | None:
        """Return where a device is described."""
        with self._lock:
            return self._listed().get(name)

    def names(self) -> tuple[str, ...]:
        """Return the names of all devices that somebody describes, rightly or wrongly."""
        with self._lock:
            return tuple(sorted({*self._listed(), *self._faults}))

    def fault(self, name: str) -> str:
        """Return what is wrong with the description of a device, empty if nothing is known to be."""
        with self._lock:
            self._listed()
            return self._faults.get(name, "")

    def give_up(self, name: str, reason: str) -> None:
        """Leave a device to Inductor alone for the rest of this process, and log why."""
        with self._lock:
            if name in self._faults:
                return
            text = f"{reason}; mend, update or uninstall the package: until then Inductor alone serves the device"
            self._faults[name] = text
        warn_once(logger, text)

    def _listed(self) -> dict[str, DeviceSource]:
        if self._sources is None:
            self._sources = {}
            for source in self._points():
                self._list(source)
        return self._sources

    def _list(self, source: DeviceSource) -> None:
        """Take the source of an entry point; of two for a name none is taken, since neither is known to be meant."""
        assert self._sources is not None
        other = self._sources.pop(source.name, None)
        reason = why_not(source)
        if other is not None:
            reason = f"{other.origin} describes it, too; uninstall one of them"
        if reason or source.name in self._faults:
            self.give_up(source.name, f"{source} cannot be used: {reason}")
        else:
            self._sources[source.name] = source


def why_not(source: DeviceSource) -> str | None:
    """Return why a name or reference is not valid, None if they are."""
    if source.name in BUILT_IN:
        return f"{source.name!r} is built in; an AMD GPU is registered as 'hip'"
    if _NAME.fullmatch(source.name) is None:
        return "its name is not a type of device as torch writes it: lower-case letters, digits and underscores"
    if _REFERENCE.fullmatch(source.reference) is None:
        return f"{source.reference!r} is not of the form module:attribute"
    if source.reference.startswith("__main__:"):
        return "the benchmark worker cannot import __main__; move it to a module"
    return None


def entry_points() -> Iterable[DeviceSource]:
    """Yield the devices that the entry points of all installed packages name."""
    return (DeviceSource(*point) for point in installed(GROUP))


@functools.lru_cache(maxsize=1)
def _entry_points(path: tuple[str, ...]) -> Any:  # noqa: ARG001  the folders that are searched
    """Return the entry points of all packages: 7 ms, once for templates and devices, in a process's first compile."""
    # 40 ms to import if no other module has: not when this module is imported.
    from importlib.metadata import entry_points as listed  # noqa: PLC0415

    return listed()


def installed(group: str) -> Iterable[tuple[str, str, str]]:
    """Yield name, value and, for people, the origin of each entry point of a group, of all installed packages."""
    for point in _entry_points(tuple(sys.path)).select(group=group):
        package = f" of {point.dist.name} {point.dist.version}" if point.dist else ""
        yield point.name, point.value, f"entry point {point.name} = {point.value}{package}"


def referred(reference: str) -> Any:
    """Import what ``module:attribute`` names, and return it; raises what the import raises."""
    module, _, attribute = reference.partition(":")
    value: Any = importlib.import_module(module)
    for part in attribute.split("."):
        value = getattr(value, part)
    return value


DEVICES = Devices(entry_points)
"""Of this process."""


def register(name: str, reference: str) -> Device:
    """Register a device in this process by hand; see `Devices.register`."""
    return DEVICES.register(name, reference)


def __getattr__(name: str) -> Any:
    """Return `EventTimer`, which needs torch: it is imported when it is asked for."""
    if name == "EventTimer":
        return referred("inductor_plugin.worker.event_timer:EventTimer")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
