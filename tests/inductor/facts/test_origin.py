"""Which function the nodes of a graph are of."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inductor_plugin.inductor.facts.origin import function_of, qualified

SOURCE = """\
class Outer:
    '''
def decoy():
    '''
    async def forward(self, x):
        def forward(x):
            y = x
        return forward(x)

class Block(Outer):
    def __init__(self): ...

    def forward(
        self, x
    ):
        y = x
        return y

def step(x):
    return x
""".splitlines(keepends=True)


@pytest.mark.parametrize(
    ("line", "name", "said"),
    [
        (16, "forward", "Block.forward"),
        (13, "forward", "Block.forward"),
        (8, "__init__", "__init__"),  # below none of this name
        (7, "forward", "forward"),  # of a function
        (20, "step", "step"),
        (16, "<lambda>", "<lambda>"),
        (900, "step", "step"),
        (0, "step", "step"),
    ],
)
def test_a_function_is_named_with_its_class(line: int, name: str, said: str) -> None:
    assert qualified(SOURCE, line, name) == said
    assert qualified([], line, name) == name


def node(trace: object, op: str = "call_function") -> Any:
    return SimpleNamespace(op=op, meta={"stack_trace": trace})


def frames(file: Path, *calls: tuple[int, str]) -> str:
    return "".join(f'  File "{file}", line {line}, in {name}\n    code\n' for line, name in calls)


def test_the_function_is_the_first_of_the_calls_that_led_to_a_node(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("".join(SOURCE))
    block, step = (16, "forward"), (20, "step")
    inputs = [node(frames(file, step), "placeholder")] * 2000
    assert function_of([*inputs, node(None), node(""), node(frames(file, block, step))]) == "Block.forward"  # fmt: skip
    wrapped = frames(file, (3, "wrapper"), block)
    assert function_of([node(wrapped)]) == "Block.forward"
    assert function_of([node(frames(file, (3, "wrapper")))]) == "wrapper"
    resumed = frames(file, (17, "torch_dynamo_resume_in_forward_at_16"))
    assert function_of([node(resumed)]) == "Block.forward"
    assert function_of(inputs) == ""
