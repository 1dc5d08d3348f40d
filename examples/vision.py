"""A vision transformer: compile it for a fixed batch, and compare its numbers and its speed with eager.

Run it twice: the second process finds everything in the cache, and compiles without measuring.
"""

from __future__ import annotations

import time

import torch
from torch._inductor import config as inductor_config
from transformers import ViTConfig, ViTModel

import inductor_plugin

device = "cuda" if torch.cuda.is_available() else "cpu"
inductor_config.freezing = device == "cpu"  # a CPU has several kernels for frozen weights alone

torch.manual_seed(0)
sizes = ViTConfig(
    image_size=64,
    patch_size=8,
    hidden_size=96,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=3,
)
model = ViTModel(sizes, add_pooling_layer=False).eval().to(device)
images = torch.randn(8, 3, 64, 64, device=device)


def features(function):
    """Return the state of each image's first token."""
    return function(pixel_values=images).last_hidden_state[:, 0]


def images_per_second(function, calls=20):
    """Return how many images are computed in a second."""
    start = time.perf_counter()
    for _ in range(calls):
        out = features(function)
    out.sum().item()  # waits for a GPU
    return calls * len(images) / (time.perf_counter() - start)


with torch.no_grad():
    compiled = torch.compile(model, backend="inductor_plugin")
    start = time.perf_counter()
    difference = (features(compiled) - features(model)).abs().max().item()
    seen = inductor_plugin.stats()
    print(f"compiled in {time.perf_counter() - start:.1f} s, {seen.wall_s:.1f} s of it tuning")
    print(f"{seen.problems} problems, {seen.record_hits} of them known")
    print(f"largest difference to eager: {difference:.1e}")
    print(
        f"images per second: {images_per_second(compiled):.0f}, eager {images_per_second(model):.0f}"
    )
assert difference < 1e-3
