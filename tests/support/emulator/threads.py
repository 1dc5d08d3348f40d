"""PTX that finds the place of a thread's own result, and the results."""

from __future__ import annotations

import numpy as np

OWN = """
  .reg .b32 %tid, %own, %x, %y; .reg .b64 %out, %at; .reg .pred %p, %q;
  mov.u32 %tid, %tid.x; mov.u32 %x, %ctaid.x; mov.u32 %y, %ntid.x; mad.lo.u32 %own, %x, %y, %tid;
  ld.param.u64 %out, [p0]; mad.wide.u32 %at, %own, 4, %out;
"""


def numbers(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.zeros(count, np.uint32)
