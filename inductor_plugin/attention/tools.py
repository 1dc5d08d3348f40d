"""Operations that the functions of `inductor_plugin.attention.library` apply to operands; here, to tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.utils.weak import WeakTensorKeyDictionary


class Tools(Protocol):
    """Operations of the kernels' functions on tensors or on nodes."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call an operator, ``namespace.name``, and return its results."""
        ...

    def size(self, x: Any, dim: int) -> Any:
        """Return an extent."""
        ...

    def transpose(self, x: Any, first: int, second: int) -> Any:
        """Exchange two dimensions, as a view."""
        ...

    def expand(self, x: Any, size: Sequence[Any]) -> Any:
        """Repeat dimensions of 1, as a view."""
        ...

    def unsqueeze(self, x: Any) -> Any:
        """Add a last dimension of 1, as a view."""
        ...

    def squeeze(self, x: Any) -> Any:
        """Drop the last dimension of 1, as a view."""
        ...

    def padded(self, x: Any, multiple: int, value: float) -> Any:
        """Pad the last dimension to a multiple, with a value; unchanged if it is one already."""
        ...

    def head(self, x: Any, length: Any) -> Any:
        """Return the first ``length`` elements of the last dimension, as a view."""
        ...

    def dense(self, x: Any, order: Sequence[int]) -> Any:
        """Return x dense with its dimensions in this order in memory, outermost first; copies if needed."""
        ...

    def empty(self, like: Any, size: Sequence[int], dtype: torch.dtype) -> Any:
        """Return uninitialized memory on the device of ``like``."""
        ...


class TorchTools:
    """The operations on tensors."""

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call an operator."""
        return overload(name)(*args, **kwargs)

    def size(self, x: torch.Tensor, dim: int) -> Any:
        """Return an extent."""
        return x.size(dim)

    def transpose(self, x: torch.Tensor, first: int, second: int) -> torch.Tensor:
        """Exchange two dimensions."""
        return x.transpose(first, second)

    def expand(self, x: torch.Tensor, size: Sequence[Any]) -> torch.Tensor:
        """Repeat dimensions of 1."""
        return x.expand(*size)

    def unsqueeze(self, x: torch.Tensor) -> torch.Tensor:
        """Add a last dimension of 1."""
        return x.unsqueeze(-1)

    def squeeze(self, x: torch.Tensor) -> torch.Tensor:
        """Drop the last dimension of 1."""
        return x.squeeze(-1)

    def padded(self, x: torch.Tensor, multiple: int, value: float) -> torch.Tensor:
        """Pad the last dimension to a multiple."""
        missing = -x.size(-1) % multiple
        return torch.ops.aten.constant_pad_nd.default(x, [0, missing], value) if missing else x

    def head(self, x: torch.Tensor, length: int) -> torch.Tensor:
        """Return the first ``length`` elements of the last dimension, as a view."""
        return x[..., :length]

    def dense(self, x: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
        """Return x dense with its dimensions in this order in memory."""
        back = sorted(range(len(order)), key=order.__getitem__)
        return x.permute(*order).contiguous().permute(*back)

    def empty(self, like: torch.Tensor, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Return uninitialized memory on the device of ``like``."""
        return torch.empty(tuple(size), dtype=dtype, device=like.device)


def whole_bias(t: Tools, x: Mapping[str, Any]) -> Any:
    """Return the bias expanded as `scaled_dot_product_attention` does, as ``efficient`` requires; None without.

    aten/src/ATen/native/transformers/attention.cpp, preprocess_mask, of torch 2.11 to 2.15.
    """
    bias, q, k = x.get("bias"), x["q"], x["k"]
    if bias is None:
        return None
    return t.expand(bias, (t.size(q, 0), t.size(q, 1), t.size(q, 2), t.size(k, 2)))


class MemoizedByVersion:
    """Memoizes a function of one tensor until the tensor is modified in place, so that its cost is not measured."""

    def __init__(self, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Cache each result of ``make`` as long as its tensor is alive."""
        self._make = make
        self._results: Any = WeakTensorKeyDictionary()

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the function's result for a tensor."""
        version, result = self._results.get(tensor, (None, tensor))
        if version == tensor._version:
            return result
        result = self._make(tensor)
        if result is not tensor:  # the cache would keep the tensor alive
            self._results[tensor] = tensor._version, result
        return result


@functools.cache
def overload(name: str) -> Any:
    """Return the operator ``namespace.name``; the module that defines it must be imported."""
    namespace, _, rest = name.partition(".")
    return getattr(getattr(torch.ops, namespace), rest).default
