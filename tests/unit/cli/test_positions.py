"""``airflow-ckpt positions``: usage, output for people and for programs, the seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.one_checkpoint import NEWEST


def test_json(checkpoint: Path) -> None:
    finished = run("positions", checkpoint, "--json")
    assert finished.code == 1  # without the seed files are read again
    document = finished.document
    assert (document["batch_id"], document["verdict"], document["options"]) == (NEWEST, "WILL_DUPLICATE", {"0": {}})
    assert set(document) == {
        "origin", "query_id", "batch_id", "batch_time", "verdict", "options", "conf", "sources", "warnings", "notes", "unread"
    }  # fmt: skip


def test_seed(checkpoint: Path, tmp_path: Path) -> None:
    finished = run("positions", checkpoint, "--seed", tmp_path / "new", "--json")
    assert (finished.code, finished.document["verdict"]) == (0, "SAFE")
    assert (tmp_path / "new" / "sources" / "0" / "0").exists()
    assert run("positions", checkpoint, "--seed", checkpoint).code == 1


def test_a_backup(repository: Path) -> None:
    assert run("positions", "--repository", repository, "--json").document["batch_id"] == NEWEST


def test_for_people(checkpoint: Path) -> None:
    (checkpoint / "metadata").write_bytes(b"")
    shown = run("positions", checkpoint, "--batch", "2").out
    assert shown.startswith(f"New checkpoint of {checkpoint}\nIt starts after batch 2  WILL_DUPLICATE\n")
    assert "Source 0 (file)  WILL_DUPLICATE" in shown
    assert "LATER-BATCHES" in shown
    assert "✗ metadata: " in shown


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--batch", "1", "--by-duration", "PT1H"],
        ["--backup", "x"],
        ["--repository", "r"],
        ["--batch", "-1"],
        ["--partitions", "orders"],
        ["--mirrored-from", "east"],
        ["--kafka-config", "new.json"],
        ["--mirrored-to", "west"],
        ["--replication-policy", "mine"],
    ],
)
def test_wrong_usage(checkpoint: Path, argv: list[str]) -> None:
    assert run("positions", *([checkpoint] if argv else []), *argv).code == 2


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--batch", "77"], "committed and still in the log: batches 0 to 5"),
        (["--to-datetime", "noon"], "'noon' is not a time"),
        (["--by-duration", "P"], "the duration is 'P', which is no duration"),
        (["--partitions", "orders=3"], "reads no topic 'orders'"),
        (["--table", "0=/tmp"], "source '0' reads no Delta table"),
    ],
)
def test_refused(checkpoint: Path, argv: list[str], words: str) -> None:
    finished = run("positions", checkpoint, *argv)
    assert finished.code == 1
    assert words in finished.err
    assert "HINT: " in finished.err


def test_no_permission(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_ckpt_provider.errors import StorageError
    from airflow_ckpt_provider.storage.local_store import LocalStore

    def denied(self: LocalStore, path: str) -> bytes:
        raise StorageError(f"could not read {path}: Permission denied", hint="check the permissions")

    monkeypatch.setattr(LocalStore, "read", denied)
    finished = run("positions", checkpoint)
    assert finished.code == 3
    assert "Permission denied" in finished.err


def test_a_mirror_without_its_old_cluster_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    config = tmp_path / "new.json"
    config.write_text('{"bootstrap.servers": "127.0.0.1:1"}')
    mirrored = ["positions", checkpoint, "--mirrored-from", "east", "--kafka-config", config]
    finished = run(*mirrored)
    assert finished.code == 1
    assert "the offset syncs are on the old cluster, and it is not given" in finished.err
    there = run(*mirrored, "--offset-syncs-location", "target")
    assert there.code == 1
    assert "no source reads Kafka" in there.err
