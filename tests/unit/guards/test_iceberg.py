"""The guard of Iceberg sources, on real tables of a SQL catalog."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import write_manifest_list

from airflow_ckpt_provider.checkpoint.offsets import SourceOffset
from airflow_ckpt_provider.checkpoint.source_offsets import IcebergOffset, OpaqueOffset, parse_offset
from airflow_ckpt_provider.errors import UnreadableLogError
from airflow_ckpt_provider.fleet.time_to_loss import time_to_loss
from airflow_ckpt_provider.guards.iceberg import IcebergGuard
from airflow_ckpt_provider.guards.iceberg_files import files_below
from airflow_ckpt_provider.guards.registry import GuardedSource, GuardSettings, judge_source
from airflow_ckpt_provider.guards.report import GuardReport, SourceReport
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.checkpoints import plant
from tests.support.iceberg_tables import NAME, Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "lake").rows("a").rows("b")


def text(snapshot: int, position: int = 1, *, everything: bool = False) -> str:
    """As Spark writes it."""
    value = {"version": 1, "snapshot_id": snapshot, "position": position, "scan_all_files": everything}
    return json.dumps(value, separators=(",", ":"))


def judge(
    table: Table,
    start: int,
    *,
    end: int | None = None,
    where: str = f"iceberg:{NAME}",
    reader: dict[str, str] | None = None,
    position: int = 1,
    everything: bool = False,
    **settings: float,
) -> SourceReport:
    catalog = {f"catalog.{key}": value for key, value in table.properties.items()}
    options = {"table.0": where, **catalog, **{f"option.0.{key}": value for key, value in (reader or {}).items()}}
    planned = parse_offset(text(end)) if end is not None else None
    source = GuardedSource(SourceOffset("0", parse_offset(text(start, position, everything=everything))), planned)
    return judge_source(source, [IcebergGuard(GuardSettings(options={"iceberg": options}, **settings))])


def test_the_offset() -> None:
    assert parse_offset(text(-1, -1)) == IcebergOffset(text(-1, -1), -1, -1, False)
    assert parse_offset(text(5, 3, everything=True)) == IcebergOffset(text(5, 3, everything=True), 5, 3, True)
    for other in (
        '{"version":1,"snapshot_id":5,"position":3}',
        '{"version":1,"snapshot_id":"5","position":3,"scan_all_files":true}',
    ):
        assert isinstance(parse_offset(other), OpaqueOffset)


def test_an_ancestor_is_safe(table: Table) -> None:
    head = table.head or 0
    assert (judge(table, head).verdict, judge(table, head).lost) == (Verdict.SAFE, 0)
    table.rows("c")
    assert judge(table, head, end=table.head).verdict is Verdict.SAFE


def test_an_expired_snapshot(table: Table) -> None:
    head = table.head or 0
    table.rows("c").expire(2)
    report = judge(table, head)
    assert (report.verdict, report.lost) == (Verdict.WILL_FAIL, None)
    assert f"snapshot {head}, which the checkpoint has read up to, has expired" in report.reasons[0]


def test_a_table_that_was_rolled_back(table: Table) -> None:
    head = table.batch(0, 1).head or 0
    table.rollback(0)
    report = judge(table, head)
    assert report.verdict is Verdict.WILL_FAIL
    assert "is not an ancestor of the current one" in report.reasons[0]


def test_a_planned_batch_whose_end_is_gone(table: Table) -> None:
    start = table.batch(0).head or 0
    end = table.batch(1).head
    table.rollback(0)
    report = judge(table, start, end=end)
    assert report.verdict is Verdict.WILL_FAIL
    assert f"snapshot {end}, up to which the next batch was planned" in report.reasons[0]


@pytest.mark.parametrize(
    ("reader", "verdict"),
    [({}, Verdict.WILL_FAIL), ({"streaming-skip-delete-snapshots": "true"}, Verdict.WILL_SKIP)],
)
def test_a_delete(table: Table, reader: dict[str, str], verdict: Verdict) -> None:
    head = table.head or 0
    table.table.delete("row = 'a'")
    assert judge(table, head, reader=reader).verdict is verdict


def by_metadata(tmp_path: Path, *snapshots: dict[str, Any], reader: dict[str, str] | None = None) -> SourceReport:
    """Judge a stream that has read up to snapshot 1 of a Hadoop table with these snapshots; the last one is the current one."""
    about = {"table-uuid": "u", "format-version": 2, "refs": {}, "properties": {}, "snapshots": list(snapshots)}
    tmp_path.mkdir(exist_ok=True)
    for each in snapshots:
        each["manifest-list"] = f"{tmp_path}/{each['snapshot-id']}.avro"
        output = PyArrowFileIO().new_output(each["manifest-list"])
        with write_manifest_list(2, output, each["snapshot-id"], None, 1, "null"):
            pass  # no manifest: what was appended has no files
    document = json.dumps({**about, "current-snapshot-id": snapshots[-1]["snapshot-id"]}).encode()
    place = plant(
        open_location(str(tmp_path)), {"metadata/v3.metadata.json": document, "metadata/version-hint.text": b"3"}
    )
    options = {"table.0": place.uri, **{f"option.0.{key}": value for key, value in (reader or {}).items()}}
    source = GuardedSource(SourceOffset("0", parse_offset(text(1))))
    return judge_source(source, [IcebergGuard(GuardSettings(options={"iceberg": options}))])


def snapshot(number: int, operation: str | None = "append", *, parent: int | None = None) -> dict[str, Any]:
    summary = {} if operation is None else {"summary": {"operation": operation, "added-data-files": "1"}}
    above = {} if parent is None else {"parent-snapshot-id": parent}
    about = {"snapshot-id": number, "timestamp-ms": 1_700_000_000_000 + number, "sequence-number": number}
    return {**about, **summary, **above}


@pytest.mark.parametrize("operation", ["overwrite", "delete"])
def test_the_snapshot_of_the_checkpoint_was_passed_over_by_an_option(tmp_path: Path, operation: str) -> None:
    """Spark asks of it again whether it may be passed over. It was SAFE."""
    of = (snapshot(1, operation), snapshot(2, parent=1))
    report = by_metadata(tmp_path, *of)
    assert report.verdict is Verdict.UNKNOWN
    assert f"streaming-skip-{operation}-snapshots" in report.reasons[0]
    reader = {f"streaming-skip-{operation}-snapshots": "true"}
    assert by_metadata(tmp_path / "told", *of, reader=reader).verdict is Verdict.SAFE


@pytest.mark.parametrize("operation", [None, "upsert"])
def test_an_operation_that_is_not_known(tmp_path: Path, operation: str | None) -> None:
    report = by_metadata(tmp_path, snapshot(1), snapshot(2, operation, parent=1))
    assert report.verdict is Verdict.UNKNOWN
    assert f"snapshot 2 has the operation {operation or ''!r}" in report.reasons[0]


def test_a_snapshot_between_has_expired(tmp_path: Path) -> None:
    """A tag has kept that of the checkpoint. Nothing was rolled back, so no former snapshot can be set again."""
    report = by_metadata(tmp_path, snapshot(1), snapshot(3, parent=2))
    assert report.verdict is Verdict.WILL_FAIL
    assert "one between them has expired, or the table was rolled back" in report.reasons[0]


def test_by_the_directory_of_a_catalogs_table_it_is_unknown(table: Table) -> None:
    assert judge(table, table.head or 0, where=str(table.directory)).verdict is Verdict.UNKNOWN


def test_a_hadoop_table(table: Table) -> None:
    head = table.head or 0
    hadoop = str(table.as_hadoop_table())
    assert (judge(table, head, where=hadoop).verdict, judge(table, head, where=hadoop).reasons) == (Verdict.SAFE, ())


def test_a_hadoop_table_of_which_something_is_unread(table: Table) -> None:
    head = table.head or 0
    table.rows("c")
    where = table.as_hadoop_table()
    unread = judge(table, head, where=str(where))
    assert (unread.verdict, unread.lost, unread.reasons) == (Verdict.SAFE, 0, ())
    next(path for path in (where / "data").rglob("*.parquet") if holds(path, "c")).unlink()
    report = judge(table, head, where=str(where))
    assert report.verdict is Verdict.WILL_FAIL
    assert ".parquet is missing, and the query reads it next" in report.reasons[0]
    for manifests in (where / "metadata").glob("snap-*.avro"):
        manifests.unlink()
    assert "snap-" in judge(table, head, where=str(where)).reasons[0]


def test_a_file_that_is_missing_counts_though_another_cannot_be_looked_for(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = table.head or 0
    table.rows("c").rows("d")
    where = table.as_hadoop_table()
    gone, busy = (next(path for path in (where / "data").rglob("*.parquet") if holds(path, row)) for row in "cd")
    gone.unlink()

    class Throttled:
        def __init__(self, place: Location) -> None:
            self._files = files_below(place)

        def new_input(self, path: str) -> Any:
            if path.endswith(busy.name):
                raise OSError("SlowDown")
            return self._files.new_input(path)

    monkeypatch.setattr("airflow_ckpt_provider.guards.iceberg_client.files_below", Throttled)
    report = judge(table, head, where=str(where))
    assert (report.verdict, gone.name in report.reasons[0]) == (Verdict.WILL_FAIL, True)


def holds(file: Path, row: str) -> bool:
    return row in pq.read_table(file)["row"].to_pylist()


def test_a_hadoop_table_whose_files_lie_elsewhere(table: Table, tmp_path: Path) -> None:
    """It was copied, and its manifests name the old place. It was SAFE."""
    head = table.head or 0
    table.rows("c")
    copied = shutil.copytree(table.as_hadoop_table(), tmp_path / "copied")
    report = judge(table, head, where=str(copied))
    assert report.verdict is Verdict.UNKNOWN
    assert "does not lie in" in report.reasons[0]


def test_what_was_not_given(table: Table, tmp_path: Path) -> None:
    assert judge(table, -1).verdict is Verdict.UNKNOWN
    assert judge(table, table.head or 0, where=str(tmp_path / "nothing")).verdict is Verdict.WILL_FAIL
    source = GuardedSource(SourceOffset("0", parse_offset(text(7))))
    report = judge_source(source, [IcebergGuard(GuardSettings())])
    assert report.reasons == (
        "no table was given for source 0 (guard --option iceberg.table.0=TABLE): an offset of Iceberg does not name its table",
    )


class TestTimeToExpiry:
    """What ``expire_snapshots`` leaves by the settings of the table; that it keeps to them: the Iceberg histories."""

    DAY = 86400.0

    def set(self, table: Table, **properties: str) -> None:
        with table.table.transaction() as change:
            change.set_properties({f"history.expire.{k.replace('_', '-')}": v for k, v in properties.items()})

    def change(self, table: Table, head: int, reference: str = "main", kind: str = "branch", **limits: int) -> None:
        """Set limits of a branch or tag, which pyiceberg does only in a commit of its own."""
        from pyiceberg.table.update import SetSnapshotRefUpdate

        limits_ = {key.replace("_", "-"): value for key, value in limits.items()}
        about = {"ref-name": reference, "type": kind, "snapshot-id": head, **limits_}
        found = table.table
        found.catalog.commit_table(found, (), (SetSnapshotRefUpdate.model_validate(about),))

    def test_the_defaults(self, table: Table) -> None:
        report = judge(table, table.head or 0)
        assert 4.99 * self.DAY < (report.seconds_left or 0) <= 5 * self.DAY
        assert report.facts["limited_by"] == "history.expire.max-snapshot-age-ms"
        assert (report.facts["min_snapshots_to_keep"], report.facts["kept_for_snapshots"]) == (1, 0)
        assert (report.facts["older_snapshots_gone"], report.verdict) == (False, Verdict.SAFE)
        assert "only when somebody runs expire_snapshots" in report.facts["time_to_loss_reason"]
        table.expire(1)
        assert judge(table, table.head or 0).facts["older_snapshots_gone"] is True

    def test_properties_and_those_of_the_branch(self, table: Table) -> None:
        head = table.head or 0
        self.set(table, max_snapshot_age_ms="3600000", min_snapshots_to_keep="4")
        report = judge(table, head)
        assert 3500 < (report.seconds_left or 0) <= 3600
        assert report.facts["kept_for_snapshots"] == 3
        self.change(table, head, max_snapshot_age_ms=7_200_000, min_snapshots_to_keep=2)
        report = judge(table, head)
        assert 7100 < (report.seconds_left or 0) <= 7200
        assert report.facts["limited_by"] == "max-snapshot-age-ms of branch main"
        assert report.facts["kept_for_snapshots"] == 1

    def test_a_tag_keeps_its_snapshot_and_not_those_after_it(self, table: Table) -> None:
        head = table.head or 0
        self.change(table, head, "kept", "tag")
        assert judge(table, head).seconds_left is None
        table.rows("c")
        assert 4.99 * self.DAY < (judge(table, head).seconds_left or 0) <= 5 * self.DAY
        self.change(table, head, "kept", "tag", max_ref_age_ms=1)
        self.set(table, max_snapshot_age_ms="0")
        assert judge(table, head).seconds_left == 0

    def test_nothing_expires_from_a_table_that_forbids_it(self, table: Table) -> None:
        with table.table.transaction() as change:
            change.set_properties({"gc.enabled": "false"})
        report = judge(table, table.head or 0, max_downtime=90 * self.DAY)
        assert (report.verdict, report.seconds_left, report.facts["limited_by"]) == (Verdict.SAFE, None, "gc.enabled")
        assert report.facts["keeps_all"] is True
        told = time_to_loss(GuardReport("/c", (report,)))
        assert (told.seconds, told.known) == (None, True)

    def test_a_tag_does_not_keep_what_comes(self, table: Table) -> None:
        head = table.head or 0
        self.change(table, head, "kept", "tag")
        report = judge(table, head)
        assert "keeps_all" not in report.facts
        assert not time_to_loss(GuardReport("/c", (report,))).known

    def test_the_age_that_a_planned_downtime_needs_is_enough_a_minute_later(self, table: Table) -> None:
        self.set(table, max_snapshot_age_ms="1")  # over already
        for seconds, hours in ((4 * 3600.0 - 65, 4), (4 * 3600.0 - 30, 5)):
            (reason,) = judge(table, table.head or 0, max_downtime=seconds).reasons
            assert f"to {hours * 3_600_000} ({hours} hours)" in reason

    @pytest.mark.parametrize("hours_ago", [0, 480])
    def test_once_the_age_that_is_named_is_set_it_is_enough(
        self, table: Table, hours_ago: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody has written to the table for twenty days: 146 hours were named, then 172, then 198."""
        head = table.head or 0
        later = time.time_ns() + hours_ago * 3600 * 10**9
        clock = SimpleNamespace(time_ns=lambda: later)
        monkeypatch.setattr("airflow_ckpt_provider.guards.iceberg.time", clock)
        (reason,) = judge(table, head, max_downtime=self.DAY + 5 * self.DAY).reasons
        named = re.search(r"max-snapshot-age-ms to (\d+) ", reason)
        assert named
        self.set(table, max_snapshot_age_ms=named[1])
        later += 59 * 10**9
        assert judge(table, head, max_downtime=self.DAY + 5 * self.DAY).verdict is Verdict.SAFE

    def test_a_planned_downtime(self, table: Table) -> None:
        head = table.head or 0
        assert judge(table, head, max_downtime=4 * self.DAY).verdict is Verdict.SAFE
        report = judge(table, head, max_downtime=4 * self.DAY, buffer=1.5 * self.DAY)
        assert report.verdict is Verdict.UNKNOWN
        assert "Run none meanwhile, or set history.expire.max-snapshot-age-ms to" in report.reasons[0]

    def test_of_what_is_lost_already_it_says_nothing(self, table: Table) -> None:
        head = table.head or 0
        table.rows("c").expire(2)
        report = judge(table, head, max_downtime=90 * self.DAY)
        assert (report.verdict, report.seconds_left) == (Verdict.WILL_FAIL, None)

    def test_settings_that_are_no_numbers(self, table: Table) -> None:
        self.set(table, max_snapshot_age_ms="five days")
        report = judge(table, table.head or 0)
        assert (report.verdict, report.seconds_left) == (Verdict.SAFE, None)


