"""``release`` of a backup that an expire was removing."""

from __future__ import annotations

from pathlib import Path

from airflow_ckpt_provider.backup.notes import HoldEvent, hold_of, write_event
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.command_line import run
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
