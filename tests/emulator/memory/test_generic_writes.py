"""What threads have written to shared memory, and the proxy fence between that and what reads it through the async proxy."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emulator.fault import FaultError
from tests.emulator.snippet import run
from tests.support.emulator.threads import OWN

_STORE = "@%p cp.async.bulk.global.shared::cta.bulk_group [%out], [tile], 256; cp.async.bulk.commit_group;"
WRITES = {
    "a store": "st.shared.b32 [%s], %tid;",
    "an atomic operation": "atom.shared.exch.b32 %y, [%s], %tid;",
    "a reduction": "red.shared.add.u32 [%s], 1;",
    "cp.async": "cp.async.ca.shared.global [%s], [%at], 4; cp.async.wait_all;",
}


def fenced(write: str, fence: str) -> None:
    """Run a block that writes to shared memory, has a fence, and stores that memory by a bulk copy."""
    body = f"""{OWN} .reg .b32 %s; .reg .pred %none; .shared .align 16 .b8 tile[256];
      mov.u32 %s, tile; mad.lo.u32 %s, %tid, 4, %s; setp.eq.u32 %p, %tid, 0; setp.gt.u32 %none, %tid, 64;
      {WRITES[write]} {fence} bar.sync 0; {_STORE}
    """
    run(body, [np.zeros(64, np.uint32)], block=64)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("fence", ["fence.proxy.async.shared::cta;", "@%p fence.proxy.async;"])
def test_a_fence_of_any_thread_orders_what_threads_have_written(write: str, fence: str) -> None:
    fenced(write, fence)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    "fence", ["", "@%none fence.proxy.async;", "fence.proxy.async.global;", "fence.acq_rel.cta;"]
)
def test_without_a_fence_that_runs_it_is_a_fault(write: str, fence: str) -> None:
    with pytest.raises(FaultError, match=r"there is no fence\.proxy\.async since"):
        fenced(write, fence)
