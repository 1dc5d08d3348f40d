"""Which ranks decide together."""

from __future__ import annotations

from typing import Any

import pytest

from inductor_plugin.config import Config
from inductor_plugin.tuning.ranks.group import group_of

TEMPLATES = [("a", "module.A", ""), ("b", "module.B", "2")]


def group(
    environment: str = "e", templates: Any = TEMPLATES, host: bool = True, **options: Any
) -> str:
    config = Config.load(options, environ={})
    return group_of(environment, config, templates, host_counts=host)


@pytest.mark.parametrize(
    "same",
    [
        {"cache_dir": "/elsewhere"},
        {"cache_read": "/elsewhere"},
        {"remote_url": "file:///shared"},
        {"policy": "cached"},
        {"progress": "off"},
        {"templates": TEMPLATES[::-1]},
    ],
)
def test_where_a_rank_keeps_what_it_knows_makes_no_group(same: dict[str, Any]) -> None:
    assert group(**same) == group()


@pytest.mark.parametrize(
    "other",
    [
        {"environment": "another GPU"},
        {"templates": TEMPLATES[:1]},
        {"templates": [TEMPLATES[0], ("b", "module.B", "3")]},
        {"host": False},
        {"never_slower_margin": 1.1},
        {"max_candidates": 2},
    ],
)
def test_what_a_decision_rests_on_makes_a_group(other: dict[str, Any]) -> None:
    assert group(**other) != group()
