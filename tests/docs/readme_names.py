"""What the snippets of README.md take as given: a model, a program, operands of attention, and something compiled to save."""

# torch types these partly.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnusedImport=false

import torch
from torch.export import export

import inductor_plugin  # noqa: F401  snippets name it

torch.manual_seed(0)
model = torch.nn.Linear(64, 32)
x = torch.randn(16, 64)
program = export(torch.nn.Linear(64, 32).eval(), (x,))
torch.compile(torch.nn.Linear(64, 32), backend="inductor_plugin")(x)

q, k, v = (torch.randn(1, 2, 16, 128, dtype=torch.bfloat16) for _ in range(3))
q8, k8, v8 = (each.to(torch.float8_e4m3fn) for each in (q, k, v))
q_scale = k_scale = v_scale = 1.0
packed_q, packed_k, packed_v = (each[0].transpose(0, 1).contiguous() for each in (q, k, v))
ends = torch.tensor([0, 10, 16], dtype=torch.int32)
n = 10


def train_step(network: torch.nn.Module) -> None:
    """Compute a gradient."""
    network(x).sum().backward()
