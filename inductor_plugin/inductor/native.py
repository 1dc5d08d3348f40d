"""Call sites in generated code, and the library behind them (`ops.native`).

The library is compiled once a machine, in the background while kernels are tuned.
"""

from __future__ import annotations

import logging
import math
import sysconfig
import threading
from pathlib import Path
from typing import Any

from torch._inductor.cpp_builder import get_cpp_compiler

from inductor_plugin.cache import Store
from inductor_plugin.config import Config
from inductor_plugin.errors import CacheError, WorkerError
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops.launch import LIBRARY_FILE
from inductor_plugin.ops.native import library, source
from inductor_plugin.tuning import scratch
from inductor_plugin.tuning.runtime import RUNTIME
from inductor_plugin.worker.jobs import Compiled, CppCompileJob

logger = logging.getLogger(__name__)

_LIMIT_S = 120.0
"""It takes a second; a machine may be busy."""
_SOURCE_FILE = "source.cpp"

_PREPARED: set[Path] = set()
_GUARD = threading.Lock()


def prepare(config: Config) -> None:
    """Have the library in a compile's cache soon; call sites wait for it.

    Args:
        config: The options of the compile.
    """
    store = RUNTIME.store(config)
    with _GUARD:
        if store.root in _PREPARED:
            return
        _PREPARED.add(store.root)
    if store.kernel(source.key().digest) is not None:
        return
    if why := why_not_compiled():
        library.fail(why)
        return
    done = threading.Event()
    library.expect(done)
    threading.Thread(
        target=_provide, args=(store, config, done), name="inductor-plugin-native", daemon=True
    ).start()


def provided(config: Config) -> str | None:
    """Return the library's digest once it is in a cache; None if it cannot be compiled, as `library.reason` says.

    Args:
        config: The options of the cache.
    """
    store, digest = RUNTIME.store(config), source.key().digest
    if store.kernel(digest) is None:
        if why := why_not_compiled():
            library.fail(why)
            return None
        _provide(store, config, threading.Event())
    return digest if store.kernel(digest) is not None else None


def declare_site(wrapper: Any, name: str, kernel: OpKernel, reads: int = 0, aux: int = 0) -> str:
    """Write a call site at the head of generated code, and return its name.

    Args:
        wrapper: Inductor's writer of the code.
        name: The buffer the call writes to; it names the call site.
        kernel: The operator and its constant arguments.
        reads: As in `ops.sites.site`.
        aux: Likewise.
    """
    counts = f", reads={reads}, aux={aux}" if reads or aux else ""
    call = f"inductor_plugin.ops.sites.site({kernel.op!r}, {kernel.args!r}{counts})"
    wrapper.add_import_once("import inductor_plugin.ops.sites")
    wrapper.add_import_once(f"launch_{name} = {call}")
    return f"launch_{name}"


def why_not_compiled() -> str | None:
    """Return why the library cannot be compiled here and what to install, None if it can."""
    return source.why_not_compiled(get_cpp_compiler)


def _provide(store: Store, config: Config, done: threading.Event) -> None:
    try:
        digest = source.key().digest
        with store.lock_kernel(digest, timeout_s=_LIMIT_S):
            if store.kernel(digest) is None:
                _build(store, config)
    except (CacheError, WorkerError, OSError) as error:
        library.fail(str(error))
    finally:
        if library.reason():
            logger.info("inductor-plugin: kernels are launched by Python: %s", library.reason())
        done.set()


def _build(store: Store, config: Config) -> None:
    """Compile the library before anything else that is queued, and keep it in the cache."""
    finished = threading.Event()
    results: list[Compiled] = []

    def take(compiled: list[Compiled]) -> None:
        results.extend(compiled)
        finished.set()

    command = source.command(get_cpp_compiler(), sysconfig.get_paths()["include"])
    with scratch.build_folder() as folder:
        pool = RUNTIME.compile_pool(config, "cuda")
        job = CppCompileJob((source.unit(),), command, str(folder), _LIMIT_S)
        pool.submit(job, take, rank=math.inf)
        finished.wait(2 * _LIMIT_S)
        compiled = results[0] if results else None
        if compiled is None or compiled.library is None:
            library.fail(f"it was not compiled: {compiled.reason if compiled else 'no answer'}")
            return
        files = {LIBRARY_FILE: Path(compiled.library), _SOURCE_FILE: source.text().encode()}
        store.put_kernel(source.key(), files, None)