def test_a_directory_that_was_registered_in_a_catalog(table: Table, tmp_path: Path) -> None:
    """Its version 1 still has the snapshot that has expired in the catalog."""
    start = table.head
    assert start is not None
    other = table.as_registered_table(tmp_path / "other")
    directory = str(other.directory)
    assert judge(other, start, where=directory).verdict is Verdict.SAFE, "nothing was written by the catalog"
    other.rows("c").expire(2)
    assert judge(other, start).verdict is Verdict.WILL_FAIL
    report = judge(other, start, where=directory)
    assert report.verdict is Verdict.WILL_FAIL
    assert "only the table's catalog knows which one is current" in report.reasons[-1]


@pytest.mark.parametrize("what", ["data/*.parquet", "metadata/*-m*.avro", "metadata/snap-*.avro"])
def test_files_that_are_read_next_are_missing(table: Table, what: str) -> None:
    start = table.head
    assert start is not None
    before = set(table.directory.glob(what))
    table.rows("c").rows("d")
    for path in before:
        path.unlink()
    if "snap-" in what or "data/" in what:
        assert judge(table, start).verdict is Verdict.SAFE, "what was read already may be gone"
    gone = set(table.directory.glob(what)) - before
    for path in gone:
        path.unlink()
    report = judge(table, start)
    assert report.verdict is Verdict.WILL_FAIL
    assert any(path.name in report.reasons[0] for path in gone)


