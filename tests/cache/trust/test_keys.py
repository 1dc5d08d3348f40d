"""Keys as text and as files."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import pytest

from inductor_plugin.cache.trust.keys import is_signature, key_bytes, new_key, open_signer
from inductor_plugin.cache.trust.policy import parse_trust, trust_or_nobody
from inductor_plugin.cache.trust.statement import statement
from inductor_plugin.config import Config
from inductor_plugin.errors import OptionError, TrustError
from tests.support.repository import REPOSITORY
from tests.support.trust.payload import FRIEND, STRANGER, Kernel


def test_a_new_key_is_private_and_signs(tmp_path: Path) -> None:
    file = tmp_path / "key"
    signer = new_key(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().startswith("-----BEGIN PRIVATE KEY-----\n")
    again = open_signer(file)
    assert again is not None
    assert again.public == signer.public
    entry = Kernel(tmp_path / "files", {"kernel.so": b"x"}).entry
    assert is_signature(entry, signer.public, again.sign(entry))
    assert not is_signature(entry, FRIEND.public, again.sign(entry))
    with pytest.raises(TrustError, match="File exists; name a new file"):
        new_key(file)


def test_no_file_is_no_signer() -> None:
    assert open_signer("") is None


def test_a_key_of_another_kind_is_no_signing_key(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    content = X25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    (tmp_path / "key").write_bytes(content)
    (tmp_path / "key").chmod(0o600)
    with pytest.raises(TrustError, match="no Ed25519 key"):
        open_signer(tmp_path / "key")


def test_what_is_signed_is_fixed(tmp_path: Path) -> None:
    """A change of these bytes makes all signatures worthless: it needs another context, and both have to be checked."""
    entry = Kernel(tmp_path / "files", {"kernel.so": b"x"}).entry
    assert statement(entry) == (
        b'{"bytes":1,"context":"inductor-plugin kernel 1",'
        b'"digest":"' + entry.digest.encode() + b'",'
        b'"files":{"kernel.so":"2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"},'
        b'"key":{"config":"64x64","flags":"-O3","source":"k","target":"x86_64","template":"gemm","toolchain":"g++ 12"},'
        b'"resources":{"registers":null,"shared_bytes":null,"spills":null,"threads":null}}'
    )


@pytest.mark.parametrize(
    "text", ["", "ed25519:", f"{FRIEND.public}A", FRIEND.public.lower(), FRIEND.public[:-1] + "+"]
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"ed25519:|base64"):
        key_bytes(text)


def test_a_key_has_one_text() -> None:
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    again = FRIEND.public[:-1] + digits[digits.index(FRIEND.public[-1]) + 1]  # of the same 32 bytes
    assert len(key_bytes(FRIEND.public)) == 32
    with pytest.raises(ValueError, match="are not 32 bytes in base64"):
        key_bytes(again)


def test_keys_have_names_and_may_be_in_files(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"# the team\n\n{STRANGER.public} build server  # since May\n")
    file.chmod(0o644)
    trust = parse_trust(f" {FRIEND.public} me , {file},")
    assert trust.keys == {FRIEND.public: "me", STRANGER.public: "build server"}
    assert trust.name(STRANGER.public) == f"build server ({STRANGER.public[:20]}...)"
    assert parse_trust("").keys == {}


def test_a_key_may_have_a_last_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        at = datetime(2027, 6, 30, 23, 59, tzinfo=timezone.utc)

        @classmethod
        def now(cls, zone: timezone) -> datetime:
            return cls.at.astimezone(zone)

    monkeypatch.setattr("inductor_plugin.cache.trust.policy.datetime", Clock)
    file = tmp_path / "keys"
    file.write_text(
        f"{STRANGER.public} expires=2027-06-30 build server\n"
        f"{STRANGER.public} expires=2030-01-01\n{STRANGER.public} again\n"
    )
    file.chmod(0o600)
    trust = parse_trust(f"{FRIEND.public} me,{file}")
    assert trust.keys == {FRIEND.public: "me", STRANGER.public: "again"}
    assert trust.expires == {STRANGER.public: date(2027, 6, 30)}  # the strictest line
    assert not trust.has_expired(STRANGER.public)
    short = f"{STRANGER.public[:20]}..."
    assert trust.described(STRANGER.public) == f"again ({short}), expires on 2027-06-30"
    Clock.at += timedelta(minutes=1)
    assert trust.has_expired(STRANGER.public)
    assert not trust.has_expired(FRIEND.public)
    assert trust.described(STRANGER.public) == f"again ({short}), expired on 2027-06-30"
    assert trust.described(FRIEND.public) == trust.name(FRIEND.public)


@pytest.mark.parametrize(
    "word",
    [
        "expires=soon", "Expires=2027-06-30", "expire=2027-06-30", "expires:2027-06-30", "exp=2027-06-30",
        "(expires=2020-01-01)", "a;expires=2020-01-01", '"expires=2020-01-01"', "not-after=2020-01-01",
        "valid-until=2020-01-01", "expiry:2020-01-01", "expires=", "=",
    ],
)  # fmt: skip
def test_a_day_that_is_none_trusts_nobody(word: str) -> None:
    text = f"{FRIEND.public} me {word}"
    assert Config.load({"trusted_keys": text}, environ={}).trusted_keys == text
    with pytest.raises(
        TrustError, match=re.escape(f"{word!r} is no day; write expires=2027-06-30; corr")
    ):
        parse_trust(text)
    assert trust_or_nobody(text).keys == {}


def test_a_variable_that_no_option_has_checked_is_refused_in_the_same_words() -> None:
    with pytest.raises(TrustError, match="trusted_keys has 'alice'; use a key, or the path"):
        parse_trust("alice")


def test_the_option_refuses_what_is_neither_key_nor_path() -> None:
    stated = Config.load({"trusted_keys": f"{FRIEND.public} me,/etc/keys"}, environ={})
    assert stated.trusted_keys == f"{FRIEND.public} me,/etc/keys"
    for text in ("ed25519:short", "alice", FRIEND.public + "\nx"):
        with pytest.raises(OptionError, match="key show FILE"):
            Config.load({"trusted_keys": text}, environ={})


def test_no_verb_and_no_store_imports_cryptography_without_a_signature(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from inductor_plugin.cli import main\n"
        "from inductor_plugin.cache import open_store, KernelKey\n"
        "store = open_store(sys.argv[1])\n"
        "store.put_kernel(KernelKey('a', 'b', 'c', 'd', 'e', 'f'), {'kernel.so': b'x'})\n"
        "assert main(['verify', '--cache-dir', sys.argv[1]]) == 0\n"
        "assert not any(name.startswith('cryptography') for name in sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "cache")], cwd=REPOSITORY, check=True
    )
