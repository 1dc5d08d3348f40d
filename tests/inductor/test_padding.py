"""Where others repeat a compile, Inductor does not time whether unaligned products are faster padded: it would do so on a GPU."""

# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.fx_passes import pad_mm

import inductor_plugin
from inductor_plugin.config import Config
from inductor_plugin.inductor import hooks
from inductor_plugin.tuning.pins.recording import Recording, recording
from inductor_plugin.tuning.ranks import job

pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Inductor looks at first says that there is one."""
    monkeypatch.setattr(pad_mm, "check_device", mock.Mock(return_value=True))
    monkeypatch.setattr(pad_mm, "has_triton", lambda: True)


def is_padded_if_faster(stated: dict[str, Any], **others: Any) -> bool:
    """Return whether Inductor would go on to time the padding of a product of 65 x 65 x 65, or to pad it untimed."""
    square = torch.empty(65, 65)
    created = hooks.compile_options(None, Config.load(stated, {}), others)
    with inductor_config.patch(created):
        return pad_mm.can_pad(square, square, torch.ops.aten.mm)


def test_a_compile_of_its_own_may_time_it() -> None:
    assert is_padded_if_faster({})
    assert not is_padded_if_faster({}, shape_padding=False)


def test_recorded_compiles_do_not() -> None:
    with recording(Recording()):
        assert not is_padded_if_faster({})
        assert not is_padded_if_faster({}, shape_padding=True)


def test_compiles_by_pins_do_not(tmp_path: Path) -> None:
    pins = tmp_path / "pins.json"
    with inductor_plugin.record(pins):
        torch.compile(
            torch.mm, backend="inductor_plugin", options={"cache_dir": str(tmp_path / "cache")}
        )(torch.ones(8, 8), torch.ones(8, 8))
    assert not is_padded_if_faster({"policy": "pinned", "pin_file": str(pins)})


def test_compiles_of_ranks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(job, "current", mock.Mock(return_value=None))
    assert is_padded_if_faster({})
    monkeypatch.setattr(job, "current", mock.Mock(return_value=object()))
    assert not is_padded_if_faster({})


def test_padding_that_nobody_times_stays() -> None:
    with recording(Recording()):
        assert is_padded_if_faster({}, force_shape_pad=True)
        with inductor_config.patch(force_shape_pad=True):
            assert is_padded_if_faster({})
