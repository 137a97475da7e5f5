"""Backups that are held or released while an expire removes others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.expire import apply_expire
from airflow_ckpt_provider.backup.notes import HoldEvent, hold, hold_of, write_event
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream
from tests.support.checkpoints import plant
from tests.support.command_line import new_repository, run
from tests.support.json_documents import documented


def test_it_is_released_only_if_the_expire_is_dead(repository: Path) -> None:
    opened = Repository.open(open_location(str(repository)))
    backup_id = opened.manifest().backup_id
    for verb in ("hold", "release"):
        assert run(verb, repository, backup_id, "--reason", "x").code == 0
    last = hold_of(opened, "orders", backup_id)
    write_event(opened, "orders", backup_id, last, HoldEvent.GOING, "expire ab12", "nightly", ("ab12",))
    dead: list[tuple[str, ...]] = [(), ("--expire-is-dead", "other")]
    for words in dead:
        refused = run("release", repository, backup_id, "--reason", "it stays", *words)
        assert refused.code == 1
        assert "is being removed by expire ab12" in " ".join(refused.err.split())
        assert "--expire-is-dead ab12" in " ".join(refused.err.split())
    assert run("hold", repository, backup_id, "--reason", "x").code == 1
    released = run("release", repository, backup_id, "--reason", "x", "--expire-is-dead", "ab12", "--json")
    assert (released.code, released.document.keys()) == (0, documented("release").keys())
    assert run("hold", repository, backup_id, "--reason", "x").code == 0


def test_an_expire_shows_the_prune_that_it_has_carried_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup is held after the plan: its objects stay, and the document of the command says so."""
    place = new_repository(tmp_path / "backups")
    opened = Repository.open(open_location(str(place)))
    for newest in (4, 9):
        orders = plant(open_location(str(tmp_path / "orders")), stream(newest))
        create_backup(Checkpoint.at(orders), opened, name="orders")
    oldest = opened.read_manifest("orders", opened.backup_ids("orders")[0])
    options = ("expire", place, "--keep-last", "1", "--prune", "--json")
    assert run(*options).document["prune"]["objects"] > 0

    def held_meanwhile(*given: Any, **words: Any) -> Any:
        hold(opened, oldest, reason="audit")
        return apply_expire(*given, **words)

    monkeypatch.setattr("airflow_ckpt_provider.cli.verbs.expire.apply_expire", held_meanwhile)
    done = run(*options, "--apply")
    assert (done.code, done.err) == (0, "")
    assert [each["backup_id"] for each in done.document["outcome"]["held_meanwhile"]] == [oldest.backup_id]
    assert (done.document["prune"]["objects"], done.document["prune_outcome"]["objects"]) == (0, 0)


def test_what_was_held_is_listed_and_a_release_says_whether_it_changed_anything(repository: Path) -> None:
    opened = Repository.open(open_location(str(repository)))
    backup_id = opened.manifest().backup_id
    subject = f"Backup {backup_id} of orders "

    def said(verb: str, reason: str) -> str:
        done = run(verb, repository, backup_id, "--reason", reason)
        assert (done.code, done.err) == (0, "")
        return done.out

    assert said("release", "nothing") == f"{subject}was not held: nothing was changed\n"
    assert run("backups", repository, "--json").document["backups"][-1]["hold"] is None
    assert said("hold", "incident 4711") == f"{subject}is held now\n"
    assert said("hold", "another") == f"{subject}was held already: incident 4711\n"
    listed = run("backups", repository, "--json").document["backups"][-1]["hold"]
    assert (listed["held"], listed["reason"]) == (True, "incident 4711")
    assert "held: incident 4711" in run("backups", repository).out
    assert said("release", "over") == f"{subject}is released\n"
    assert said("release", "over") == f"{subject}was not held: nothing was changed\n"
    assert run("backups", repository, "--json").document["backups"][-1]["hold"]["held"] is False
    assert "incident" not in run("backups", repository).out


def test_a_hold_that_cannot_be_read_is_a_finding_and_hides_no_backup(repository: Path) -> None:
    opened = Repository.open(open_location(str(repository)))
    held = hold(opened, opened.manifest(), reason="audit")
    note = f"holds/orders/{opened.manifest().backup_id}/{held.number:06}.json"
    opened.location.replace(note, b"[")
    listed = run("backups", repository, "--json")
    assert listed.code == 1
    assert len(listed.document["backups"]) == len(opened.backup_ids("orders"))
    assert any(note in finding for finding in listed.document["findings"])
