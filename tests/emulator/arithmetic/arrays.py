"""The names of numpy types."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
"""Values of many lanes, or bytes; the docstring says which type."""

U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I8, I32, I64 = np.int8, np.int32, np.int64
F16, F32, F64 = np.float16, np.float32, np.float64


def flat(values: Any) -> Array:
    """Return values in memory one behind the other, so that they can be viewed as another type."""
    return np.ascontiguousarray(values)
