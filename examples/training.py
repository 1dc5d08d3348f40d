"""A training loop: attention is chosen for the forward and for the backward pass, each on its own.

A small causal language model learns to repeat what it has seen eight tokens before.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import inductor_plugin

TOKENS, WIDTH, HEADS, LENGTH = 32, 64, 4, 64
device = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, TOKENS)

    def forward(self, tokens):
        return self.head(self.blocks(self.tokens(tokens) + self.places))


def show(tickets):
    """Print what was decided for each attention of a graph."""
    for ticket in tickets:
        if ticket.verdict is not None and ticket.problem.op.startswith("attention"):
            print(f"{ticket.problem.op}: {ticket.verdict.winner}")


torch.manual_seed(0)
model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
with inductor_plugin.observe(show):
    compiled = torch.compile(model, backend="inductor_plugin")
    for step in range(30):
        tokens = torch.randint(TOKENS, (16, 8), device=device).repeat(1, LENGTH // 8)
        logits = compiled(tokens)
        loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 10 == 0:
            print(f"step {step}: loss {losses[-1]:.2f}")
print(f"step {step}: loss {losses[-1]:.2f}")
assert losses[-1] < losses[0]
