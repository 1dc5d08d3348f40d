"""Attentions of known models, for measuring."""

from __future__ import annotations

from benchmarks.harness.attention import FULL, LAST_CAUSAL, Shape
from inductor_plugin.problem.attention import Mask

_MIXED = (64, 4000, 130, 1024, 2048, 333, 8000, 785)
"""Lengths of a packed batch of 16384 tokens, as in a language model's data."""

SHAPES = (
    # Llama 3 8B and 70B (a shard of 8): prefill, long context.
    Shape("prefill llama3-8b s4096", 4, 32, 8, 4096, 4096, 128),
    Shape("prefill llama3-8b s1024", 4, 32, 8, 1024, 1024, 128),
    Shape("prefill llama3-70b/tp8 s8192", 2, 8, 1, 8192, 8192, 128),
    Shape("long llama3-8b s32768", 1, 32, 8, 32768, 32768, 128),
    # FlashAttention 3's charts: B * S = 16384, H * D = 2048 (arXiv 2407.08608, figures 5 and 6).
    Shape("full d64 s2048", 8, 32, 32, 2048, 2048, 64, FULL),
    Shape("full d64 s16384", 1, 32, 32, 16384, 16384, 64, FULL),
    Shape("full d128 s2048", 8, 16, 16, 2048, 2048, 128, FULL),
    Shape("full d128 s16384", 1, 16, 16, 16384, 16384, 128, FULL),
    Shape("causal d64 s2048", 8, 32, 32, 2048, 2048, 64),
    Shape("causal d128 s16384", 1, 16, 16, 16384, 16384, 128),
    Shape("full d256 s4096", 4, 8, 8, 4096, 4096, 256, FULL),
    Shape("causal d256 s4096", 4, 8, 8, 4096, 4096, 256),
    # Mistral 7B (window 4096), Gemma 2 9B (D 256, window 4096), GPT-OSS (D 64, window 128).
    Shape("window mistral-7b w4096 s16384", 1, 32, 8, 16384, 16384, 128, Mask(4095, 0)),
    Shape("window gemma2-9b w4096 s8192", 1, 16, 8, 8192, 8192, 256, Mask(4095, 0)),
    Shape("window gpt-oss w128 s8192", 1, 64, 8, 8192, 8192, 64, Mask(127, 0)),
    # Stable Diffusion XL and FLUX: cross attention to a text, and joint attention.
    Shape("cross sdxl s4096 t77", 2, 10, 10, 4096, 77, 64, FULL),
    Shape("cross wan s32760 t512", 1, 12, 12, 32760, 512, 128, FULL),
    Shape("joint flux s4608", 1, 24, 24, 4608, 4608, 128, FULL),
    # Decoding: one query of each sequence with its cache, and a chunk of 8 queries.
    Shape("decode llama3-8b b1 s8192", 1, 32, 8, 1, 8192, 128, LAST_CAUSAL, backward=False),
    Shape("decode llama3-8b b64 s4096", 64, 32, 8, 1, 4096, 128, LAST_CAUSAL, backward=False),
    Shape("decode llama3-70b/tp8 b16 s32768", 16, 8, 1, 1, 32768, 128, LAST_CAUSAL, backward=False),
    Shape("decode chunk 8 b16 s4096", 16, 32, 8, 8, 4096, 128, LAST_CAUSAL, backward=False),
    # Packed sequences of different lengths.
    Shape("varlen d128 t16384", 8, 16, 16, 0, 0, 128, LAST_CAUSAL, _MIXED),
    Shape("varlen gqa d128 t16384", 8, 32, 8, 0, 0, 128, LAST_CAUSAL, _MIXED),
    Shape("varlen d64 t16384", 8, 32, 32, 0, 0, 64, LAST_CAUSAL, _MIXED),
    # Operands of 8 bits. Without a causal mask: rows of few keys are large, and so is their error.
    Shape("fp8 full d128 s4096", 4, 16, 16, 4096, 4096, 128, FULL, backward=False, narrow=True),
    Shape("fp8 full d256 s4096", 4, 8, 8, 4096, 4096, 256, FULL, backward=False, narrow=True),
    Shape("fp8 decode b64 s4096", 64, 32, 8, 1, 4096, 128, FULL, backward=False, narrow=True),
)


def shape_of(name: str) -> Shape:
    """Return an attention by its name.

    Raises:
        LookupError: There is none of that name.
    """
    for shape in SHAPES:
        if shape.name == name:
            return shape
    known = ", ".join(shape.name for shape in SHAPES)
    raise LookupError(f"there is no attention {name!r}; known are {known}")
