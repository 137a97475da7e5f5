"""``new-signing-key``, ``sign``, ``check --trust`` and ``--pin``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.json_documents import documented


@pytest.fixture
def keys(tmp_path: Path) -> list[object]:
    """Options of a signer who trusts its own key."""
    made = run("new-signing-key", tmp_path / "signing.key", "--json")
    assert (made.code, made.document.keys()) == (0, documented("new-signing-key").keys())
    assert (tmp_path / "signing.key").stat().st_mode & 0o777 == 0o600
    return ["--signing-key-file", tmp_path / "signing.key", f"--trusted-key={made.document['public_key']}"]


def test_a_key_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "signing.key").write_text("mine")
    made = run("new-signing-key", tmp_path / "signing.key")
    assert (made.code, (tmp_path / "signing.key").read_text()) == (1, "mine")


def test_a_key_that_others_can_read_is_refused(repository: Path, tmp_path: Path, keys: list[object]) -> None:
    (tmp_path / "signing.key").chmod(0o644)
    finished = run("check", repository, *keys)
    assert finished.code == 1
    assert "--signing-key-file" in finished.err
    assert "others than its owner" in finished.err


def test_from_the_first_key_to_a_forged_backup(
    checkpoint: Path, repository: Path, tmp_path: Path, keys: list[object]
) -> None:
    pin = tmp_path / "pin"
    finished = run("backups", repository, *keys)
    assert finished.code == 1
    assert "is not signed by a trusted key" in finished.out
    signed = run("sign", repository, *keys, "--json")
    assert (signed.code, signed.document.keys()) == (0, documented("sign").keys())
    assert len(signed.document["signed"]) == 1
    assert run("backup", checkpoint, repository, *keys).code == 0
    checked = run("check", repository, "--trust", "--pin", pin, "--json", *keys)
    assert (checked.code, checked.document.keys()) == (0, documented("check").keys())
    assert set(checked.document["trust"]) == {"signed", "unsigned", "findings", "notes", "pin"}
    assert json.loads(pin.read_text()) == checked.document["trust"]["pin"]
    shown = run("check", repository, "--trust", *keys)
    assert (shown.code, "signed by" in shown.out) == (0, True)

    newest = sorted((repository / "backups" / "orders").iterdir())[-1]
    content = newest.read_bytes()
    newest.unlink()
    gone = run("check", repository, "--pin", pin, *keys)
    assert gone.code == 1
    assert "is pinned" in gone.out
    newest.write_bytes(content)
    assert run("check", repository, "--pin", pin, *keys).code == 0
    assert run("backup", checkpoint, repository).code == 0, "by somebody without the key"
    assert run("check", repository, "--pin", pin, *keys).code == 1
    restored = run("restore", repository, "latest", tmp_path / "target", "--name", "orders", "--json", *keys)
    assert restored.document["backup_id"] == newest.name.removesuffix(".json")


@pytest.mark.parametrize("text", ["", "[]", '{"streams": 1}'])
def test_what_is_no_pin(repository: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "pin").write_text(text)
    finished = run("check", repository, "--pin", tmp_path / "pin")
    assert finished.code == 1
    assert "pin" in finished.err
    assert (tmp_path / "pin").read_text() == text


@pytest.mark.parametrize("key", ["AAAA", "no key"])
def test_a_trusted_key_that_is_none(repository: Path, key: str) -> None:
    finished = run("check", repository, "--trusted-key", key)
    assert (finished.code, "is no key" in finished.err) == (1, True)
    assert finished.err.endswith("HINT: `airflow-ckpt new-signing-key FILE` makes a pair and prints the public key\n")


def test_a_signing_key_that_is_none(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "signing.key").write_text("AAAA")
    (tmp_path / "signing.key").chmod(0o600)
    finished = run("check", repository, "--signing-key-file", tmp_path / "signing.key")
    assert finished.code == 1
    assert finished.err.endswith("HINT: `airflow-ckpt new-signing-key FILE` makes a pair and prints the public key\n")
