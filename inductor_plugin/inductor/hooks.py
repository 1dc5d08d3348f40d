"""Enables the plugin inside Inductor: installs the hooks and adds the configuration to the options."""

from __future__ import annotations

import functools
import logging
import re
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx as compile_fx_module
from torch._inductor import config as inductor_config

from inductor_plugin.config import Config, option_names
from inductor_plugin.config.value import limit_of, suggestion
from inductor_plugin.errors import OptionError, expanded, warn_once
from inductor_plugin.inductor import first_miss, int4, vector
from inductor_plugin.inductor.artifacts import artifact
from inductor_plugin.inductor.artifacts.entries import add_called
from inductor_plugin.inductor.facts import compat
from inductor_plugin.inductor.facts.scope import (
    CARRIER,
    ConfigCarrier,
    active_config,
    as_switched,
    inductor_switches,
    is_reproducible,
    passes_in,
    user_passes,
)
from inductor_plugin.inductor.graph import stored, unstored
from inductor_plugin.inductor.graph.output_guard import NEEDS_PYTHON
from inductor_plugin.ops import sites
from inductor_plugin.ops.launch import add_kernel_folder
from inductor_plugin.tuning.pins.recording import Recording, recording
from inductor_plugin.tuning.pins.replay import read_pins
from inductor_plugin.worker.devices.templates import add_templates

logger = logging.getLogger(__name__)

_BACKENDS = "max_autotune_gemm_backends"
_TUNING = ("max_autotune", "max_autotune_gemm")
"""Inductor's switches of tuning."""
_STOCKS_RANKS = "distributed_max_autotune_gemm"  # torch 2.10 and later
_ALL_PADDED = "force_shape_pad"
_SPLIT_SIZE, _SPLIT = "triton.mix_order_reduction_split_size", 32
"""Inductor's option, and our value: Inductor begins its search with 16 to 128, by the number of rows and multiprocessors."""
_RUNTIME = "inductor_plugin.tuning.runtime"
_HOOKING = threading.Lock()
"""Held while hooks are installed: each looks whether it is there already, and threads compile."""


def compile_options(
    mode: str | None,
    config: Config,
    others: Mapping[str, object],
    example_inputs: Sequence[Any] = (),
) -> dict[str, Any]:
    """Return Inductor's options including the plugin's configuration.

    Args:
        mode: Inductor's mode.
        config: The plugin's options.
        others: Inductor's options.
        example_inputs: Inputs of the graph, if there is one already; they determine the device.

    Raises:
        OptionError: A wrong option or mode, or a pin file that cannot be read.
    """
    accepted = _prepared(config, mode, others)
    return _with_carrier(config, accepted, example_inputs)


