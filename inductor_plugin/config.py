"""Every option, declared once; the module that reads the environment.

The parent process reads its options once and hands the frozen `Config` on. An explicit option wins
over its variable ``INDUCTOR_PLUGIN_<NAME>``, and the variable over the default.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from inductor_plugin.errors import OptionError
from inductor_plugin.option_value import PARSERS, Kind, switch

PREFIX = "INDUCTOR_PLUGIN_"
ENABLE_VARIABLE = PREFIX + "ENABLE"

_NONE: Mapping[str, object] = MappingProxyType({})


def default_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Return the cache directory of a process that names none.

    Args:
        environ: The variables to look at; this process's own by default.
    """
    variables = os.environ if environ is None else environ
    if named := variables.get(PREFIX + "CACHE_DIR"):
        return Path(named).expanduser()
    if base := variables.get("XDG_CACHE_HOME"):
        return Path(base).expanduser() / "inductor_plugin"
    return Path("~/.cache/inductor_plugin").expanduser()


def _how(
    kind: Kind,
    sentence: str,
    *,
    unit: str = "",
    choices: tuple[str, ...] = (),
    minimum: float = 0,
    code: bool = False,
) -> dict[str, Any]:
    """Return the metadata of one option; ``code`` says that it changes the generated code."""
    return {
        "kind": kind,
        "sentence": sentence,
        "unit": unit,
        "choices": choices,
        "minimum": minimum,
        "code": code,
    }


_AUTO = ("auto", "on", "off")
_GEMM_BACKENDS = ("ATEN", "TRITON", "CPP", "CUTLASS", "CUTEDSL", "NVGEMM", "CK", "CKTILE", "FLYDSL")


