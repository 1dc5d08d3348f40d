"""What a worker is told of how this process compiles generated code."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest
from torch._inductor import config as inductor_config
from torch._inductor import cpu_vec_isa

from inductor_plugin.inductor.guard import bench


@pytest.mark.filterwarnings("error")
def test_options_that_change_how_code_is_compiled_are_carried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    isa = cpu_vec_isa.supported_vec_isa_list[0]
    monkeypatch.setattr(cpu_vec_isa, "pick_vec_isa", lambda: isa)
    monkeypatch.setattr(type(isa), "__bool__", lambda self: True)  # pyright: ignore
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/somewhere")
    before, options = dict(bench.load_settings("cpu").options), cast("Any", inductor_config)
    with options.patch({"cpp.simdlen": 256, "max_autotune": True}):
        settings = bench.load_settings("cpu")
    assert dict(settings.options) == {**before, "cpp.simdlen": 256}
    assert dict(settings.environment) == {"TORCHINDUCTOR_CACHE_DIR": "/somewhere"}
    assert str(pickle.loads(settings.isa)) == str(isa)
