"""Where a reader of a Delta table begins, how long the table keeps what it needs, and the change data feed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.delta_log import parse_commit, read_delta_log
from airflow_ckpt_provider.guards.report import SourceReport
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.delta_guards import ck as ck
from tests.support.delta_guards import clean, commit, feed, judge
from tests.support.delta_guards import table as table
from tests.support.delta_tables import delta_checkpoint, new_table, rows


class TestStartingVersion:
    """The first batch begins where the reader's options say, and Spark works that out at each start until the second one."""

    @pytest.mark.parametrize("version", ["²", "9" * 5000])
    def test_it_is_no_number(self, table: Path, ck: Path, version: str) -> None:
        delta_checkpoint(ck, table, 4, before=None)
        with pytest.raises(RefusedError, match="is no version of a Delta table"):
            judge(ck, table, reader={"startingVersion": version})

    def test_it_is_gone(self, table: Path, ck: Path) -> None:
        delta_checkpoint(ck, table, 4, before=None)
        for reader in ({"startingVersion": "1"}, {"STARTINGVERSION": "1"}, {}):
            assert judge(ck, table, reader=reader).verdict is Verdict.SAFE
        clean(table, 3)
        assert judge(ck, table).verdict is Verdict.SAFE  # it began with a snapshot
        report = judge(ck, table, reader={"startingVersion": "1"}, fail_on_data_loss=False)
        assert report.verdict is Verdict.WILL_FAIL
        assert "the log of" in report.reasons[0]
        assert "begins at version 3, and Spark checks startingVersion=1" in report.reasons[0]
        assert judge(ck, table, reader={"startingVersion": "3"}).verdict is Verdict.SAFE
        delta_checkpoint(ck, table, 4, before=3)  # a second batch is committed
        assert judge(ck, table, reader={"startingVersion": "1"}).verdict is Verdict.SAFE

    def test_its_data_files_are_gone(self, table: Path, ck: Path) -> None:
        """The first batch runs again: a snapshot of version 3 needs four files, versions 2 and 3 only two."""
        self.planned(ck, table)
        (file,) = read_delta_log(open_location(str(table))).commit(0).added
        (table / file.path).unlink()
        assert judge(ck, table).verdict is Verdict.WILL_FAIL
        assert judge(ck, table, reader={"startingVersion": "2"}).verdict is Verdict.SAFE

    def test_latest(self, table: Path, ck: Path) -> None:
        assert (
            judge(delta_checkpoint(ck, table, 4, before=None), table, reader={"startingVersion": "latest"}).verdict
            is Verdict.SAFE
        )
        self.planned(ck, table)
        report = judge(ck, table, reader={"startingVersion": "latest"})
        assert report.verdict is Verdict.WILL_LOSE
        assert "begins at version 4 now: what was planned, up to version 3, is left out" in report.reasons[0]

    @pytest.mark.parametrize(
        ("time", "verdict"),
        [("2020-01-01", Verdict.UNKNOWN), ("2020-01-01T00:00:00Z", Verdict.UNKNOWN), ("2999-01-01", Verdict.WILL_LOSE)],
    )
    def test_a_time(self, time: str, verdict: Verdict, table: Path, ck: Path) -> None:
        self.planned(ck, table)
        if verdict is Verdict.UNKNOWN:
            assert judge(ck, table, reader={"startingTimestamp": time}).verdict is Verdict.SAFE
        clean(table, 3)
        assert judge(ck, table, reader={"startingTimestamp": time}).verdict is verdict
        delta_checkpoint(ck, table, 4, before=None)
        assert judge(ck, table, reader={"startingTimestamp": time}).verdict is Verdict.SAFE

    @pytest.mark.parametrize("reader", [{"startingVersion": "first"}, {"startingTimestamp": "yesterday"}])
    def test_what_delta_refuses(self, reader: dict[str, str], table: Path, ck: Path) -> None:
        delta_checkpoint(ck, table, 4, before=None)
        with pytest.raises(RefusedError, match="is no"):
            judge(ck, table, reader=reader)

    def planned(self, ck: Path, table: Path) -> None:
        """The first batch is planned up to version 3, and not committed."""
        delta_checkpoint(ck, table, 4, before=None)
        (ck / "commits" / "0").unlink()


