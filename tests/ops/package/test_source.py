from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import pytest

from inductor_plugin.attention import blockwise
from inductor_plugin.ops.package.source import blocks_text, site_text

VALUES = (0.5, -3.0, 0.1, 2e-38, 3.4028235e38, 1e39, -1e300, math.inf, -math.inf, math.nan, 2)
PROGRAM = """
#include <cmath>
#include <cstdio>
namespace inductor_plugin {{
struct Kernel {{ Kernel(char const*, char const*, char const*, int) {{}} }};
struct GemmSite {{ int kind, a, b, swizzle, raster, split, bias, reads, aux; float alpha, beta; int scale; }};
constexpr int kProductAlignment = 16;
struct ProductSite {{
  ProductSite(Kernel&, GemmSite site, int) {{ std::printf("%a %a\\n", site.alpha, site.beta); }}
}};
}}
{declarations}
int main() {{}}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_program_has_every_value_of_alpha_and_beta_as_float32(tmp_path: Path) -> None:
    sites = [
        site_text(
            f"site{number}",
            "inductor_plugin::cutlass_addmm.out",
            ("tn", 1, 0, 1, "row", value, -value),
            "kernel.so",
            "",
            "run",
            132,
        )
        for number, value in enumerate(VALUES)
    ]
    source, program = tmp_path / "sites.cpp", tmp_path / "sites"
    source.write_text(PROGRAM.format(declarations="\n".join(sites)), encoding="utf-8")
    command = ["g++", "-std=c++17", "-Werror", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    lines = subprocess.run([str(program)], capture_output=True, text=True, timeout=60, check=True)
    for value, line in zip(VALUES, lines.stdout.splitlines(), strict=True):
        alpha, beta = (float(word) if "n" in word else float.fromhex(word) for word in line.split())
        wanted = in_float32(value)
        assert (alpha == wanted and beta == -wanted) or (math.isnan(alpha) and math.isnan(wanted))


def test_a_program_cuts_attention_as_python_does() -> None:
    sizes = (
        f"kBlockRows = {blockwise.BLOCK_ROWS}, kBlockBytes = {blockwise.BLOCK_BYTES >> 20} << 20;"
    )
    assert sizes in blocks_text()


def in_float32(value: float) -> float:
    """Return the nearest number of 24 bits, infinite beyond the largest."""
    if not math.isfinite(value):
        return value
    if abs(value) > 3.4028235677973366e38:
        return math.copysign(math.inf, value)
    _, exponent = math.frexp(value)
    unit = 2.0 ** max(exponent - 24, -149)
    return round(value / unit) * unit
