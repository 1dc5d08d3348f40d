"""The verb `key`, `--trust`, and what `verify`, `show` and `doctor` say of signatures."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from inductor_plugin.cache import Store, open_store
from inductor_plugin.cache.transfer import parcel
from inductor_plugin.cache.transfer.archive import import_bytes
from inductor_plugin.cli import main, repair
from inductor_plugin.cli.trust.finding import trust
from tests.support.cache.records import kernel_key
from tests.support.cli.command import answer_of, run
from tests.support.trust.payload import FRIEND, Kernel


@pytest.fixture
def public(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Make a signing key, and name it in the environment; return its public half."""
    assert main(["key", "new", str(tmp_path / "key"), "--json"]) == 0
    monkeypatch.setenv("INDUCTOR_PLUGIN_SIGNING_KEY", str(tmp_path / "key"))
    return json.loads(capsys.readouterr().out)["public"]


@pytest.fixture
def file(store: Store, tmp_path: Path, public: str, capsys: pytest.CaptureFixture[str]) -> Path:
    assert answer_of(store, capsys, "export", tmp_path / "x")["signed_by"] == public
    return tmp_path / "x"


def signed_kernels(folder: Path, count: int) -> Iterator[Kernel]:
    """Yield kernels that a friend has signed, as they are where they were taken by that signature."""
    for name in map(str, range(count)):
        kernel = Kernel(folder / name, {"kernel.so": b"library"}, name).signed(FRIEND)
        kernel.fields["taken"] = {"by": "signature", "source": "x.pack"}
        yield kernel


def test_a_key_is_made_shown_and_never_replaced(
    tmp_path: Path, public: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["key", "show"]) == 0
    assert capsys.readouterr().out.strip() == public
    assert main(["key", "new", str(tmp_path / "key")]) == 2
    assert "is there already; name another file\n" in capsys.readouterr().err
    assert main(["key", "new", str(tmp_path / "other")]) == 0
    assert "INDUCTOR_PLUGIN_TRUSTED_KEYS=ed25519:" in capsys.readouterr().out
    monkeypatch.delenv("INDUCTOR_PLUGIN_SIGNING_KEY")
    assert main(["key", "show"]) == 2
    assert "name its file" in capsys.readouterr().err


def test_an_import_is_refused_then_taken_by_the_key_and_all_say_so(
    file: Path,
    public: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = tmp_path / "there"
    assert main(["import", str(file), "--cache-dir", str(there)]) == 2
    refused = capsys.readouterr().err
    assert public in refused
    assert "--trust" in refused
    assert not there.exists()
    monkeypatch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", f"{public} me")
    assert main(["import", str(file), "--cache-dir", str(there)]) == 0
    assert "trusted keys have signed 1." in capsys.readouterr().out
    store = open_store(there)
    assert answer_of(store, capsys, "verify")["vouchers"] == {
        "built": 0,
        "operator": 0,
        "artifacts": 0,
        "directory": 0,
        "signed": [{"key": public, "name": "me", "kernels": 1}],
        "refused": [],
    }
    shown = answer_of(store, capsys, "show", kernel_key().digest)
    assert shown["taken"] == {"by": "signature", "source": str(file), "signers": [public]}
    with monkeypatch.context() as without:  # nothing can be checked, and nobody is named
        without.setitem(sys.modules, "cryptography.exceptions", None)
        assert answer_of(store, capsys, "show", kernel_key().digest)["taken"]["signers"] == []
    finding = trust(there, f"{public} me", "")
    assert (finding.state, finding.remedy) == ("ok", "")
    assert "1 signed by me" in finding.detail
    monkeypatch.delenv("INDUCTOR_PLUGIN_TRUSTED_KEYS")
    run(store, "verify", status=1)
    assert "1 refused" in capsys.readouterr().out
    finding = trust(there, "", "")
    assert finding.state == "broken"
    assert "INDUCTOR_PLUGIN_TRUSTED_KEYS" in finding.remedy


def test_kernels_of_a_withdrawn_key_are_named_each_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "there")
    digests = [kernel.place(store).name for kernel in signed_kernels(tmp_path, 3)]
    run(store, "verify", status=1)
    lines = capsys.readouterr().out.splitlines()
    named = [line.split()[1].rstrip(":") for line in lines if line.startswith("    refused ")]
    assert sorted(named) == sorted(digest[:12] for digest in digests)
    assert all(FRIEND.public in line for line in lines if line.startswith("    refused "))
    assert not any("more refused" in line for line in lines)
    finding = trust(store.root, "", "")
    assert finding.remedy.startswith("`inductor-plugin verify` names them")
    monkeypatch.setattr(repair, "_REFUSED", 1)
    run(store, "verify", status=1)
    said = capsys.readouterr().out
    assert said.count("    refused ") == 1
    assert "and 2 more refused: `inductor-plugin verify --json` names them all" in said
    run(store, "rm", *named)
    run(store, "verify")