class TestTimeLeft:
    """Ten days of downtime are planned, and VACUUM takes what left the table a week ago."""

    def test_downtime(self, tmp_path: Path, ck: Path) -> None:
        configuration = {
            "delta.logRetentionDuration": "interval 2 days",
            "delta.deletedFileRetentionDuration": "interval 1 day",
        }
        table = new_table(tmp_path / "short", 4, configuration=configuration)
        delta_checkpoint(ck, table, 2)
        assert judge(ck, table, max_downtime=86400.0, buffer=3600.0).verdict is Verdict.SAFE
        report = judge(ck, table, max_downtime=3 * 86400.0, buffer=3600.0)
        assert report.verdict is Verdict.WILL_FAIL
        assert "delta.logRetentionDuration = 'interval 74 hours' would do" in report.reasons[0]
        day_ago = time.time() - 86400 * 1.5
        os.utime(commit(table, 1), (day_ago, day_ago))  # of the newest batch: asked for at the start
        assert judge(ck, table, max_downtime=86400.0).verdict is Verdict.WILL_FAIL

    @pytest.mark.parametrize(("minutes", "hours"), [(55.0, 26), (59.5, 27)])
    def test_the_retention_named_is_enough_a_minute_later(
        self, minutes: float, hours: int, tmp_path: Path, ck: Path
    ) -> None:
        """The log is 59 and a half minutes old: 26 hours were named, and 27 once they were set."""
        table = new_table(tmp_path / "short", 4, configuration={"delta.logRetentionDuration": "interval 1 day"})
        delta_checkpoint(ck, table, 2)
        ago = time.time() - minutes * 60
        for version in range(4):
            os.utime(commit(table, version), (ago, ago))
        report = judge(ck, table, max_downtime=86400.0, buffer=3600.0)
        assert f"delta.logRetentionDuration = 'interval {hours} hours' would do" in report.reasons[0]

    def test_an_append_is_no_alarm(self, table: Path, ck: Path) -> None:
        delta_checkpoint(ck, table, 2)
        assert judge(ck, table, max_downtime=10 * 86400.0).verdict is Verdict.SAFE

    def test_unread_files_of_the_first_snapshot_were_replaced(self, table: Path, ck: Path) -> None:
        delta_checkpoint(ck, table, 3, 1, before=None, initial=True)
        assert judge(ck, table, max_downtime=10 * 86400.0).verdict is Verdict.SAFE
        DeltaTable(table).optimize.compact()
        self.a_week_is_left(judge(ck, table, max_downtime=10 * 86400.0))
        DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
        assert judge(ck, table).verdict is Verdict.WILL_FAIL

    @pytest.mark.parametrize("predicate", ["id < 5", None], ids=["a file of the feed", "whole files"])
    def test_a_reader_of_the_change_data_feed(self, predicate: str | None, tmp_path: Path, ck: Path) -> None:
        table = new_table(tmp_path / "feed", 3, configuration={"delta.enableChangeDataFeed": "true"})
        delta_checkpoint(ck, table, 3)
        DeltaTable(table).delete(predicate)
        self.a_week_is_left(judge(ck, table, reader=FEED, max_downtime=10 * 86400.0))

    def test_a_file_of_the_feed_is_older_than_its_commit(self, tmp_path: Path, ck: Path) -> None:
        """VACUUM goes by the time of the file."""
        table = new_table(tmp_path / "feed", 3, configuration={"delta.enableChangeDataFeed": "true"})
        delta_checkpoint(ck, table, 3)
        DeltaTable(table).delete("id < 5")
        days_ago = time.time() - 6 * 86400
        for file in (table / "_change_data").iterdir():
            os.utime(file, (days_ago, days_ago))
        assert (judge(ck, table, reader=FEED).seconds_left or 0) <= 86400

    def test_a_removed_file_without_a_time(self, table: Path, ck: Path) -> None:
        delta_checkpoint(ck, table, 2)
        DeltaTable(table).optimize.compact()
        lines = [json.loads(line) for line in commit(table, 4).read_text().splitlines()]
        for action in lines:
            action.get("remove", {}).pop("deletionTimestamp", None)
        commit(table, 4).write_text("\n".join(map(json.dumps, lines)))
        report = judge(ck, table, max_downtime=60.0)
        assert (report.verdict, report.seconds_left) == (Verdict.WILL_FAIL, 0)

    def test_a_file_that_only_got_a_deletion_vector_stays(self) -> None:
        lines = b'{"remove":{"path":"a","dataChange":true}}\n{"add":{"path":"a","dataChange":true}}\n{"remove":{"path":"b"}}'
        assert list(parse_commit(lines, version=0, path="x").dropped) == ["b"]

    def test_the_first_snapshot_needs_the_log_before_it(self, table: Path, ck: Path) -> None:
        """Version 3 is put together from the versions 0 to 3, or from a checkpoint of the log."""
        delta_checkpoint(ck, table, 3, 1, before=None, initial=True)
        days_ago = time.time() - 29 * 86400
        os.utime(commit(table, 0), (days_ago, days_ago))
        assert (judge(ck, table).seconds_left or 0) <= 86400
        DeltaTable(table).create_checkpoint()
        assert (judge(ck, table).seconds_left or 0) > 20 * 86400

    @pytest.mark.parametrize(
        ("words", "left", "verdict"),
        [("interval 0 days", 0, Verdict.WILL_FAIL), ("interval 1 fortnight", None, Verdict.UNKNOWN)],
    )
    def test_other_intervals(self, words: str, left: int | None, verdict: Verdict, ck: Path, tmp_path: Path) -> None:
        table = new_table(tmp_path / "table", 4)
        delta_checkpoint(ck, table, 2)
        text = commit(table, 0).read_text()
        commit(table, 0).write_text(
            text.replace(
                '"configuration":{}', json.dumps({"configuration": {"delta.logRetentionDuration": words}})[1:-1]
            )
        )
        assert judge(ck, table).verdict is Verdict.SAFE
        report = judge(ck, table, max_downtime=60.0)
        assert (report.verdict, report.seconds_left) == (verdict, left)

    def a_week_is_left(self, report: SourceReport) -> None:
        assert report.verdict is Verdict.WILL_FAIL
        assert "; delta.deletedFileRetentionDuration = 'interval 241 hours' would do" in report.reasons[0]
        assert 6.9 * 86400 < (report.seconds_left or 0) <= 7 * 86400


