"""Jobs of a compile worker: build shared libraries and Triton cubins, without using a GPU."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from inductor_plugin.cache import Resources
from inductor_plugin.config import process_environment
from inductor_plugin.kernels import elf
from inductor_plugin.kernels.cuobjdump import of_unit
from inductor_plugin.kernels.unit import (
    CppSource,
    namespace,
    single_unit,
    unique_symbol,
    with_unique_name,
)
from inductor_plugin.worker.failure import last_lines, says_no_memory
from inductor_plugin.worker.jobs import (
    Compiled,
    CompileJob,
    CppCompileJob,
    Event,
    Status,
    TritonCompileJob,
)

Emit = Callable[[Event], None]

_SHORTAGES = tuple(
    os.strerror(code)
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN)
)
"""What a compiler says that lacks disk, files or processes."""


def run(job: CompileJob, emit: Emit) -> list[Compiled]:
    """Compile one job; reports each kernel before it is compiled, so that the parent's limit restarts."""
    if isinstance(job, TritonCompileJob):
        return [_compile_triton(job, emit)]
    return _compile_cpp(job, emit)


def _compile_cpp(job: CppCompileJob, emit: Emit) -> list[Compiled]:
    """Compile all kernels as one unit; if that fails, each kernel alone, so that only bad ones fail."""
    if len(job.sources) > 1:
        emit(Event("start"))
        together = _build(job, job.sources, single_unit(job.sources))
        if all(compiled.status == "ok" for compiled in together):
            return together
    alone: list[Compiled] = []
    for source in job.sources:
        emit(Event("start", source.key))
        alone.extend(_build(job, [source], with_unique_name(source, source.source)))
    return alone


def _build(job: CppCompileJob, sources: Sequence[CppSource], text: str) -> list[Compiled]:
    """Run the compiler on one translation unit; the parent kills the process group at its limit."""
    started = time.monotonic()
    folder = Path(job.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\n".join((*job.command, text)).encode()).hexdigest()[:32]
    path, library = folder / f"{digest}.cpp", folder / f"{digest}.so"
    path.write_text(text, encoding="utf-8")
    words = {"{source}": str(path), "{output}": str(library)}
    code, output = _call([_filled(argument, words) for argument in job.command], folder)
    succeeded = code == 0 and library.is_file()
    reason = "" if succeeded else last_lines(output) or f"the compiler ended with exit code {code}"
    status: Status = "ok" if succeeded else _failure(code, output)
    elapsed_s = (time.monotonic() - started) / len(sources)
    resources = _resources(sources, output, library) if succeeded else {}
    return [
        Compiled(
            key=source.key,
            status=status,
            reason=reason,
            library=str(library) if succeeded else None,
            symbol=unique_symbol(source),
            elapsed_s=elapsed_s,
            resources=resources.get(source.key),
        )
        for source in sources
    ]


def _resources(sources: Sequence[CppSource], output: str, library: Path) -> dict[str, Resources]:
    """Return the GPU resources of each kernel, by its key; empty if the output is not nvcc's.

    ptxas prints registers and spills. A kernel's source may export the bytes of shared memory and the
    threads of a block as ``SYMBOL_block``. A kernel alone in its unit is not in a namespace, and all
    functions of the unit belong to it.
    """
    names = {source.key: namespace(source) if len(sources) > 1 else "" for source in sources}
    usage = of_unit(output, list(names.values()))
    if not usage:
        return {}
    try:
        blocks = elf.exported(library, [f"{source.symbol}_block" for source in sources])
    except ValueError:
        blocks = {}
    resources: dict[str, Resources] = {}
    for source in sources:
        if (registers := usage.get(names[source.key])) is not None:
            block = blocks.get(f"{source.symbol}_block", ())
            shared, threads = block if len(block) == 2 else (None, None)
            resources[source.key] = replace(registers, shared_bytes=shared, threads=threads)
    return resources


def _call(command: Sequence[str], folder: Path) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except FileNotFoundError as error:
        return 127, f"the compiler is missing: {error}"
    return done.returncode, done.stdout.decode(errors="replace")


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of a compiler.

    Its temporary files are in ``folder``, which goes with the build: a compiler that is killed leaves them. Variables
    that add flags to nvcc are left out, because keys do not contain them.
    """
    extra = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")
    variables = {name: text for name, text in process_environment().items() if name not in extra}
    return {**variables, "TMPDIR": str(folder)}


def _filled(argument: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        argument = argument.replace(word, value)
    return argument


def _failure(code: int, output: str) -> Status:
    """Return what a failed compiler means for its kernel: it is not at fault for what the machine did."""
    # g++ writes "Killed signal", nvcc "died due to signal 9 (Kill signal)"; a shell adds 128 to a signal.
    killed = re.search(r"\bKill(ed)? signal\b", output) or code in (
        -signal.SIGKILL,
        128 + signal.SIGKILL,
    )
    if killed or says_no_memory(output):
        return "out_of_memory"
    if any(words in output for words in _SHORTAGES):
        return "skipped"
    return "crashed" if code < 0 else "compile_failed"


def _compile_triton(job: TritonCompileJob, emit: Emit) -> Compiled:
    """Compile one Triton kernel into Triton's own cache; exceptions are converted by the parent."""
    from inductor_plugin.worker.child import (
        inductor,
    )  # imports torch, which C++ kernels do not need

    inductor.load_compiler()
    emit(Event("start", job.key))
    started = time.monotonic()
    resources = inductor.compile_triton(job)
    elapsed_s = time.monotonic() - started
    return Compiled(key=job.key, status="ok", elapsed_s=elapsed_s, resources=resources)
