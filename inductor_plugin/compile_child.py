"""What a compile worker does: build shared libraries and Triton cubins. It never touches a GPU."""

from __future__ import annotations

import hashlib
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from inductor_plugin import elf, resources
from inductor_plugin.cache import Resources
from inductor_plugin.config import process_environment
from inductor_plugin.failure import says_no_memory
from inductor_plugin.jobs import (
    Compiled,
    CompileJob,
    CppCompileJob,
    CppSource,
    Event,
    Status,
    TritonCompileJob,
)

Emit = Callable[[Event], None]

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
_FIGURES = re.compile(r"ptxas info\b|\s+\d+ bytes stack frame,")
"""What ptxas says of kernels that compile."""
_LAST_LINES = 12


def run(job: CompileJob, emit: Emit) -> list[Compiled]:
    """Compile one job; say what is compiled next, so that the parent's clock starts again."""
    if isinstance(job, TritonCompileJob):
        return [_compile_triton(job, emit)]
    return _compile_cpp(job, emit)


def unique_symbol(source: CppSource) -> str:
    """Return the name a kernel's C function gets, so that many fit into one library."""
    return re.sub(r"\W", "_", f"{source.symbol}_{source.key[:16]}")


def one_unit(sources: Sequence[CppSource]) -> str:
    """Return one translation unit with all kernels: includes first, each body in a namespace.

    A C function in two namespaces is still one function to the linker, hence the new names.
    """
    includes: dict[str, None] = {}
    bodies: list[str] = []
    for source in sources:
        includes.update(dict.fromkeys(line.strip() for line in _INCLUDE.findall(source.source)))
        name = namespace(source)
        body = _renamed(source, _INCLUDE.sub("", source.source))
        bodies.append(f"namespace {name} {{\n{body}\n}}  // namespace {name}\n")
    return "\n".join([*includes, *bodies])


def namespace(source: CppSource) -> str:
    """Return the C++ namespace of a kernel that shares a unit with others; it is in mangled names."""
    return f"unit_{unique_symbol(source)}"


def _renamed(source: CppSource, text: str) -> str:
    return re.sub(rf"\b{re.escape(source.symbol)}\b", unique_symbol(source), text)


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
        alone.extend(_build(job, [source], _renamed(source, source.source)))
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
    found = resources.of_unit(output, list(names.values()))
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


def last_lines(output: str) -> str:
    """Return the lines of a compiler's output with an error in them, or simply the last ones."""
    lines = [line for line in output.splitlines() if line.strip() and not _FIGURES.match(line)]
    # g++ and cudafe write "error:", nvcc "nvcc error   :", ptxas "ptxas fatal   :".
    errors = [line for line in lines if re.search(r"\b(error|fatal)\s*:", line)]
    return "\n".join((errors or lines)[-_LAST_LINES:])


def _compile_triton(job: TritonCompileJob, emit: Emit) -> Compiled:
    """Compile one Triton kernel into Triton's own cache; what it raises, the parent turns round."""
    from inductor_plugin import lowering_runner  # imports torch, which C++ kernels do without

    lowering_runner.load_inductor()
    emit(Event("start", job.key))
    started = time.monotonic()
    taken = lowering_runner.compile_triton(job)
    elapsed_s = time.monotonic() - started
    return Compiled(key=job.key, status="ok", elapsed_s=elapsed_s, resources=taken)
