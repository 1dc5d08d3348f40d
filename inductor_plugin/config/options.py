"""Every option, declared once.

The parent process reads its options once and passes the frozen `Config` on. An explicit option overrides
its variable ``INDUCTOR_PLUGIN_<NAME>``, and the variable overrides the default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from inductor_plugin.config.value import (
    check_farms,
    check_pins,
    how,
    parse,
    pin_file_sha256,
    suggestion,
)
from inductor_plugin.config.variables import (
    PREFIX,
    default_cache_dir,
    warn_of_unknown,
)
from inductor_plugin.errors import OptionError

_NONE: Mapping[str, object] = {}  # never written to
_AUTO = ("auto", "on", "off")
_GEMM_BACKENDS = ("ATEN", "TRITON", "CPP", "CUTLASS", "CUTEDSL", "NVGEMM", "CK", "CKTILE", "FLYDSL")


@dataclass(frozen=True)
class Config:
    """The options of one compile. Each field is described by its metadata; see docs/generate.py."""

    cache_dir: Path = field(
        default_factory=default_cache_dir,
        metadata=how("folder", "Folder for kernels, timings and decisions.", code=True),
    )
    cache: Literal["auto", "on", "off"] = field(
        default="auto",
        metadata=how(
            "choice",
            "Read and write `cache_dir`, and read `cache_read`; with `off` this process alone remembers. `auto`: off "
            "where Inductor's `force_disable_caches` is set and no `cache_dir` is named.",
            choices=_AUTO,
        ),
    )
    cache_read: str = field(
        default="",
        metadata=how(
            "text",
            "Folder of a second cache that is only read, after `cache_dir`: an image's, a team's. You or root "
            "must own it, and nobody else may write to it.",
            code=True,
        ),
    )
    remote_url: str = field(
        default="",
        metadata=how(
            "url",
            "Object store of many machines, by a URL of fsspec (`s3://`, `gs://`, `file://`): read where `cache_dir` lacks a record.",
            code=True,
        ),
    )
    remote_write: bool = field(
        default=True, metadata=how("on/off", "Also write records to `remote_url`.")
    )
    remote_kernels: bool = field(
        default=False,
        metadata=how("on/off", "Also exchange winners' kernels with `remote_url`, native code."),
    )
    remote_timeout_s: float = field(
        default=5.0,
        metadata=how(
            "number",
            "Time limit of a request to `remote_url`, and of waits.",
            unit="s",
            minimum=0.1,
        ),
    )
    trusted_keys: str = field(
        default="",
        metadata=how(
            "keys",
            "Keys (`ed25519:...`) and files of keys whose signed kernels are taken from packs, wheels and `remote_url` (docs/trust.md).",
            code=True,
        ),
    )
    signing_key: str = field(
        default="",
        metadata=how(
            "text",
            "File of a private key (`inductor-plugin key new`) that signs the kernels built here when they leave the cache.",
        ),
    )
    gemm_backends: str = field(
        default="",
        metadata=how(
            "list",
            "Backends for matrix products; empty for Inductor's own list. Without `ATEN` a library kernel runs only if no other kernel can.",
            choices=_GEMM_BACKENDS,
            code=True,
        ),
    )
    attention_backends: str = field(
        default="",
        metadata=how(
            "list",
            "Backends for attention; empty for all. The operator that was traced is always a candidate.",
            choices=("FLASH", "EFFICIENT", "CUDNN", "TRITON", "CUTLASS"),
            code=True,
        ),
    )
    policy: Literal["tune", "cached", "pinned", "build"] = field(
        default="tune",
        metadata=how(
            "choice",
            "`tune` measures candidates without a record, `cached` uses records, `pinned` takes every decision from `pin_file`, the "
            "library kernel where it has none, `build` compiles all candidates; these three measure nothing.",
            choices=("tune", "cached", "pinned", "build"),
            code=True,
        ),
    )
    pin_file: str = field(
        default="",
        metadata=how("text", "File of pinned decisions, for `policy=pinned`.", code=True),
    )
    strict: bool = field(
        default=False,
        metadata=how(
            "on/off",
            "With `policy=pinned`, raise an error that names the problems whose pin is missing or does not apply, "
            "instead of running library kernels there.",
            code=True,
        ),
    )
    compile_workers: int = field(
        default=0,
        metadata=how("whole number", "Processes that compile; 0 to choose by cores and memory."),
    )
    compile_farm: str = field(
        default="",
        metadata=how(
            "farm",
            "Ray cluster that compiles: `ray://HOST:PORT`, `ray:auto`, `ray:local`; its nodes have the same software. Extra `ray`.",
        ),
    )
    bench_farm: str = field(
        default="",
        metadata=how(
            "farm",
            "Ray cluster whose nodes measure, as `compile_farm`, on this process's kind of GPU, one GPU at a time for each process; empty: measured here (docs/fleet.md).",
        ),
    )
    compile_timeout_s: float = field(
        default=120.0,
        metadata=how("number", "Time limit of one compile; 0 for no limit.", unit="s"),
    )
    nvcc: str = field(
        default="",
        metadata=how(
            "text",
            "nvcc, or the folder of a CUDA toolkit, to compile CUTLASS kernels with; empty to search "
            "`CUDA_HOME`, the path and NVIDIA's wheels.",
        ),
    )
    bench_timeout_s: float = field(
        default=30.0,
        metadata=how(
            "number",
            "Time limit of measuring one candidate, then it is dropped; 0 for none.",
            unit="s",
        ),
    )
    tune_budget_s: float = field(
        default=0.0,
        metadata=how(
            "number",
            "Tuning time limit of one graph from its first compile; the heaviest problems first. 0 for no limit.",
            unit="s",
            code=True,
        ),
    )
    max_candidates: int = field(
        default=0,
        metadata=how(
            "whole number",
            "Most candidates per problem besides the library kernel, the best-ranked of each family in turn; 0 for all.",
            code=True,
        ),
    )
    decompose_k: bool = field(
        default=True,
        metadata=how(
            "on/off",
            "Also offer Inductor's decompose-K, a batch of products that is summed, where it may be faster.",
            code=True,
        ),
    )
    never_slower_margin: float = field(
        default=1.02,
        metadata=how(
            "number",
            "How many times faster than the library kernel another kernel must be to replace it.",
            minimum=1,
            code=True,
        ),
    )
    max_fusion_buffers: str = field(
        default="",
        metadata=how(
            "limits",
            "Most tensors a fused kernel may read and write; empty or 0 to keep Inductor's limit. "
            "Sets Inductor's `max_fusion_unique_io_buffers`.",
            code=True,
        ),
    )
    max_kernel_arguments: str = field(
        default="",
        metadata=how(
            "limits",
            "Most tensors a combo kernel, or a product with its fused epilogue, may take. Sets Inductor's `combo_kernel_max_num_args`.",
            code=True,
        ),
    )
    max_fusion_registers: str = field(
        default="",
        metadata=how(
            "limits",
            "Most registers per thread of a fused product, both predicted and after compilation.",
            code=True,
        ),
    )
    cache_limit_bytes: int = field(
        default=10 * 2**30,
        metadata=how(
            "size",
            "Cache size above which least recently used entries are evicted; 0 for no limit.",
            unit="bytes",
        ),
    )
    progress: Literal["auto", "on", "off"] = field(
        default="auto",
        metadata=how("choice", "Progress bar while tuning; `auto`: on a terminal.", choices=_AUTO),
    )
    table: Literal["auto", "on", "off"] = field(
        default="auto",
        metadata=how(
            "choice",
            "AUTOTUNE tables at the end of a compile; `auto` shows them on a terminal if anything was tuned.",
            choices=_AUTO,
        ),
    )
    verify_numerics: bool = field(
        default=True,
        metadata=how("on/off", "Compare each candidate with the library kernel.", code=True),
    )
    verify_graph: Literal["off", "auto", "on"] = field(
        default="off",
        metadata=how(
            "choice",
            "Run each tuned graph in turns with the same graph of library kernels, on made-up inputs in the benchmark worker, "
            "and give up the choices that make it slower; `auto`: within `verify_graph_share`; `on`: whatever the further compiles "
            "take, unless eight calls of each graph take over ten minutes, and with the graph without autotuning, too; `off`: what an earlier comparison has given up is not followed either.",
            choices=("off", "auto", "on"),
            code=True,
        ),
    )
    verify_graph_share: float = field(
        default=0.1,
        metadata=how(
            "number",
            "Share of compile time that `verify_graph=auto` may take, and with any value compiles that measure provisional decisions "
            "again, from the second time on. A graph that needs more waits for a later compile: what "
            "compiles leave is saved up in the cache, five minutes of it at most.",
        ),
    )
    check_outputs: Literal["off", "nan", "nonfinite"] = field(
        default="off",
        metadata=how(
            "choice",
            "Let generated code check the outputs of chosen kernels for NaN, or for NaN and Inf, and raise "
            "an error that names the kernel. A kernel whose inputs have NaN or Inf is not checked, with one warning. Disables CUDA graphs.",
            choices=("off", "nan", "nonfinite"),
            code=True,
        ),
    )
    trace_path: str = field(
        default="",
        metadata=how("text", "File for a Chrome/Perfetto trace of the tuning; empty for none."),
    )
    report: str = field(
        default="",
        metadata=how("text", "File for an HTML page of this process's tuning; empty for none."),
    )
    worker_idle_s: float = field(
        default=60.0,
        metadata=how("number", "Time after which an idle worker exits.", unit="s"),
    )
    worker_memory_bytes: int = field(
        default=0,
        metadata=how(
            "size",
            "Memory limit of one worker; 0 for four fifths of the free memory (no limit on a GPU).",
            unit="bytes",
        ),
    )

    ranks: Literal["auto", "off"] = field(
        default="auto",
        metadata=how(
            "choice",
            "Under `torch.distributed`, share the tuning out among the ranks, and decide the same on all; `off`: each rank "
            "tunes and decides alone.",
            choices=("auto", "off"),
        ),
    )
    ranks_timeout_s: float = field(
        default=60.0,
        metadata=how(
            "number",
            "Time without a sign of life, 5 s or more, after which a rank is given up; its problems get library kernels.",
            unit="s",
            minimum=5,
        ),
    )

    stated: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Names of the options that the user has set."""

    def __post_init__(self) -> None:
        check_pins(self.policy, self.pin_file, strict=self.strict)
        check_farms(self.compile_farm, self.bench_farm)

    @staticmethod
    def load(
        options: Mapping[str, object] = _NONE, environ: Mapping[str, str] | None = None
    ) -> Config:
        """Return the options: explicit ones, then variables, then defaults.

        Args:
            options: Explicit options by name, as values or as text.
            environ: Environment variables; by default those of this process.

        Raises:
            OptionError: An option does not exist, or a value is invalid.
        """
        variables = os.environ if environ is None else environ
        warn_of_unknown(METADATA, variables)
        values: dict[str, Any] = {}
        for name, facts in METADATA.items():
            if text := variables.get(variable := PREFIX + name.upper()):
                values[name] = parse(facts, text, f"variable {variable}")
        for name, value in options.items():
            if name not in METADATA:
                raise OptionError(f"unknown option {name!r}; {suggestion(name, METADATA)}")
            values[name] = parse(METADATA[name], value, f"option {name}")
        stated = frozenset(values)
        if "cache_dir" not in values:
            values["cache_dir"] = default_cache_dir(variables)
        return Config(**values, stated=stated)

    def with_cache(self, *, disabled: bool) -> Config:
        """Return the options with ``cache`` on or off, by Inductor's ``force_disable_caches`` where it is ``auto``."""
        if self.cache != "auto":
            return self
        return replace(self, cache="off" if disabled and "cache_dir" not in self.stated else "on")

    def to_dict(self) -> dict[str, str | int | float | bool]:
        """Return the options as plain JSON values."""
        return {name: getattr(self, name) for name in METADATA} | {"cache_dir": str(self.cache_dir)}

    def code_key(self) -> tuple[tuple[str, str | int | float | bool], ...]:
        """Return the options a compiled graph depends on, as (name, value) pairs.

        A pin file is included by the SHA-256 of its content, so that an edited file changes the key. With ``cache=off``
        code calls kernels in a folder of its process, which no other process has.

        Raises:
            OptionError: The pin file cannot be read.
        """
        plain = self.to_dict()
        pairs = [(name, plain[name]) for name, facts in METADATA.items() if facts["code"]]
        private = [("cache", "off")] if self.cache == "off" else []
        return (
            *pairs,
            *private,
            ("pin_file_sha256", pin_file_sha256(self.pin_file) if self.pin_file else ""),
        )


METADATA: dict[str, Mapping[str, Any]] = {o.name: o.metadata for o in fields(Config) if o.metadata}
"""What is declared of each option, by its name, in the order of their declaration."""
