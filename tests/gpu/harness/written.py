"""The call of a CUTLASS kernel with an epilogue as generated code writes it: read, and run."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor_plugin.kernels.call import TensorSpec

OPERATOR = "torch.ops.inductor_plugin.cutlass_mm_epilogue.out"


@dataclass(frozen=True)
class WrittenCall:
    """A call of the operator in generated code.

    Attributes:
        names: The graph's inputs, in order.
        a: A, as it is written.
        b: B.
        operands: What the epilogue reads, as it is written.
        aux: Names of what it writes besides ``out``.
        out: Name of the last of its writes.
        buffers: What is allocated, by name.
        returned: Names of what the graph returns, in order.
        kernel: ``SYMBOL@DIGEST``, or ``SYMBOL@PATH`` once it is built.
        launch: What follows the kernel's name.
    """

    names: tuple[str, ...]
    a: str
    b: str
    operands: str
    aux: tuple[str, ...]
    out: str
    buffers: tuple[tuple[str, TensorSpec], ...]
    returned: tuple[str, ...]
    kernel: str
    launch: tuple[Any, ...]

    def run(
        self, operator: Any, tensors: Sequence[torch.Tensor], outputs: Mapping[str, torch.Tensor]
    ) -> None:
        """Run the call as it is written.

        Args:
            operator: What is called.
            tensors: The graph's inputs.
            outputs: Memory for what is written, by name.
        """
        space: dict[str, Any] = dict(zip(self.names, tensors, strict=True))
        space |= {"reinterpret_tensor": _seen_as, **outputs}
        a, b, operands = (eval(text, space) for text in (self.a, self.b, self.operands))
        aux = [outputs[name] for name in self.aux]
        operator(a, b, operands, self.kernel, *self.launch, aux, out=outputs[self.out])


def _seen_as(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int
) -> torch.Tensor:
    """Return what Inductor's ``reinterpret_tensor`` does: the offset counts from the tensor's own."""
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


def written(code: str) -> WrittenCall:
    """Return the one call of a CUTLASS kernel with an epilogue in generated code.

    Raises:
        LookupError: There is none, or there are several.
    """
    calls = re.findall(rf"^ *({re.escape(OPERATOR)}\(.*\))$", code, re.M)
    if len(calls) != 1:
        launches = re.findall(
            r"^ *(?:launch_\w+|torch\.ops|extern_kernels|\w+\.run).*$", code, re.M
        )
        raise LookupError(f"{len(calls)} calls of {OPERATOR} are written, not one: {launches}")
    call: Any = ast.parse(calls[0], mode="eval").body
    a, b, operands, *kernel, aux = call.args
    named = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    names = re.search(r"^ *(\w+(?:, \w+)*),? = args$", code, re.M)
    (returned,) = re.findall(r"^ *return \((.*?),? ?\)$", code, re.M)
    if names is None:
        raise LookupError("the code takes no arguments")
    allocated = re.findall(
        r"^ *(buf\d+) = empty_strided_cuda\((\(.*?\)), (\(.*?\)), torch\.(\w+)\)", code, re.M
    )
    buffers = tuple(
        (name, TensorSpec(ast.literal_eval(size), ast.literal_eval(stride), dtype, "cuda:0"))
        for name, size, stride, dtype in allocated
    )
    launch = [ast.literal_eval(argument) for argument in kernel]
    return WrittenCall(
        names=tuple(names[1].split(", ")),
        a=ast.unparse(a),
        b=ast.unparse(b),
        operands=ast.unparse(operands),
        aux=tuple(ast.unparse(name) for name in aux.elts),
        out=named["out"],
        buffers=buffers,
        returned=tuple(name.strip() for name in returned.split(", ")),
        kernel=launch[0],
        launch=tuple(launch[1:]),
    )
