"""A decoder of Hugging Face's transformers: compile it, generate some tokens, and see which kernel runs for each product.

The model is a small Llama with random weights, built from its configuration. Its window has a fixed size, so that one graph serves all steps.
"""

from __future__ import annotations

import torch
from torch._inductor import config as inductor_config
from transformers import LlamaConfig, LlamaForCausalLM

import inductor_plugin

WINDOW, PROMPT, NEW = 32, 8, 6
device = "cuda" if torch.cuda.is_available() else "cpu"
inductor_config.freezing = device == "cpu"  # a CPU has several kernels for frozen weights alone

torch.manual_seed(0)
sizes = LlamaConfig(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=WINDOW,
    use_cache=False,
)
model = LlamaForCausalLM(sizes).eval().to(device)


def generate(function, tokens):
    """Return the tokens with those that the model finds most likely after them."""
    tokens = tokens.clone()
    for at in range(PROMPT, PROMPT + NEW):
        logits = function(input_ids=tokens).logits
        tokens[:, at] = logits[:, at - 1].argmax(-1)  # causal: what follows has no influence
    return tokens[:, PROMPT : PROMPT + NEW]


def show(tickets):
    """Print the decision of each problem of a graph, once it is compiled."""
    for ticket in tickets:
        if ticket.verdict is not None:
            print(
                f"  {ticket.problem.describe()}: {ticket.verdict.winner} ({ticket.verdict.reason})"
            )


prompt = torch.randint(256, (2, WINDOW), device=device)
with torch.no_grad(), inductor_plugin.observe(show):
    print("decided:")
    compiled = torch.compile(model, backend="inductor_plugin")
    tokens = generate(compiled, prompt)
    print("generated:", tokens.tolist())
    print("the same tokens as eager:", torch.equal(tokens, generate(model, prompt)))
