"""The built-in kernel templates. Imports as ``inductor_plugin.templates``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from inductor_plugin.templates.attention_math import AttentionMath
from inductor_plugin.templates.cutlass.gemm import CutlassGemm
from inductor_plugin.templates.cutlass_attention.fmha import CutlassFmha
from inductor_plugin.templates.triton.decode import TritonDecode
from inductor_plugin.templates.triton.fp8 import TritonFp8
from inductor_plugin.templates.triton.int4 import TritonInt4
from inductor_plugin.templates.triton.persistent_tma import TritonPersistentTma
from inductor_plugin.templates.triton.split_k import TritonSplitK
from inductor_plugin.templates.triton_attention.backward import TritonAttentionBackward
from inductor_plugin.templates.triton_attention.decode import TritonAttentionDecode
from inductor_plugin.templates.triton_attention.forward import TritonAttention

if TYPE_CHECKING:
    from inductor_plugin.template import Template

if __name__ != "inductor_plugin.templates":
    raise ImportError(
        f"templates/ was imported as {__name__!r}, which would register every template twice; "
        "import inductor_plugin.templates"
    )


class Registers(Protocol):
    """The part of a registry that is needed here."""

    def register(self, template: Template) -> None:
        """Add a template."""
        ...


BUILTIN: tuple[Template, ...] = (
    CutlassGemm(),
    CutlassFmha(),
    TritonPersistentTma(),
    TritonDecode(),
    TritonSplitK(),
    TritonFp8(),
    TritonInt4(),
    TritonAttention(),
    TritonAttentionDecode(),
    TritonAttentionBackward(),
    AttentionMath(),
)
"""All built-in templates, in the order in which they are registered."""


def register_builtin(registry: Registers) -> None:
    """Register all built-in templates."""
    for template in BUILTIN:
        registry.register(template)
