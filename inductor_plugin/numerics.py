"""How far a candidate's numbers may be from the library kernel's. Pure.

Both kernels round differently, so the bound is one on the *difference of two roundings*, relative to
the root mean square of the reference: random operands make every output of the same size, which
keeps one number meaningful for the whole tensor.
"""

from __future__ import annotations

_UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-4,
    "float8_e5m2fnuz": 2.0**-3,
    "complex128": 2.0**-53,
    "complex64": 2.0**-24,
    "complex32": 2.0**-11,
    "bcomplex32": 2.0**-8,
}
_TF32_ROUNDOFF = 2.0**-11
_OUTPUT_ULPS = 16.0
"""An output of 4 standard deviations rounds in units 4 times those of the root mean square, in both
kernels; twice that again for an epilogue's intermediate rounding."""


def tolerance(output_dtype: str, input_dtype: str, reduction: int, *, tf32: bool) -> float:
    """Return the largest accepted error, relative to the root mean square of the reference.

    Args:
        output_dtype: Type the kernel writes, without ``torch.``.
        input_dtype: Type of its operands.
        reduction: Length of the longest dot product.
        tf32: True if float32 operands may be rounded to TF32.

    Returns:
        0.0 for integers, which have to agree exactly.
    """
    unit = _UNIT_ROUNDOFF.get(output_dtype)
    if unit is None:
        return 0.0
    operand = _TF32_ROUNDOFF if tf32 and input_dtype == "float32" else 0.0
    # A sum of k terms rounded in float32 in another order moves by about sqrt(k) units (Higham,
    # Accuracy and Stability, 4.2); 8 covers the maximum over millions of outputs.
    summed = 8.0 * max(reduction, 1) ** 0.5 * _UNIT_ROUNDOFF["float32"]
    return _OUTPUT_ULPS * unit + 8.0 * operand + summed