def test_the_list_of_kernels_says_who_vouches_for_each(
    store: Store,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (own,) = store.iter_kernels()
    (digest,) = (kernel.place(store).name for kernel in signed_kernels(tmp_path, 1))
    rows = {row["key"]: row for row in answer_of(store, capsys, "ls", "--kernels")}
    assert (rows[own.digest]["vouched"], rows[own.digest]["refusal"]) == ("built here", None)
    assert rows[digest]["vouched"] == "refused"
    assert FRIEND.public in rows[digest]["refusal"]
    (refused,) = answer_of(store, capsys, "ls", "--kernels", "--filter", "refused")
    assert refused["key"] == digest
    run(store, "ls", "--kernels")
    assert "VOUCHED" in capsys.readouterr().out
    monkeypatch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", f"{FRIEND.public} a friend")
    (signed,) = answer_of(store, capsys, "ls", "--kernels", "--filter", "signed by a friend")
    assert (signed["key"], signed["refusal"]) == (digest, None)
    assert answer_of(store, capsys, "ls", "--kernels", "--filter", "refused") == []


def test_with_trust_it_is_the_operators_word_until_its_signer_is_trusted(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "there")
    run(store, "import", "--trust", file)
    capsys.readouterr()
    assert answer_of(store, capsys, "verify")["vouchers"]["operator"] == 1
    run(store, "verify")
    assert "1 taken with --trust" in capsys.readouterr().out
    (kernel,) = store.iter_kernels()
    (signer,) = kernel.signatures
    monkeypatch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", f"{signer} me")
    vouching = answer_of(store, capsys, "verify")["vouchers"]
    assert vouching["operator"] == 0
    assert vouching["signed"] == [{"key": signer, "name": "me", "kernels": 1}]


def test_what_came_with_artifacts_is_nobodys_word(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = open_store(tmp_path / "there")
    (kernel,) = store.iter_kernels()
    import_bytes(there, parcel.of_kernel(kernel), f"kernel/{kernel.digest}")
    vouching = answer_of(there, capsys, "verify")["vouchers"]
    assert (vouching["operator"], vouching["artifacts"]) == (0, 1)
    assert answer_of(there, capsys, "show", kernel.digest)["taken"]["by"] == "artifacts"
    run(there, "verify")
    for text in (capsys.readouterr().out, trust(there.root, "", "").detail):
        assert "loaded with artifacts of torch.compiler, for which nobody vouches" in text
        assert "--trust" not in text


def test_keys_that_cannot_be_used_are_said_before_anything_is_taken(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", str(tmp_path / "nowhere"))
    assert main(["import", str(file), "--trust", "--cache-dir", str(tmp_path / "there")]) == 2
    assert "there is no such file; correct or unset it" in capsys.readouterr().err
    finding = trust(tmp_path / "there", str(tmp_path / "nowhere"), "")
    assert (finding.state, finding.remedy) == ("broken", "correct or unset it")


def test_a_word_without_a_slash_is_no_file_whatever_lies_in_the_folder(
    file: Path, public: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that came with a pack may hold a file of any name, with the keys of the pack's author."""
    monkeypatch.chdir(tmp_path)
    keys = tmp_path / "team"
    keys.write_text(f"{public} me\n", encoding="utf-8")
    keys.chmod(0o600)
    monkeypatch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", "team")
    assert main(["import", str(file), "--cache-dir", "there"]) == 2
    assert not (tmp_path / "there").exists()
    monkeypatch.setenv("INDUCTOR_PLUGIN_TRUSTED_KEYS", "./team")
    assert main(["import", str(file), "--cache-dir", "there"]) == 0


def test_doctor_names_a_signing_key_that_others_may_read(tmp_path: Path, public: str) -> None:
    finding = trust(tmp_path / "cache", "", str(tmp_path / "key"))
    assert (finding.state, public in finding.detail) == ("ok", True)
    (tmp_path / "key").chmod(0o644)
    finding = trust(tmp_path / "cache", "", str(tmp_path / "key"))
    assert finding.state == "broken"
    assert finding.remedy.startswith("run: chmod 600")


def test_doctor_names_the_package_that_is_missing(
    tmp_path: Path, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.exceptions", None)
    finding = trust(tmp_path / "cache", public, "")
    assert finding.state == "broken"
    assert finding.remedy == 'pip install "inductor-plugin[trust]"'
    assert trust(tmp_path / "cache", "", "").state == "ok"


def test_a_cache_that_is_refused_says_nothing_of_its_kernels(store: Store) -> None:
    store.root.chmod(0o777)
    finding = trust(store.root, "", "")
    assert (finding.state, finding.remedy) == ("off", "see the finding `cache`")
    assert "the cache cannot be read: the cache directory is refused" in finding.detail
