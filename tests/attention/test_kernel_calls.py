"""What the library's kernels are called with."""

from __future__ import annotations

from typing import Any

import pytest

from inductor_plugin.attention import kernel_calls
from inductor_plugin.attention.kernel_calls import Kernel, KernelArguments
from inductor_plugin.attention.tools import TorchTools
from inductor_plugin.problem.attention import Mask


class RecordingTools(TorchTools):
    """Keeps what is called."""

    name = ""
    args: tuple[Any, ...] = ()
    keywords: dict[str, Any] = {}  # noqa: RUF012  replaced by each call

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        self.name, self.args, self.keywords = name, args, kwargs
        return None, None

    def empty(self, like: Any, size: Any, dtype: Any) -> Any:
        return "seed"


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (kernel_calls.flash_varlen, "aten._flash_attention_forward"),
        (kernel_calls.varlen, "torch_attn._varlen_attn"),
    ],
)
def test_packed_sequences_come_with_the_longest_of_queries_and_of_keys(
    kernel: Kernel, name: str
) -> None:
    tools = RecordingTools()
    x = {each: each for each in ("q", "k", "v", "cu_q", "cu_k")}
    kernel(tools, x, KernelArguments(0.5, Mask(right=0), max_q=9, max_k=7))
    assert tools.name == name
    assert tools.args[:7] == ("q", "k", "v", "cu_q", "cu_k", 9, 7)


def test_the_sides_of_a_window_fit_32_bits() -> None:
    tools = RecordingTools()
    x = {each: each for each in ("q", "k", "v", "cu_q", "cu_k")}
    kernel_calls.flash_varlen(tools, x, KernelArguments(0.5, Mask(1 << 32, 0), max_q=9, max_k=7))
    sides = tools.keywords["window_size_left"], tools.keywords["window_size_right"]
    assert sides == (2**31 - 1, 0)


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        (kernel_calls.flash_varlen_backward, "aten._flash_attention_backward"),
        (kernel_calls.varlen_backward, "torch_attn._varlen_attn_backward"),
    ],
)
def test_their_gradients_do_so_too(kernel: Kernel, name: str) -> None:
    tools = RecordingTools()
    x = {each: each for each in ("do", "q", "k", "v", "out", "lse", "cu_q", "cu_k")}
    kernel(tools, x, KernelArguments(0.5, Mask(right=0), max_q=9, max_k=7))
    assert tools.name == name
    assert tools.args[:10] == ("do", "q", "k", "v", "out", "lse", "cu_q", "cu_k", 9, 7)