FEED = {"readChangeFeed": "true"}


class TestChangeDataFeed:
    """A query that reads the change data feed takes deletes and updates as rows."""

    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        return new_table(tmp_path / "feed", 4, configuration={"delta.enableChangeDataFeed": "true"})

    def test_a_delete_and_an_update_are_no_failure(self, table: Path, ck: Path) -> None:
        delta_checkpoint(ck, table, 4)
        DeltaTable(table).delete("id < 3")
        DeltaTable(table).update(updates={"id": "id + 1000"}, predicate="id = 15")
        assert judge(ck, table).verdict is Verdict.WILL_FAIL
        report = judge(ck, table, reader=FEED)
        assert (report.verdict, report.reasons) == (Verdict.SAFE, ())

    def test_a_missing_file_of_the_feed(self, table: Path, ck: Path) -> None:
        delta_checkpoint(ck, table, 4)
        DeltaTable(table).delete("id < 3")
        changes = read_delta_log(open_location(str(table))).commit(4).changes
        assert [file.path.partition("/")[0] for file in changes] == ["_change_data"]
        (table / changes[0].path).unlink()
        report = judge(ck, table, reader=FEED)
        assert report.verdict is Verdict.WILL_FAIL
        assert "1 data files (rows not known) of version 4 are gone" in report.reasons[0]

    def test_a_commit_without_a_feed_is_read_by_its_files(self, table: Path, ck: Path) -> None:
        delta_checkpoint(ck, table, 3)
        (file,) = read_delta_log(open_location(str(table))).commit(3).added
        (table / file.path).unlink()
        assert judge(ck, table, reader=FEED).verdict is Verdict.WILL_FAIL

    def test_a_table_that_keeps_no_feed(self, ck: Path, tmp_path: Path) -> None:
        plain = new_table(tmp_path / "plain", 4)
        report = judge(delta_checkpoint(ck, plain, 4), plain, reader={"readchangedata": "TRUE"})
        assert report.verdict is Verdict.WILL_FAIL
        assert "DELTA_MISSING_CHANGE_DATA" in report.reasons[0]

    @pytest.mark.parametrize("changed", ["an update", "nothing"])
    def test_a_feed_that_was_off_in_between(self, changed: str, table: Path, ck: Path) -> None:
        """Only the newest setting says that it is on."""
        delta_checkpoint(ck, table, 4)
        feed(table, "false")
        if changed == "an update":
            DeltaTable(table).update(updates={"id": "id + 1000"}, predicate="id = 15")
        feed(table, "true")
        report = judge(ck, table, reader=FEED)
        assert report.verdict is Verdict.WILL_FAIL
        assert "which the table did not keep in version 4, though it does now" in report.reasons[0]

    def test_a_feed_that_was_off_before_is_no_matter(self, table: Path, ck: Path) -> None:
        feed(table, "false")
        feed(table, "true")
        write_deltalake(table, rows(6), mode="append")
        delta_checkpoint(ck, table, 7, before=6)
        write_deltalake(table, rows(7), mode="append")
        assert judge(ck, table, reader=FEED).verdict is Verdict.SAFE

    def test_the_newest_committed_batch_is_asked_for_once_more(self, table: Path, ck: Path) -> None:
        feed(table, "false")
        feed(table, "true")
        delta_checkpoint(ck, table, 6, before=4)
        assert judge(ck, table, reader=FEED).verdict is Verdict.WILL_FAIL

    def test_a_feed_that_came_after_the_first_version(self, ck: Path, tmp_path: Path) -> None:
        plain = new_table(tmp_path / "plain", 4)
        feed(plain, "true")
        report = judge(delta_checkpoint(ck, plain, 4, before=3), plain, reader=FEED)
        assert report.verdict is Verdict.WILL_FAIL
        assert "did not keep in version 3" in report.reasons[0]

    def test_settings_of_a_version_that_cannot_be_read(self, table: Path, ck: Path) -> None:
        delta_checkpoint(ck, table, 3, before=2)
        DeltaTable(table).alter.set_table_properties({"owner": "x"}, raise_if_not_exists=False)
        assert judge(ck, table, reader=FEED).verdict is Verdict.SAFE
        clean(table, 2)
        report = judge(ck, table, reader=FEED)
        assert report.verdict is Verdict.UNKNOWN
        assert "settings were changed since version 2, whose own cannot be read any more" in report.reasons[0]