def wrap_backend(config: Config, others: Mapping[str, object], stock: dict[str, Any]) -> None:
    """Wrap `compile_fx`, the entry point of all Inductor compiles, so that they use the plugin.

    Args:
        config: The plugin's options.
        others: Inductor's options, used where a compile does not set them.
        stock: Receives the originals that `unwrap_backend` restores.
    """
    defaults = _prepared(config, None, others)
    original = stock.setdefault("compile_fx", compile_fx_module.compile_fx)

    @functools.wraps(original)
    def compile_fx(
        model_: Any,
        example_inputs_: Any,
        *args: Any,
        config_patches: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        # compile_fx calls itself with its patches already applied.
        if active_config() is not None:
            return original(model_, example_inputs_, *args, config_patches=config_patches, **kwargs)
        patches = {**defaults, **(config_patches or {})}
        if not _carried(patches):
            patches = _of_compile(config, patches, example_inputs_)
        vector.start_probe(example_inputs_)
        return original(model_, example_inputs_, *args, config_patches=patches, **kwargs)

    compile_fx_module.compile_fx = compile_fx
    artifact.load_with(config)


def unwrap_backend(stock: dict[str, Any]) -> None:
    """Undo the changes of `wrap_backend` and `compile_options`, and end the workers."""
    original = stock.pop("compile_fx", None)
    if original is not None:
        compile_fx_module.compile_fx = original
    artifact.load_with(None)
    sites.OBSERVERS.discard(add_called)
    first_miss.uninstall()
    vector.uninstall()
    stored.uninstall()
    unstored.uninstall()
    int4.uninstall()
    for runtime in _runtime():
        runtime.forget()


def compile_graph(
    model: Any, example_inputs: Any, mode: str | None, config: Config, others: Mapping[str, object]
) -> Any:
    """Compile one graph; implements the ``inductor_plugin`` backend."""
    accepted = _prepared(config, mode, others)
    patches = _of_compile(config, accepted, example_inputs)
    vector.start_probe(example_inputs)
    return compile_fx_module.compile_fx(model, example_inputs, config_patches=patches)


def _validated(config: Config, mode: str | None, others: Mapping[str, object]) -> dict[str, Any]:
    """Return mode and options as Inductor's configuration, checked as `torch.compile` checks them.

    Raises:
        OptionError: A wrong option or mode, or a pin file that cannot be read.
    """
    _check_pins(config)
    known = inductor_config.get_config_copy()
    for name in others:
        if name.replace("-", "_") not in known:
            hint = suggestion(name, option_names(), known, brief=True)
            raise OptionError(f"unknown option {name!r}; {hint}")
    try:
        stock: Any = torch._TorchCompileInductorWrapper  # pyright: ignore[reportPrivateUsage]
        wrapper = stock(mode, dict(others), None)
    except RuntimeError as error:
        raise OptionError(_reworded(str(error), mode, others)) from error
    return dict(wrapper.config)


def _reworded(text: str, mode: str | None, others: Mapping[str, object]) -> str:
    """Return torch's sentence about a wrong option or mode as one of ours."""
    match = re.match(r"Unexpected type of attr (\S+), got (\S+) should be (\S+)", text)
    if match is not None:
        name, got, wanted = match.groups()
        return f"option {name} is {others.get(name)!r}, of type {got}; torch._inductor.config has {wanted}"
    _, listed, modes = text.partition("should be one of: ")
    return f"mode is {mode!r}; use one of {modes}" if listed else text


def _check_pins(config: Config) -> None:
    """Read the pin file before anything is lowered: there an error would come with the whole graph.

    Raises:
        OptionError: The pin file cannot be read.
    """
    if config.policy == "pinned":
        read_pins(config.pin_file)
    elif config.pin_file:
        warn_once(
            logger,
            f"option pin_file is {config.pin_file!r}, but policy is {config.policy!r}, so that file "
            "is not read; set policy=pinned",
        )


def _add_kernel_folders(config: Config) -> None:
    """Let generated code find libraries in both caches, in the own one first; in none with ``cache=off``."""
    if config.cache == "off":
        return
    if config.cache_read:
        with suppress(OptionError):  # the cache warns of it
            second = expanded(config.cache_read, "option cache_read", OptionError)
            add_kernel_folder(second, read_only=True, trusted_keys=config.trusted_keys)
    add_kernel_folder(config.cache_dir, trusted_keys=config.trusted_keys)


def _prepared(config: Config, mode: str | None, others: Mapping[str, object]) -> dict[str, Any]:
    """Return Inductor's options, validated, once the hooks and the folders of kernels are in place.

    Raises:
        OptionError: A wrong option or mode, or a pin file that cannot be read.
    """
    accepted = _validated(config, mode, others)
    _hook()
    _add_kernel_folders(config)
    return accepted


def _carried(patches: Mapping[str, Any]) -> bool:
    return any(isinstance(p, ConfigCarrier) for p in passes_in(patches.get(CARRIER)))


def _of_compile(
    config: Config, accepted: Mapping[str, Any], example_inputs: Sequence[Any]
) -> dict[str, Any]:
    """Return the options of a compile that begins: its gradient, which may be compiled after a patch has ended, has the same."""
    return _with_carrier(as_switched(config, inductor_switches(accepted)), accepted, example_inputs)


def _with_carrier(
    config: Config, accepted: Mapping[str, Any], example_inputs: Sequence[Any]
) -> dict[str, Any]:
    """Return Inductor's options with the carrier, tuning on, and the chosen backends."""
    add_templates()
    config = _without_library(config, accepted)
    inner = user_passes(accepted.get(CARRIER, getattr(inductor_config, CARRIER)))
    carrier = ConfigCarrier(config, inner, _warm_up, first_miss.installed)
    result = {**accepted, **_tuning(accepted), CARRIER: carrier}
    result |= _limits(config, accepted, example_inputs) | _without_stocks_ranks(accepted)
    result |= _without_timed_padding(config, accepted) | _with_fixed_splits(config, accepted)
    if config.check_outputs != "off":
        result |= _checked_code(result)
    if config.gemm_backends:
        stated = accepted.get(_BACKENDS)
        # Inductor's own CUTLASS backend would take over the whole call.
        theirs = _names(stated) if stated else _names(config.gemm_backends) - {"CUTLASS"}
        # The library kernel is always requested: it is the reference, the fallback, and the only
        # choice with a call's scalars. If the user excludes it, `Selection` lets others win.
        result[_BACKENDS] = ",".join(sorted(theirs | {"ATEN"}))
    return result


def _without_stocks_ranks(accepted: Mapping[str, Any]) -> dict[str, bool]:
    """Return Inductor's own sharing among ranks, switched off: it gathers in the middle of a compile, and only what it placed itself."""
    if not accepted.get(_STOCKS_RANKS, getattr(inductor_config, _STOCKS_RANKS, False)):
        return {}
    warn_once(
        logger, f"{_STOCKS_RANKS} is on: option ranks does that here, and Inductor's own is off"
    )
    return {_STOCKS_RANKS: False}


def _without_timed_padding(config: Config, accepted: Mapping[str, Any]) -> dict[str, bool]:
    """Return padding of unaligned products switched off where others repeat the compile: on a GPU Inductor times it.

    Ranks and replays that time it differently would have other products (`torch/_inductor/fx_passes/pad_mm.py`, ``_should_pad``).
    Nothing is timed with ``force_shape_pad``, which pads every product.
    """
    if not is_reproducible(config) or accepted.get(_ALL_PADDED, inductor_config.force_shape_pad):
        return {}
    return {"shape_padding": False}


def _with_fixed_splits(config: Config, accepted: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of the pieces in which Inductor sums both rows and columns, where others repeat the compile.

    On a GPU it times several while it generates code, and each groups a sum in another way, so that it is rounded otherwise
    (``mix_order_reduction`` in `torch/_inductor/codegen/simd.py`).
    """
    stated = accepted.get(_SPLIT_SIZE, inductor_config.triton.mix_order_reduction_split_size)
    return {} if stated is not None or not is_reproducible(config) else {_SPLIT_SIZE: _SPLIT}


def _names(backends: str) -> set[str]:
    """Return the names in a list of backends."""
    return {name.strip() for name in backends.upper().split(",")} - {""}


def _tuning(accepted: Mapping[str, Any]) -> dict[str, bool]:
    """Return Inductor's switches of tuning that the options lack: as a patch has set them, on where neither names any."""
    patched = {
        name: bool(getattr(inductor_config, name))
        for name in _TUNING
        if name not in accepted and compat.is_patched(name)
    }
    return patched if patched or set(_TUNING) & set(accepted) else {"max_autotune": True}


def _without_library(config: Config, accepted: Mapping[str, Any]) -> Config:
    """Return the options with Inductor's backends where those exclude the library kernel and the plugin's own option is not set."""
    backends = _names(accepted.get(_BACKENDS, getattr(inductor_config, _BACKENDS, None)) or "")
    if config.gemm_backends or not backends or "ATEN" in backends:
        return config
    return replace(config, gemm_backends=",".join(sorted(backends)))


def _limits(
    config: Config, accepted: Mapping[str, Any], example_inputs: Sequence[Any]
) -> dict[str, int]:
    """Return the plugin's limits under Inductor's names, except those the user sets there."""
    texts = {
        "max_fusion_unique_io_buffers": config.max_fusion_buffers,
        "combo_kernel_max_num_args": config.max_kernel_arguments,
    }
    unset = {name: text for name, text in texts.items() if text and name not in accepted}
    if not unset:
        return {}
    device_type = _device_type(example_inputs)
    limits = {name: limit_of(text, device_type) for name, text in unset.items()}
    return {name: limit for name, limit in limits.items() if limit}


def _device_type(example_inputs: Sequence[Any]) -> str:
    """Return the device type of a graph; without inputs, the accelerator of this machine."""
    types = [value.device.type for value in example_inputs if isinstance(value, torch.Tensor)]
    if types:
        return next((name for name in types if name != "cpu"), "cpu")
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator.type if accelerator is not None else "cpu"


def _checked_code(accepted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of Inductor's options that are needed to check outputs.

    Raises:
        OptionError: The options select the C++ wrapper.
    """
    if accepted.get("cpp_wrapper", inductor_config.cpp_wrapper):
        raise OptionError(NEEDS_PYTHON)
    graphs = "triton.cudagraphs"
    if accepted.get(graphs, inductor_config.triton.cudagraphs):
        warn_once(
            logger, "check_outputs is on: CUDA graphs, in which nothing can be looked at, are off"
        )
    return {graphs: False}


@contextmanager
def recorded() -> Generator[Recording]:
    """Record the decisions of all graphs that are compiled in the block, each gradient with its forward pass.

    Otherwise AOTAutograd compiles a gradient when it is first computed, which may be after the block.
    """
    untyped: Any = functorch_config
    with recording(Recording()) as kept, untyped.patch(force_non_lazy_backward_lowering=True):
        yield kept


def why_not_supported() -> str | None:
    """Return why this torch cannot be hooked into, or None if it can."""
    return compat.why_not_supported()


def _hook() -> None:
    with _HOOKING:
        _install()


def _install() -> None:
    if not first_miss.installed():
        compat.warn_if_untested()
    artifact.register()
    compat.call_on_fresh_cache(_forget_unwritten)
    sites.OBSERVERS.add(add_called)
    vector.install()
    unstored.install()
    stored.install()
    int4.install()
    first_miss.install()


def _warm_up(config: Config, graph: torch.fx.Graph) -> None:
    """Start workers for a graph that is not in a cache, see `warmup`."""
    from inductor_plugin.inductor.warmup import warm_up  # noqa: PLC0415  as `lowering_hooks`

    warm_up(config, graph)


def _forget_unwritten() -> None:
    """Drop what is in memory alone, if anything was compiled."""
    for runtime in _runtime():
        runtime.forget_unwritten()


def _runtime() -> tuple[Any, ...]:
    """Return the state of tuning in this process, none if nothing was lowered."""
    module = sys.modules.get(_RUNTIME)
    return () if module is None else (module.RUNTIME,)
