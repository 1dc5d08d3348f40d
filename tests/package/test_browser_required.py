"""A test that lacks a browser is skipped, unless a browser is asked for."""

from __future__ import annotations

import pytest

from tests.support.browser import CHROMIUM, REQUIRED, missing


def test_without_a_browser_a_test_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs Chromium"):
        missing("needs Chromium")


def test_where_a_browser_is_asked_for_a_test_without_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="needs Chromium"):
        missing("needs Chromium")


def test_where_the_browser_alone_is_asked_for_what_a_network_brings_may_be_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(REQUIRED, CHROMIUM)
    with pytest.raises(pytest.fail.Exception, match="needs Chromium"):
        missing("needs Chromium")
    with pytest.raises(pytest.skip.Exception, match="needs npm"):
        missing("needs npm", fetched=True)
    monkeypatch.setenv(REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="needs npm"):
        missing("needs npm", fetched=True)
