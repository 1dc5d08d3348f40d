"""What a compile worker does: build shared libraries and Triton cubins. It never touches a GPU."""

from __future__ import annotations

import hashlib
import re
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
    one_unit,
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


def run(job: CompileJob, emit: Emit) -> list[Compiled]:
    """Compile one job; say what is compiled next, so that the parent's clock starts again."""
    if isinstance(job, TritonCompileJob):
        return [_compile_triton(job, emit)]
    return _compile_cpp(job, emit)


def _compile_cpp(job: CppCompileJob, emit: Emit) -> list[Compiled]:
    """Compile all kernels as one unit; if that fails, each one alone, so that one costs one."""
    if len(job.sources) > 1:
        emit(Event("start"))
        together = _build(job, job.sources, one_unit(job.sources))
        if all(one.status == "ok" for one in together):
            return together
    alone: list[Compiled] = []
    for source in job.sources:
        emit(Event("start", source.key))
        alone.extend(_build(job, [source], with_unique_name(source, source.source)))
    return alone


def _build(job: CppCompileJob, sources: Sequence[CppSource], text: str) -> list[Compiled]:
    """Run the compiler on one translation unit. The parent's limit ends it, group and all."""
    started = time.monotonic()
    folder = Path(job.workdir)
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256("\n".join((*job.command, text)).encode()).hexdigest()[:32]
    path, library = folder / f"{digest}.cpp", folder / f"{digest}.so"
    path.write_text(text, encoding="utf-8")
    words = {"{source}": str(path), "{output}": str(library)}
    code, output = _call([_filled(argument, words) for argument in job.command], folder)
    good = code == 0 and library.is_file()
    reason = "" if good else last_lines(output) or f"the compiler ended with exit code {code}"
    status: Status = "ok" if good else _failure(output)
    elapsed_s = (time.monotonic() - started) / len(sources)
    taken = _resources(sources, output, library) if good else {}
    return [
        Compiled(
            key=source.key,
            status=status,
            reason=reason,
            library=str(library) if good else None,
            symbol=unique_symbol(source),
            elapsed_s=elapsed_s,
            resources=taken.get(source.key),
        )
        for source in sources
    ]


def _resources(sources: Sequence[CppSource], output: str, library: Path) -> dict[str, Resources]:
    """Return what each kernel takes of a GPU, by its key; nothing where no nvcc has said it.

    ptxas prints registers and spills. What a block takes at launch a kernel's source may export as
    ``SYMBOL_block``: bytes of shared memory, and threads. A kernel alone in its unit is in no
    namespace, and all functions there are its own.
    """
    names = {one.key: namespace(one) if len(sources) > 1 else "" for one in sources}
    found = of_unit(output, list(names.values()))
    if not found:
        return {}
    try:
        blocks = elf.exported(library, [f"{one.symbol}_block" for one in sources])
    except ValueError:
        blocks = {}
    taken: dict[str, Resources] = {}
    for one in sources:
        if (known := found.get(names[one.key])) is not None:
            block = blocks.get(f"{one.symbol}_block", ())
            shared, threads = block if len(block) == 2 else (None, None)
            taken[one.key] = replace(known, shared_bytes=shared, threads=threads)
    return taken


def _call(command: Sequence[str], folder: Path) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=_without_extra_flags(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except FileNotFoundError as error:
        return 127, f"the compiler is missing: {error}"
    return done.returncode, done.stdout.decode(errors="replace")


def _without_extra_flags() -> dict[str, str]:
    """Return this process's variables but those that add flags to nvcc: the key does not know them."""
    extra = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")
    return {name: text for name, text in process_environment().items() if name not in extra}


def _filled(argument: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        argument = argument.replace(word, value)
    return argument


def _failure(output: str) -> Status:
    # g++ writes "Killed signal", nvcc "died due to signal 9 (Kill signal)".
    killed = re.search(r"\bKill(ed)? signal\b", output)
    return "out_of_memory" if killed or says_no_memory(output) else "compile_failed"


def _compile_triton(job: TritonCompileJob, emit: Emit) -> Compiled:
    """Compile one Triton kernel into Triton's own cache; what it raises, the parent turns round."""
    from inductor_plugin.worker.child import inductor  # imports torch, which C++ kernels do without

    inductor.load_inductor()
    emit(Event("start", job.key))
    started = time.monotonic()
    taken = inductor.compile_triton(job)
    elapsed_s = time.monotonic() - started
    return Compiled(key=job.key, status="ok", elapsed_s=elapsed_s, resources=taken)
