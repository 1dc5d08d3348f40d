"""What `doctor` finds of keys that cannot be used: what is wrong, and apart from that what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from inductor_plugin.cli.trust.finding import trust


def encrypted() -> bytes:
    return Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )


def of_another_kind() -> bytes:
    return X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


@pytest.mark.parametrize("option", ["signing_key", "trusted_keys"])
@pytest.mark.parametrize("content", [bytes, lambda: b"\xff", encrypted, of_another_kind])
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o666])
def test_a_key_that_cannot_be_used_has_its_remedy(
    option: str, content: Callable[[], bytes], mode: int, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content() or b"; ")
    file.chmod(mode)
    options = {"signing_key": "", "trusted_keys": "", option: str(file)}
    finding = trust(tmp_path / "cache", **options)
    assert finding.state == "broken"
    assert str(file) in finding.detail
    assert finding.remedy.strip()
    assert finding.remedy not in finding.detail


@pytest.mark.parametrize("option", ["signing_key", "trusted_keys"])
def test_a_key_that_is_missing_has_its_remedy(option: str, tmp_path: Path) -> None:
    options = {"signing_key": "", "trusted_keys": "", option: str(tmp_path / "none")}
    finding = trust(tmp_path / "cache", **options)
    assert finding.state == "broken"
    assert finding.remedy not in ("", finding.detail)