def test_more_files_than_are_looked_for(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    start = table.head
    assert start is not None
    table.rows("c").rows("d")
    monkeypatch.setattr("airflow_ckpt_provider.guards.iceberg._FILES", 1)
    report = judge(table, start)
    assert report.verdict is Verdict.UNKNOWN
    assert "added more than 1 files: none was looked for" in report.reasons[0]


class TestFirstSnapshot:
    """A stream reads the first snapshot with all its files, also those that earlier snapshots added."""

    @pytest.mark.parametrize("what", ["data/*.parquet", "metadata/*-m*.avro"])
    def test_a_file_that_an_earlier_snapshot_added_is_missing(self, tmp_path: Path, what: str) -> None:
        table = Table(tmp_path / "lake").rows("a")
        (first,) = table.directory.glob(what)
        table.rows("b").rows("c")
        head = table.head or 0
        assert judge(table, head, position=0, everything=True).verdict is Verdict.SAFE
        first.unlink()
        report = judge(table, head, position=0, everything=True)
        assert (report.verdict, first.name in report.reasons[0]) == (Verdict.WILL_FAIL, True)
        assert judge(table, head, position=2, everything=True).verdict is Verdict.WILL_FAIL
        assert judge(table, head, position=3, everything=True).verdict is Verdict.SAFE, "all of it was read"
        assert judge(table, head, position=0).verdict is Verdict.SAFE, "only what the snapshot added is read"

    def test_a_file_that_was_deleted_before_is_not_read(self, tmp_path: Path) -> None:
        table = Table(tmp_path / "lake").rows("a")
        (first,) = table.directory.glob("data/*.parquet")
        table.rows("b").table.delete("row = 'a'")
        first.unlink()
        assert judge(table, table.head or 0, position=0, everything=True).verdict is Verdict.SAFE

    def test_more_files_than_are_looked_for(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("airflow_ckpt_provider.guards.iceberg._FILES", 1)
        report = judge(table, table.head or 0, position=0, everything=True)
        assert report.verdict is Verdict.UNKNOWN
        assert "have more than 1 files: none was looked for" in report.reasons[0]


def metadata_with(**fields: Any) -> dict[str, Any]:
    summary = {"operation": "append", "added-data-files": "2"}
    snapshot = {"snapshot-id": 1, "sequence-number": 1, "timestamp-ms": 1, "summary": summary}
    later = {**snapshot, "snapshot-id": 2, "parent-snapshot-id": 1, "sequence-number": 2}
    whole = {"format-version": 2, "table-uuid": "u", "location": "x", "last-updated-ms": 1, "current-snapshot-id": 2}
    return {**whole, "snapshots": [snapshot, later], **fields}


FIRST = metadata_with()["snapshots"][0]
OTHER_FORMS = [
    {"snapshots": [{"sequence-number": 1}]},
    {"snapshots": {"a": 1}},
    {"snapshots": [None]},
    {"snapshots": 5},
    {"snapshots": [{**FIRST, "snapshot-id": 1e400}]},
    {"snapshots": [FIRST, {**FIRST, "snapshot-id": 2, "parent-snapshot-id": 1, "summary": ["x"]}]},
    {"current-snapshot-id": 1e400},
    {"current-snapshot-id": []},
]


@pytest.mark.parametrize("fields", OTHER_FORMS, ids=str)
def test_fields_of_another_form(tmp_path: Path, fields: dict[str, Any]) -> None:
    place = plant(
        open_location(str(tmp_path / "table")),
        {
            "metadata/v1.metadata.json": json.dumps(metadata_with(**fields)).replace("Infinity", "1e400").encode(),
            "metadata/version-hint.text": b"1",
        },
    )
    guard = IcebergGuard(GuardSettings(options={"iceberg": {"tables": {"0": place}}}))
    with pytest.raises(UnreadableLogError, match="a field of the table's metadata has an unexpected form"):
        guard.judge(GuardedSource(SourceOffset("0", parse_offset(text(1, 2)))))


@pytest.mark.parametrize("age", [1e400, 10**400], ids=["infinite", "huge"])
def test_a_time_to_expiry_that_is_no_time(tmp_path: Path, age: float) -> None:
    fields = metadata_with(refs={"main": {"snapshot-id": 2, "type": "branch", "max-snapshot-age-ms": age}})
    place = plant(
        open_location(str(tmp_path / "table")),
        {
            "metadata/v1.metadata.json": json.dumps(fields).replace("Infinity", "1e400").encode(),
            "metadata/version-hint.text": b"1",
        },
    )
    guard = IcebergGuard(GuardSettings(options={"iceberg": {"tables": {"0": place}}}))
    report = guard.judge(GuardedSource(SourceOffset("0", parse_offset(text(1, 2)))))
    assert (report.verdict, report.seconds_left) == (Verdict.UNKNOWN, None)
    assert "names no list of its manifests" in report.reasons[0]
