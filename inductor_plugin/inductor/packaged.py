"""Calls of compiled kernels in C++ that Inductor generates: programs of AOTInductor and C++ wrappers.

A program runs without Python and takes the libraries along: Inductor puts `additional_files` into the package beside it, as
it does with Triton's cubins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config as inductor_config
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.virtualized import V

from inductor_plugin.cache import atomic
from inductor_plugin.inductor.facts.attached import attached
from inductor_plugin.inductor.facts.problem import target_of
from inductor_plugin.kernels.call import OpKernel
from inductor_plugin.ops import launch
from inductor_plugin.ops.kernel_types import types_of
from inductor_plugin.ops.package import source
from inductor_plugin.ops.sites import has_site, name_of

BLOCKS = f"{source.NAMESPACE}::attention_blocks"
"""The function of attention on a CPU."""

_INT_MM = "aoti_torch_{}__int_mm_out"
_MM, _BMM = "aoti_torch_{}_mm_out", "aoti_torch_{}_bmm_out"
_ADDMM, _BADDBMM = "aoti_torch_{}_addmm_out", "aoti_torch_{}_baddbmm_out"


def wanted() -> bool:
    """Return whether the code that is generated is a program of AOTInductor."""
    graph: Any = V.graph
    return bool(graph.aot_mode and graph.cpp_wrapper)


def why_not_callable(op: str) -> str | None:
    """Return why a program of AOTInductor cannot call an operator, None if it can."""
    if not has_site(op):
        return f"AOTInductor's code runs without Python, which {op} needs"
    if inductor_config.aot_inductor.package_cpp_only:
        return "aot_inductor.package_cpp_only: the program is built elsewhere, without the libraries of kernels"
    return None


def write_call(
    wrapper: Any, name: str, kernel: OpKernel, operands: Sequence[str], output: Any
) -> None:
    """Write the call of a kernel, and of the library's product where the kernel cannot run.

    Args:
        wrapper: Inductor's writer of the code.
        name: The buffer the call writes to.
        kernel: The operator, the kernel's name and the arguments after it.
        operands: Expressions of their handles, in the operator's order.
        output: The node of that buffer.
    """
    site = _declare(wrapper, name, kernel, output.get_device())
    call = f"{site}({{{', '.join(operands)}}}, {name})"
    instead = _library_call(wrapper, name, kernel, operands, output)
    if instead is None:
        wrapper.writeline(f"if (!{call}) throw std::runtime_error({site}.why());")
        return
    warning = f"aoti_torch_warn(__func__, __FILE__, __LINE__, {site}.why().c_str())"
    wrapper.writeline(f"if (!{call}) {{")
    wrapper.writeline(f"    if ({site}.warns()) {warning};")
    wrapper.writeline(f"    AOTI_TORCH_ERROR_CODE_CHECK({instead});")
    wrapper.writeline("}")


def write_call_or(
    wrapper: Any,
    name: str,
    kernel: OpKernel,
    operands: Sequence[str],
    output: Any,
    instead: Callable[[], None],
) -> None:
    """Write the call of a kernel into a C++ wrapper of a process with Python, and what runs where the kernel cannot.

    Args:
        wrapper: Inductor's writer of the code.
        name: The buffer the call writes to.
        kernel: As in `write_call`.
        operands: As in `write_call`.
        output: The node of that buffer.
        instead: Writes the call of the operator.
    """
    symbol, _, place = str(kernel.args[0]).partition("@")
    path = Path(place) if place.startswith("/") else launch.library_path(place)
    if path is None:  # the operator says so
        instead()
        return
    include_sites(wrapper)
    site = _declared(wrapper, name, kernel, output.get_device(), symbol, path, str(path.parent))
    wrapper.writeline(f"if (!{site}({{{', '.join(operands)}}}, {name})) {{")
    loaded = wrapper.custom_op_wrapper_loaded
    instead()
    wrapper.custom_op_wrapper_loaded = loaded  # what this block declares ends with it
    wrapper.writeline("}")


def include_sites(wrapper: Any) -> None:
    """Include the text of call sites in a program."""
    _include(wrapper, source.sites_text())


def include_blocks(wrapper: Any) -> None:
    """Include the text of attention on a CPU in a program."""
    include_sites(wrapper)
    _include(wrapper, source.blocks_text())


def _include(wrapper: Any, text: str) -> None:
    written = attached(wrapper, "included", set[str])
    if text not in written:
        written.add(text)
        wrapper.header.splice(text)


def _declare(wrapper: Any, name: str, kernel: OpKernel, device: torch.device) -> str:
    """Write the declaration of a call site into the program's head, and return its name."""
    include_sites(wrapper)
    symbol, _, place = str(kernel.args[0]).partition("@")
    path = _carried(wrapper, symbol, place)
    # A package that has lost a library must not load another one from where it was compiled.
    folder = "" if inductor_config.aot_inductor.package else str(path.parent)
    return _declared(wrapper, name, kernel, device, symbol, path, folder)


def _declared(
    wrapper: Any,
    name: str,
    kernel: OpKernel,
    device: torch.device,
    symbol: str,
    path: Path,
    folder: str,
) -> str:
    target = target_of(device)
    graph: Any = V.graph
    site = f"launch_const_{name}" if graph.is_const_graph else f"launch_{name}"
    multiprocessors = 0 if target is None else target.multiprocessors
    arguments = kernel.args[1:]
    text = source.site_text(site, kernel.op, arguments, path.name, folder, symbol, multiprocessors)
    wrapper.header.splice(text)
    return site


def _carried(wrapper: Any, symbol: str, place: str) -> Path:
    """Copy a kernel's library to where Inductor keeps its own, and let the package take it along."""
    library = Path(place) if place.startswith("/") else launch.library_path(place)
    if library is None:
        raise FileNotFoundError(f"the library of {symbol} is not in the cache any more")
    folder = Path(cache_dir()) / "inductor_plugin"
    copy = folder / f"{symbol}.kernel"  # torch 2.11 refuses packages with two files named .so
    atomic.write(copy, library.read_bytes(), folder)
    if str(copy) not in wrapper.additional_files:
        wrapper.additional_files.append(str(copy))
    return copy


def _library_call(
    wrapper: Any, name: str, kernel: OpKernel, operands: Sequence[str], output: Any
) -> str | None:
    """Return the call of torch's C function that computes the same product, None if there is none."""
    operator = name_of(kernel.op)
    types = types_of(str(kernel.args[0]))
    if types.a != types.d and output.get_dtype() != torch.int32:
        return None  # of float32 results of 16-bit operands torch has no C function
    batched = len(output.get_size()) > 2
    device = output.get_device().type
    if operator == "cutlass_mm" and output.get_dtype() == torch.int32:
        if batched:
            return None
        function, numbers = _INT_MM, ()
    elif operator == "cutlass_mm":
        function, numbers = _BMM if batched else _MM, ()
    elif operator == "cutlass_addmm":
        *_, alpha, beta = kernel.args
        function, numbers = _BADDBMM if batched else _ADDMM, (float(beta), float(alpha))
    else:
        return None
    wrapper.add_device_include(device)
    return f"{function.format(device)}({', '.join((name, *operands, *map(repr, numbers)))})"