@dataclass(frozen=True)
class Config:
    """The options of one compile. Each field is described by its metadata; see docs/generate.py."""

    cache_dir: Path = field(
        default_factory=default_cache_dir,
        metadata=_how("folder", "Folder that keeps kernels, timings and decisions.", code=True),
    )
    gemm_backends: str = field(
        default="",
        metadata=_how(
            "list",
            "Backends to choose matrix products from; empty for Inductor's own list. Without `ATEN` "
            "a library kernel runs only where no other can.",
            choices=_GEMM_BACKENDS,
            code=True,
        ),
    )
    attention_backends: str = field(
        default="",
        metadata=_how(
            "list",
            "Backends to choose attention from; empty for all. The operator that was traced is always one of them.",
            choices=("FLASH", "EFFICIENT", "CUDNN", "TRITON", "CUTLASS"),
            code=True,
        ),
    )
    policy: Literal["tune", "cached", "pinned", "build"] = field(
        default="tune",
        metadata=_how(
            "choice",
            "`tune` measures what no record knows, `cached` uses records and measures nothing, "
            "`pinned` takes every decision from `pin_file`, `build` compiles all candidates and "
            "measures nothing.",
            choices=("tune", "cached", "pinned", "build"),
            code=True,
        ),
    )
    pin_file: str = field(
        default="",
        metadata=_how("text", "File of pinned decisions, for `policy=pinned`.", code=True),
    )
    compile_workers: int = field(
        default=0,
        metadata=_how("whole number", "Processes that compile; 0 decides from cores and memory."),
    )
    compile_timeout_s: float = field(
        default=120.0,
        metadata=_how("number", "Time one compile may take before it is ended.", unit="s"),
    )
    nvcc: str = field(
        default="",
        metadata=_how(
            "text",
            "nvcc, or the folder of a CUDA toolkit, that compiles CUTLASS kernels; empty to look in "
            "`CUDA_HOME`, on the path and in NVIDIA's wheels.",
        ),
    )
    bench_timeout_s: float = field(
        default=30.0,
        metadata=_how(
            "number", "Time one candidate may be measured before it is dropped.", unit="s"
        ),
    )
    tune_budget_s: float = field(
        default=0.0,
        metadata=_how(
            "number", "Tuning time of one compiled graph; 0 for no limit.", unit="s", code=True
        ),
    )
    max_candidates: int = field(
        default=0,
        metadata=_how(
            "whole number",
            "Candidates tried per problem, the best of each family in turn; 0 for all.",
            code=True,
        ),
    )
    decompose_k: bool = field(
        default=True,
        metadata=_how(
            "on/off",
            "Also offer Inductor's decompose-K, a batch of products that is summed, where it may pay.",
            code=True,
        ),
    )
    never_slower_margin: float = field(
        default=1.02,
        metadata=_how(
            "number",
            "How many times faster than the library kernel a winner must be measured to replace it.",
            minimum=1,
            code=True,
        ),
    )
    max_fusion_buffers: str = field(
        default="",
        metadata=_how(
            "limits",
            "Most tensors a fused kernel may read and write; empty or 0 for no limit of the plugin's. "
            "Sets Inductor's `max_fusion_unique_io_buffers`.",
            code=True,
        ),
    )
    max_kernel_arguments: str = field(
        default="",
        metadata=_how(
            "limits",
            "Most tensors a kernel combined of several, or of a product and what is fused with it, may "
            "take. Sets Inductor's `combo_kernel_max_num_args`.",
            code=True,
        ),
    )
    max_fusion_registers: str = field(
        default="",
        metadata=_how(
            "limits",
            "Most registers a thread of a fused product may have, predicted and compiled.",
            code=True,
        ),
    )
    cache_limit_bytes: int = field(
        default=10 * 2**30,
        metadata=_how(
            "size",
            "Size of the cache above which the longest unused entries go; 0 for no limit.",
            unit="bytes",
        ),
    )
    progress: Literal["auto", "on", "off"] = field(
        default="auto",
        metadata=_how(
            "choice", "Progress bar while tuning; `auto` shows it on a terminal.", choices=_AUTO
        ),
    )
    table: Literal["auto", "on", "off"] = field(
        default="auto",
        metadata=_how(
            "choice",
            "AUTOTUNE tables at the end of a compile; `auto` shows them on a terminal when something "
            "was tuned.",
            choices=_AUTO,
        ),
    )
    verify_numerics: bool = field(
        default=True,
        metadata=_how(
            "on/off", "Compare the numbers of each candidate with the library kernel's.", code=True
        ),
    )
    check_outputs: Literal["off", "nan", "nonfinite"] = field(
        default="off",
        metadata=_how(
            "choice",
            "What generated code looks for in the outputs of chosen kernels: NaN, or Inf too. It ends "
            "with an error that names the kernel; one that read NaN or Inf is not judged, and a warning "
            "says so once. CUDA graphs are off.",
            choices=("off", "nan", "nonfinite"),
            code=True,
        ),
    )
    trace_path: str = field(
        default="",
        metadata=_how("text", "File for a Chrome/Perfetto trace of the tuning; empty for none."),
    )
    worker_idle_s: float = field(
        default=60.0,
        metadata=_how("number", "Time without a job after which a worker ends.", unit="s"),
    )
    worker_memory_bytes: int = field(
        default=0,
        metadata=_how(
            "size",
            "Memory one worker may take; 0 for four fifths of what is free (none on a GPU).",
            unit="bytes",
        ),
    )

    def __post_init__(self) -> None:
        if self.policy == "pinned" and not self.pin_file:
            raise OptionError(
                "option policy='pinned' needs a file of decisions; set pin_file (written by "
                "`inductor-plugin pin FILE`) or use policy='cached'"
            )

    @staticmethod
    def load(
        options: Mapping[str, object] = _NONE, environ: Mapping[str, str] | None = None
    ) -> Config:
        """Return the options: explicit ones, then variables, then defaults.

        Args:
            options: Explicit options by name, as values or as text.
            environ: The variables to look at; this process's own by default.

        Raises:
            OptionError: An option or a variable that does not exist, or a value it cannot have.
        """
        variables = os.environ if environ is None else environ
        values: dict[str, Any] = {"cache_dir": default_cache_dir(variables)}
        for variable, text in _own_variables(variables):
            name = variable.removeprefix(PREFIX).lower()
            if text:
                values[name] = _parse(name, text, f"variable {variable}")
        for name, value in options.items():
            if name not in _METADATA:
                raise OptionError(f"unknown option {name!r}; {_known(name, _METADATA)}")
            values[name] = _parse(name, value, f"option {name}")
        return Config(**values)

    def to_dict(self) -> dict[str, str | int | float | bool]:
        """Return the options as plain JSON values."""
        return {
            **{name: getattr(self, name) for name in _METADATA},
            "cache_dir": str(self.cache_dir),
        }

    def code_key(self) -> tuple[tuple[str, str | int | float | bool], ...]:
        """Return what a compiled graph depends on, as (name, value) pairs.

        A pin file enters with the SHA-256 of its content, so that an edited file is another key.

        Raises:
            OptionError: The pin file cannot be read.
        """
        plain = self.to_dict()
        pairs = [(name, plain[name]) for name, how in _METADATA.items() if how["code"]]
        return (*pairs, ("pin_file_sha256", _sha256(self.pin_file) if self.pin_file else ""))


