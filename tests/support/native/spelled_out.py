"""Generated code with its call sites spelled out as the operators they call, which say all in one line."""

from __future__ import annotations

import ast
import re

_SITE = re.compile(r"^(launch_\w+) = inductor_plugin\.ops\.sites\.(site\(.*\))$", re.M)


def operators_for_sites(code: str) -> str:
    """Return generated code in which each call of a site is written as the call of its operator."""
    for name, text in _SITE.findall(code):
        site = _call(text)
        op, *_ = map(ast.literal_eval, site.args)
        constants = [ast.unparse(constant) for constant in _elements(site.args[1])]
        counts = {word.arg: ast.literal_eval(word.value) for word in site.keywords}
        reads = counts.get("reads", 0)

        def operator(
            match: re.Match[str],
            op: str = op,
            constants: list[str] = constants,
            reads: int = reads,
        ) -> str:
            call = _call(match[2])
            *operands, workspace = map(ast.unparse, call.args)
            arguments = [*operands, *constants]
            if "epilogue" in op:
                read, aux = operands[2 : 2 + reads], operands[2 + reads :]
                arguments = [
                    *operands[:2],
                    f"[{', '.join(read)}]",
                    *constants,
                    f"[{', '.join(aux)}]",
                ]
            named = [] if workspace == "None" else [f"workspace={workspace}"]
            named += [f"{word.arg}={ast.unparse(word.value)}" for word in call.keywords]
            return f"{match[1]}torch.ops.{op.replace('::', '.')}({', '.join((*arguments, *named))})"

        code = re.sub(rf"^( *)({name}\(.*\))$", operator, code, flags=re.M)
    return code


def _call(text: str) -> ast.Call:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    return call


def _elements(node: ast.expr) -> list[ast.expr]:
    assert isinstance(node, ast.Tuple)
    return node.elts
