"""A test file of PyTorch that needs a GPU, as one that runs on the CPU. Pure.

What only a GPU has (Triton, TMA, counters of its kernels) then fails or is skipped in both arms alike.
"""

from __future__ import annotations

import ast
import re

_DEVICE = re.compile(r"""(["'])cuda(?::\d+)?\1""")
_BOTH = re.compile(
    r"""(parametrize\(\s*["']\w+["'],\s*[(\[])["'](?:cpu["'],\s*["']cuda|cuda["'],\s*["']cpu)["'],?\s*([)\]])"""
)
"""The devices of a test that is for both: named cpu, too, it would be there twice."""
_MOVE = re.compile(r"\.cuda\(\)")
_NEEDS_GPU = re.compile(
    r"^[ \t]*@requires_(?:gpu|cuda)(?:_and_triton)?(?:\(.*\))?[ \t]*\n", re.MULTILINE
)
_NAME = "GPU_TYPE"


def cpu_copy(text: str) -> str:
    """Return a test file in which the CPU has the place of the GPU.

    Raises:
        SyntaxError: It is no Python.
    """
    text = _NEEDS_GPU.sub(
        "", _MOVE.sub(".cpu()", _DEVICE.sub(r"\1cpu\1", _BOTH.sub(r'\1"cpu",\2', text)))
    )
    lines = text.splitlines(keepends=True)
    for end in sorted(_ends(ast.parse(text)), reverse=True):
        lines.insert(end, f'{_NAME} = "cpu"\n')
    return "".join(lines)


def _ends(tree: ast.Module) -> set[int]:
    """Return the last lines of the file's own imports of `GPU_TYPE`."""
    return {
        node.end_lineno or node.lineno
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and any(name.name == _NAME for name in node.names)
    }
