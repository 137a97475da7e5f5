"""Which backup of a stream counts in a report: the newest good one of its own checkpoint."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_ckpt_provider.backup.damaged import Damage
from airflow_ckpt_provider.backup.notes import record_verification
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.verify import ReadData, VerifyReport, verify_backup
from airflow_ckpt_provider.fleet.metrics import to_openmetrics
from airflow_ckpt_provider.fleet.stream import Limits
from airflow_ckpt_provider.storage.location import Location
from tests.support.backups import stream
from tests.support.checkpoints import logs, plant
from tests.support.spoiled import lose
from tests.support.two_streams import back_up, look, problems, row
from tests.support.two_streams import repository as repository
from tests.support.two_streams import streams as streams
from tests.support.watched_stores import forget_all, in_memory


class TestBackups:
    def test_the_newest(self, streams: Location, repository: Repository) -> None:
        back_up(repository, streams / "orders")
        made = back_up(repository, streams / "orders")
        record_verification(repository, verify_backup(repository, made.manifest, read_data=ReadData()))
        plant(streams / "orders", stream(6))
        orders = row(look(streams, repository)).to_json(Limits())
        assert orders["backup"] == {
            "name": "orders",
            "backup_id": made.backup_id,
            "batch_id": 4,
            "created": made.manifest.created.isoformat(),
            "as_of": made.manifest.facts["pinned_at"],
            "age_seconds": orders["backup"]["age_seconds"],
            "verified": "contents",
            "files": made.files,
            "bytes": made.bytes,
            "damaged": [],
        }
        assert 0 <= orders["backup"]["age_seconds"] < 60
        assert (orders["batches_behind"], orders["gap"], orders["problems"]) == (2, 0, [])
        assert json.loads(json.dumps(orders)) == orders

    def test_one_that_is_damaged_does_not_count(self, streams: Location, repository: Repository) -> None:
        good = back_up(repository, streams / "orders")
        plant(streams / "orders", stream(5))
        by_note, by_hash = back_up(repository, streams / "orders"), back_up(repository, streams / "orders")
        own = next(entry for entry in by_note.manifest.files if entry.path == "offsets/5")
        lose(repository.location, own.object)
        record_verification(repository, verify_backup(repository, by_note.manifest))
        repository.location.replace(by_hash.manifest.path, b"{}")
        fleet = look(streams, repository)
        backup = row(fleet).backup
        assert backup is not None
        assert (backup.backup_id, backup.damaged) == (good.backup_id, (by_hash.backup_id, by_note.backup_id))
        assert problems(fleet) == (
            f"damaged backups newer than the last good one: {by_hash.backup_id}, {by_note.backup_id}",
        )

    def test_all_are_damaged(self, streams: Location, repository: Repository) -> None:
        made = back_up(repository, streams / "orders")
        repository.location.replace(made.manifest.path, b"")
        fleet = look(streams, repository, Limits(max_age=3600))
        assert problems(fleet) == ("backup UNKNOWN: the only backup named 'orders' is damaged",)

    @settings(max_examples=30)
    @given(st.lists(st.sampled_from(["good", "verified", "noted", "changed", "gone"]), max_size=6))
    def test_of_any_history(self, history: list[str]) -> None:
        """The newest that nothing is known against, and before it those that are damaged."""
        place = in_memory("lake")
        try:
            kept = Repository.open_or_create(place / "backups")
            orders = plant(place / "ck/orders", logs(range(2)))
            made = [(word, back_up(kept, orders).manifest) for word in history]
            for word, manifest in made:
                if word == "noted":
                    damage = (Damage("metadata", "", "missing", "it is missing"),)
                    record_verification(kept, VerifyReport(manifest.backup_id, "orders", 1, 1, 0, 0, damage))
                elif word == "verified":
                    record_verification(kept, verify_backup(kept, manifest))
                elif word == "changed":
                    kept.location.replace(manifest.path, manifest.to_document().replace(b"orders", b"sredro"))
                elif word == "gone":
                    kept.location.delete(manifest.path)
            left = [(word, manifest.backup_id) for word, manifest in reversed(made) if word != "gone"]
            good = next((n for n, (word, _) in enumerate(left) if word in ("good", "verified")), None)
            orders_row = row(look(place / "ck", kept))
            if good is None:
                assert orders_row.backup is None
                assert ("backup" in orders_row.unknown) is bool(left), "damaged is not the same as none"
            else:
                assert orders_row.backup is not None
                assert orders_row.backup.backup_id == left[good][1]
                assert orders_row.backup.damaged == tuple(backup_id for _, backup_id in left[:good])
                assert (orders_row.backup.verified is not None) is (left[good][0] == "verified")
        finally:
            forget_all()

    def test_of_another_stream_under_the_same_name(
        self, streams: Location, place: Location, repository: Repository
    ) -> None:
        plant(place / "dev/orders", stream(2))
        back_up(repository, place / "dev/orders")
        fleet = look(streams, repository, Limits(max_age=3600))
        assert row(fleet).backup is None
        assert problems(fleet) == (
            "backup UNKNOWN: the backups named 'orders' are of the same query in another place: "
            f"of {(place / 'dev/orders').uri}",
        )

    def test_under_another_name(self, streams: Location, repository: Repository) -> None:
        made = back_up(repository, streams / "orders", name="prod.orders")
        back_up(repository, streams / "payments", name="gone")
        repository.location.delete(f"backups/gone/{repository.backup_ids('gone')[0]}.json")
        fleet = look(streams, repository)
        orders = row(fleet)
        assert (orders.name, orders.backup and orders.backup.backup_id) == ("prod.orders", made.backup_id)
        assert row(fleet, "payments").backup is None
        assert "prod.orders" not in fleet.others

    def test_under_two_other_names(self, streams: Location, repository: Repository) -> None:
        back_up(repository, streams / "orders", name="z.orders")
        newer = back_up(repository, streams / "orders", name="a.orders")
        found = row(look(streams, repository)).backup
        assert found is not None
        assert (found.name, found.backup_id) == ("a.orders", newer.backup_id)

    def test_under_another_name_that_cannot_be_read(self, streams: Location, repository: Repository) -> None:
        back_up(repository, streams / "orders", name="prod.orders")
        repository.location.replace("damaged/prod.orders/000001.json", b"{")
        fleet = look(streams, repository, Limits(max_age=3600))
        assert row(fleet).backup is None
        assert problems(fleet)[0].startswith(
            "backup UNKNOWN: no backup is named 'orders', and those that may have another name cannot all be read: "
            "damaged/prod.orders/000001.json cannot be read"
        )
        assert "no backup" not in problems(fleet)

    def test_names_that_no_stream_has(self, streams: Location, place: Location, repository: Repository) -> None:
        plant(place / "old", stream(2))
        for checkpoint in (streams / "orders", place / "old"):
            back_up(repository, checkpoint)
        back_up(repository, streams / "orders", name="orders.before-restore")
        assert look(streams, repository).others == ("old",)

    def test_a_clock_that_is_ahead(
        self, streams: Location, repository: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Ahead(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:
                return datetime.now(tz) + timedelta(days=2)

        monkeypatch.setattr("airflow_ckpt_provider.backup.closure_copy.datetime", Ahead)
        back_up(repository, streams / "orders")
        fleet = look(streams, repository, Limits(max_age=3600))
        assert row(fleet).backup_age is None
        assert problems(fleet)[0].startswith("age of the last good backup UNKNOWN: a clock says")
        text = to_openmetrics(fleet)
        assert 'ckpt_stream_last_good_backup_timestamp_seconds{stream="orders"' not in text
        assert re.search(r'ckpt_stream_unknown{stream="orders",.*part="backup"} 1', text)
