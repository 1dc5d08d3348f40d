"""Models of `transformers`, with random weights and without dropout."""

from __future__ import annotations

import importlib
from typing import Any


def gpt2(**sizes: int) -> Any:
    """Build a GPT-2; what `sizes` leaves out is as in the paper's smallest."""
    off = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "use_cache": False}
    package = _package()
    return package.GPT2Model(package.GPT2Config(**off, bos_token_id=0, eos_token_id=0, **sizes))


def bert(**sizes: int) -> Any:
    """Build a BERT without its pooling layer; what `sizes` leaves out is as in the base model."""
    off = {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    package = _package()
    return package.BertModel(package.BertConfig(**off, **sizes), add_pooling_layer=False)


def _package() -> Any:
    """Import `transformers` without its types: pyright takes 20 s to bind its `__init__`."""
    return importlib.import_module("transformers")
