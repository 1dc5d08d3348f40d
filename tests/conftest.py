"""Fixtures for all tests, and what a test run refuses."""

from __future__ import annotations

import atexit
import gc
import itertools
import math
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

import inductor_plugin
from inductor_plugin.tuning import race, validity
from tests.support.ray_cluster import cluster
from tests.support.repository import REPOSITORY
from tests.support.tiers import options
from tests.support.warned import forget

_NUMBERS = itertools.count()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `tests.support.tiers.options`."""
    options.add_options(parser)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of workers that `-n auto` stands for."""
    return options.workers(config)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse to test another checkout than the one the tests lie in."""
    imported = Path(inductor_plugin.__file__).resolve().parent
    if imported != REPOSITORY / "inductor_plugin":
        pytest.exit(
            f"these tests belong to {REPOSITORY}, but inductor_plugin comes from {imported}; "
            "run `make test` here",
            returncode=3,
        )
    options.configure(config)
    if hasattr(config, "workerinput"):
        # Registered before torch's handlers, this runs after them: freeing the memory of a worker takes 5 s, and has no use.
        atexit.register(os._exit, 0)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Switch the garbage collector off while files are imported, and exempt what they create: else each full collection takes 0.5 s.

    The modules of torch that tests import later stay, too. 38 full collections in 500 s of lowering took 4 % of that time, so a fifth
    of them is left.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        young, middle, old = gc.get_threshold()
        gc.set_threshold(young, middle, 5 * old)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a device that is not there; ask for it only if a test does."""
    wanting = [item for item in items if item.get_closest_marker("gpu") or _wants_sm90(item)]
    if not wanting:
        return
    import torch

    there = torch.cuda.is_available()
    sm90 = there and torch.cuda.get_device_capability() == (9, 0)
    for test in wanting:
        if not there:
            test.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
        elif _wants_sm90(test) and not sm90:
            test.add_marker(pytest.mark.skip(reason="needs compute capability 9.0"))


def _wants_sm90(item: pytest.Item) -> bool:
    return item.get_closest_marker("sm90") is not None


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Take the plugin's variables away, keep its cache out of the user's home, let it warn again.

    Most tests need no folder: ``tmp_path`` would take a third of the 8 ms that pytest spends for each.
    """
    cache_home = tmp_path_factory.getbasetemp() / f"xdg-cache-{next(_NUMBERS)}"
    for variable in [name for name in os.environ if name.startswith("INDUCTOR_PLUGIN_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    # Whether a candidate wins is chance in most tests; one that does must not cost them a second compile.
    monkeypatch.setenv("INDUCTOR_PLUGIN_VERIFY_GRAPH", "off")
    forget()
    yield
    if cache_home.exists():
        shutil.rmtree(cache_home, ignore_errors=True)


@pytest.fixture(autouse=True)
def measured_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests run at the same time: what they disturb counts, and no gain has to be proven again, but where a test is about that."""
    if "test_disturbance" not in request.node.nodeid:
        monkeypatch.setattr(validity, "AGAIN_S", math.inf)
        monkeypatch.setattr(validity, "MOST_PROOFS", 0)
        monkeypatch.setattr(race, "RETAKE_S", 0.0)


@pytest.fixture
def cache_home(clean_environment: None) -> Path:
    """Return the folder, not there yet, in which the plugin's default cache of a test lies."""
    return Path(os.environ["XDG_CACHE_HOME"]) / "inductor_plugin"


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """Return a path for a plugin cache, not there yet."""
    return tmp_path / "plugin-cache"


@pytest.fixture
def inductor_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give this test an Inductor cache of its own, empty, and return its path."""
    folder = tmp_path / "inductor-cache"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
    return folder


@pytest.fixture
def few_objects() -> None:
    """Exempt what is there from full collections.

    The benchmark worker collects after each job, as a worker's small process can: 3 s in the process of all tests, of which hundreds of
    cases have nothing else that takes time. What a test leaves, it collects at its own end.
    """
    gc.freeze()


@pytest.fixture
def repository() -> Path:
    """Return the root of the checkout."""
    return REPOSITORY


@pytest.fixture
def fake_gpu(inductor_cache: Path) -> Iterator[None]:
    """Lower for two CUDA devices that are not there."""
    from tests.support import gpu

    with gpu.installed(devices=2):
        yield


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """Start Ray with three nodes of one CPU, and connect to it, which takes half a minute."""
    with cluster(3) as started:
        yield started


@pytest.fixture(scope="module")
def measuring_cluster() -> Iterator[Any]:
    """Start Ray with two nodes that are known to measure on this machine's CPU, and connect to it."""
    from inductor_plugin.worker.devices.lookup import facts_of
    from inductor_plugin.worker.farm.resource import resource_of

    with cluster(2, {resource_of(str(facts_of("cpu")["name"])): 1.0}) as started:
        yield started


@pytest.fixture(scope="module")
def ray_on_this_machine(ray_cluster: Any) -> str:
    """Return the option ``compile_farm`` for `ray_cluster`."""
    return f"ray:{ray_cluster.address}"


@pytest.fixture(scope="session", autouse=True)
def probed_instruction_set() -> None:
    """Probe it before the first test: torch keeps the answer for the process.

    In two runs of three a worker's later kernels were compiled without its flags, and failed. Which test brings that about is not known.
    """
    from torch._inductor import cpu_vec_isa

    cpu_vec_isa.pick_vec_isa()
