"""The cases of CUTLASS's products: each family of kernels at the sizes, strides and types that exercise its edges."""

from __future__ import annotations

from tests.emulator.suite.cases import sm80, sm90, sm90_fp8, sm100
from tests.emulator.suite.cases.configs import Product

CASES: dict[str, Product] = {**sm80.CASES, **sm90.CASES, **sm90_fp8.CASES, **sm100.CASES}
"""All by name; the first word of a name is the family of kernels."""
