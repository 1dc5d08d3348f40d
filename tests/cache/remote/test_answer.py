"""What is said of the answers of a remote."""

from __future__ import annotations

import logging

import pytest

from inductor_plugin.cache.remote.answer import Answer, tell_of
from inductor_plugin.cache.remote.chain import Chain
from tests.support.warned import forget


def test_damage_is_one_line_of_a_log_each_and_a_warning_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forget()
    caplog.set_level(logging.INFO)
    tell_of([Answer(Chain(), damage=("a\nERROR: forged", "\x1b]0;owned"))], "s3://b")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", r"damaged object in the remote cache: a\nERROR: forged"),
        (
            "WARNING",
            r"inductor-plugin: damaged object in the remote cache: a\nERROR: forged; it is ignored, and "
            "`stats` counts further ones",
        ),
        ("INFO", r"damaged object in the remote cache: \x1b]0;owned"),
    ]
