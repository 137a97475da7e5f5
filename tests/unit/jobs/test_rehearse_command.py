"""``rehearse.py`` as a command, with an application instead of Spark: keys, exit codes, what the report is for."""

from __future__ import annotations

import base64
import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.jobs.rehearse import main
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.signatures import Signing, public_key
from tests.support.one_checkpoint import unpack

#: An application that ends at once, as one whose settings are missing.
GONE = shlex.join([sys.executable, "-c", "raise SystemExit('a setting is missing')"])


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_bytes(base64.b64encode(os.urandom(32)))
    return file


@pytest.fixture
def repository(tmp_path: Path, key_file: Path) -> Path:
    """Encrypted, with a backup."""
    place = replace(open_location(str(tmp_path / "backups")), key=base64.b64decode(key_file.read_bytes()))
    checkpoint = Checkpoint.at(open_location(str(unpack(tmp_path / "orders"))))
    create_backup(checkpoint, Repository.open_or_create(place), name="orders")
    return tmp_path / "backups"


def test_an_encrypted_repository(
    repository: Path, key_file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = [
        str(repository),
        "--scratch",
        str(tmp_path / "scratch"),
        "--application",
        GONE,
        "--output",
        str(tmp_path / "r.json"),
    ]
    assert main(asked) == 1
    assert "encrypted" in capfd.readouterr().err
    assert main([*asked, "--key-file", str(tmp_path / "nowhere")]) == 1
    assert "cannot be read" in capfd.readouterr().err
    assert main([*asked, "--key-file", str(key_file)]) == 1
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["verdict"], report["failure"]["code"]) == ("WILL_FAIL", "APPLICATION-EXIT")
    # For the form of an approval.
    assert report["markdown"].startswith("#")
    assert main([*asked, "--key-file", str(key_file), "--report-only"]) == 0
    assert not list((tmp_path / "scratch").glob("*"))


def test_a_signed_repository(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It rehearses the backup that a restore would take, and no forged one."""
    secret = os.urandom(32)
    signing_key = tmp_path / "signing.key"
    signing_key.touch(0o600)
    signing_key.write_bytes(base64.b64encode(secret))
    trusted = base64.b64encode(public_key(secret)).decode()
    place = open_location(str(tmp_path / "backups"))
    signed = Repository.open_or_create(replace(place, signing=Signing.of(secret, [trusted])))
    checkpoint = Checkpoint.at(open_location(str(unpack(tmp_path / "orders"))))
    made = create_backup(checkpoint, signed, name="orders").manifest
    forged = replace(made, backup_id="29991231T000000Z-b000099", sequence=99)
    place.create(forged.path, forged.to_document())
    asked = [str(tmp_path / "backups"), "--scratch", str(tmp_path / "scratch"), "--application", GONE, "--report-only"]
    asked += ["--output", str(tmp_path / "r.json")]

    assert main([*asked, "--trusted-key", trusted]) == 1
    assert "no key to sign" in capfd.readouterr().err
    keys = ["--trusted-key", trusted, "--signing-key-file", str(signing_key)]
    assert main([*asked, *keys]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["backup_id"] == made.backup_id
    assert main([*asked, *keys, "--backup", forged.backup_id]) == 1
    assert "is not signed by a trusted key" in capfd.readouterr().err

    assert main([*asked, *keys, "--repository-id", signed.repository_id]) == 0
    capfd.readouterr()
    assert main([*asked, *keys, "--repository-id", "another"]) == 1
    assert "repository another is expected there" in capfd.readouterr().err