_METADATA: dict[str, Mapping[str, Any]] = {one.name: one.metadata for one in fields(Config)}


def option_names() -> tuple[str, ...]:
    """Return the names of all options, in the order of their declaration."""
    return tuple(_METADATA)


def split(options: Mapping[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Return (the plugin's own options, all others); the others belong to Inductor."""
    ours = {name: value for name, value in options.items() if name in _METADATA}
    return ours, {name: value for name, value in options.items() if name not in _METADATA}


def enabled_by_environment(environ: Mapping[str, str] | None = None) -> bool:
    """Return whether ``INDUCTOR_PLUGIN_ENABLE`` switches the plugin on.

    Raises:
        OptionError: The variable is neither empty nor a switch.
    """
    text = (os.environ if environ is None else environ).get(ENABLE_VARIABLE, "")
    return bool(text) and switch(text, f"variable {ENABLE_VARIABLE}")


def process_environment() -> dict[str, str]:
    """Return a copy of this process's variables, to start a child with."""
    return dict(os.environ)


def set_environment(variables: Mapping[str, str]) -> None:
    """Set variables of this process, a worker: the libraries it runs read nothing else."""
    os.environ.update(variables)


def restore_environment(variables: Mapping[str, str]) -> None:
    """Make this process's variables exactly those that `process_environment` returned before."""
    for name in [one for one in os.environ if one not in variables]:
        del os.environ[name]
    os.environ.update(variables)


def _own_variables(variables: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    known = {PREFIX + name.upper() for name in _METADATA} | {ENABLE_VARIABLE}
    for variable, text in variables.items():
        if not variable.startswith(PREFIX) or variable == ENABLE_VARIABLE:
            continue
        if variable not in known:
            raise OptionError(f"unknown variable {variable}={text!r}; {_known(variable, known)}")
        yield variable, text


def _known(name: str, known: Iterable[str]) -> str:
    """Return the closest name and the list of all."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known are: {', '.join(names)}"


def _parse(name: str, value: object, origin: str) -> object:
    how = _METADATA[name]
    parsed = PARSERS[how["kind"]](value, origin)
    listed = str(parsed).split(",") if parsed else []
    words: list[object] = [*listed] if how["kind"] == "list" else [parsed]
    if how["choices"] and any(word not in how["choices"] for word in words):
        raise OptionError(f"{origin} is {value!r}; use one of {', '.join(how['choices'])}")
    if isinstance(parsed, int | float) and parsed < how["minimum"]:
        raise OptionError(f"{origin} is {value!r}; use {how['minimum']} or more")
    return parsed


def _sha256(path: str) -> str:
    try:
        return hashlib.sha256(Path(path).expanduser().read_bytes()).hexdigest()
    except OSError as error:
        raise OptionError(
            f"option pin_file is {path!r}, which cannot be read ({error.strerror}); name a file "
            "written by `inductor-plugin pin FILE`"
        ) from error
