"""What an Iceberg table skips, in scripted histories of a real table; each verdict is compared with what a replay does."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.errors import RefusedError, StorageError, UnreadableLogError
from airflow_ckpt_provider.sinks.cutover import (
    NOTHING_READ,
    cutover_of_same_query,
    cutover_to_new_checkpoint,
    cutover_to_new_query_id,
)
from airflow_ckpt_provider.sinks.iceberg_rollback import (
    IcebergTable,
    current_snapshot,
    set_snapshot,
    snapshot_is_set_by,
)
from airflow_ckpt_provider.sinks.known import Known
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.sink import Sink, inspect_sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.iceberg_conformance import HISTORIES
from tests.support.iceberg_conformance import table as table
from tests.support.iceberg_conformance import (
    test_rolled_back_and_replayed_it_is_exact as test_rolled_back_and_replayed_it_is_exact,
)
from tests.support.iceberg_conformance import (
    test_somebody_writes_at_the_same_moment as test_somebody_writes_at_the_same_moment,
)
from tests.support.iceberg_conformance import test_the_verdict_is_what_happens as test_the_verdict_is_what_happens
from tests.support.iceberg_tables import NAME, OTHER, QUERY, Table, look_at


@pytest.mark.parametrize("name", HISTORIES)
def test_what_the_table_holds_and_remembers(name: str, table: Table) -> None:
    happen, held, remembered = HISTORIES[name]
    happen(table)
    report = table.look(99)
    assert (report.kind, report.batch_id, report.remembered) == ("iceberg", held, remembered)
    mine = {int(row.partition("/")[2]) for row in table.held if row.startswith(QUERY)}
    assert max(mine, default=None) == held


def test_the_words(table: Table) -> None:
    report = table.batch(0, 1, 2, 3).look(1)
    assert report.verdict is Verdict.WILL_SKIP
    assert report.reasons == (
        "the table holds batches up to 3 and remembers 3: Iceberg skips the replay of batches 2 to 3 silently, so their "
        "old rows stay and nothing of the replay is written",
    )


def test_what_others_wrote_is_named_and_leaves_with_it(table: Table) -> None:
    table.batch(0, 1).rows("a").batch(2).rows("b")
    rollback = table.look(1).rollback
    assert rollback is not None
    assert [words.split("(")[1][:6] for words in rollback.foreign] == ["append"]
    assert (rollback.rows, rollback.batches) == (2, 1)
    table.roll_back(1)
    assert table.held == ["a", f"{QUERY}/0", f"{QUERY}/1"]


def test_somebody_writes_between_plan_and_rollback(table: Table) -> None:
    rollback = table.batch(0, 1, 2).look(0).rollback
    assert rollback
    table.rows("late")
    with pytest.raises(RefusedError, match="somebody wrote into it; the table was not changed"):
        set_snapshot(table.named, rollback.to_version or 0, expected=rollback.from_version or 0, plan_id="7f3a")
    assert "late" in table.held


def test_the_same_rollback_twice_is_one_commit_and_its_undo_brings_everything_back(table: Table) -> None:
    rollback = table.batch(0, 1, 2).look(0).rollback
    assert rollback
    old, new = rollback.from_version or 0, rollback.to_version or 0
    for _ in range(2):
        assert set_snapshot(table.named, new, expected=old, plan_id="7f3a") == new
    assert (table.head, current_snapshot(table.named)) == (new, new)
    set_snapshot(table.named, old, expected=new, plan_id="7f3a-undo")
    assert table.held == [f"{QUERY}/{batch}" for batch in range(3)]


@pytest.mark.parametrize("form", ["by name", "Hadoop"])
def test_the_tag_outlives_30_days_whatever_the_age_of_its_snapshot(
    form: str, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg compares the age of the tag's snapshot with it: a table that was last written 29 days ago kept it for a day."""
    table.batch(0, 1)
    rollback = table.look(0).rollback
    assert rollback
    there = table.named if form == "by name" else IcebergTable(open_location(str(table.as_hadoop_table())))
    made = next(s["timestamp-ms"] for s in there.metadata()["snapshots"] if s["snapshot-id"] == rollback.from_version)
    day = 24 * 60 * 60 * 1000
    now = made + 29 * day
    monkeypatch.setattr("time.time_ns", lambda: now * 1_000_000)
    set_snapshot(there, rollback.to_version or 0, expected=rollback.from_version or 0, plan_id="7f3a")
    tag = there.metadata()["refs"]["airflow-ckpt-7f3a"]
    assert tag["snapshot-id"] == rollback.from_version
    assert made + tag["max-ref-age-ms"] == now + 30 * day  # removed once now - timestamp-ms of the snapshot exceeds it


def test_a_table_that_was_set_elsewhere_since_is_not_reported_as_rolled_back(table: Table) -> None:
    table.batch(0, 1, 2)
    rollback = table.look(0).rollback
    assert rollback
    old, new = rollback.from_version or 0, rollback.to_version or 0
    set_snapshot(table.named, new, expected=old, plan_id="7f3a")
    table.rows("after it")
    assert set_snapshot(table.named, new, expected=old, plan_id="7f3a") == new  # what was written since is kept
    table.table.manage_snapshots().set_current_snapshot(old).commit()
    with pytest.raises(
        RefusedError, match=f"set to snapshot {new} by plan 7f3a, and to another one since: it is at {old}"
    ):
        set_snapshot(table.named, new, expected=old, plan_id="7f3a")


def test_an_expired_snapshot_is_refused(table: Table) -> None:
    report = table.batch(0, 1, 2, 3).expire(2).look(0)
    assert report.verdict is Verdict.WILL_SKIP
    assert report.rollback is None
    assert report.obstacle == (
        "older snapshots of the table have expired, after batch 0 was written: the snapshot of that batch cannot be found any "
        "more"
    )
    report = table.look(1)
    assert report.obstacle == "older snapshots of the table have expired: the snapshot of batch 1 is one of them"


def test_it_expires_between_plan_and_rollback(table: Table) -> None:
    rollback = table.batch(0, 1, 2, 3).look(0).rollback
    assert rollback
    table.expire(2)
    with pytest.raises(RefusedError, match=f"snapshot {rollback.to_version} of .* has expired"):
        set_snapshot(table.named, rollback.to_version or 0, expected=rollback.from_version or 0, plan_id="7f3a")


def test_no_memory_left_and_the_walk_ends_on_an_expired_snapshot(table: Table) -> None:
    """It may have held batches: not "never written"."""
    report = table.batch(0, 1).rows("a", "b").expire(2).look(1)
    assert report.verdict is Verdict.UNKNOWN
    assert "older snapshots of the table have expired" in report.reasons[0]


def test_a_gap_below_the_target_is_not_safe(table: Table) -> None:
    assert table.batch(0, 1, 2).look(2).verdict is Verdict.SAFE
    report = table.look(4)
    assert report.verdict is Verdict.UNKNOWN
    assert "rows of batches 3 to 4 are missing if those batches had any" in report.reasons[0]


def test_everything_was_rolled_back_before_the_stream_went_on(table: Table) -> None:
    """It was SAFE. While the snapshots are there they say what is missing, then only their numbers say that there were some."""
    first = table.rows("a").head
    table.batch(0, 1)
    table.table.manage_snapshots().set_current_snapshot(first).commit()
    table.batch(2, 3)
    assert table.held == ["a", f"{QUERY}/2", f"{QUERY}/3"]
    report = table.look(3, newest=3)
    lost = "batches 0 to 1 were taken out of the table and not written again: their rows are missing if they had any"
    assert (report.verdict, report.reasons) == (Verdict.UNKNOWN, (lost,))
    for snapshot in table.table.snapshots()[1:3]:
        table.table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
    report = table.look(3, newest=3)
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons[0].startswith(
        "the table begins with batch 2 of the query, and snapshots left it before that one"
    )


class TestBranches:
    """Iceberg reads main alone."""

    def test_a_sink_that_writes_to_a_branch(self, table: Table) -> None:
        report = table.rows("a").branch("audit").branch_batch("audit", 0, 1, 2).look(1)
        assert report.verdict is Verdict.WILL_DUPLICATE
        assert "batch 2 of the query are in snapshots that never were in branch main" in report.reasons[-1]
        assert report.rollback is None
        assert (
            report.obstacle
            == "the query writes to a branch or stages its snapshots, which cannot be rolled back from here"
        )

    def test_a_staged_snapshot(self, table: Table) -> None:
        """As ``spark.wap.id`` leaves it: it has the id of the query, and is in no branch."""
        table.batch(0, 1).branch("stage").branch_batch("stage", 2)
        place = open_location(str(table.as_hadoop_table()))
        metadata = json.loads(place.read("metadata/v1.metadata.json"))
        del metadata["refs"]["stage"]
        metadata["snapshots"][-1]["summary"]["wap.id"] = "w1"
        place.replace("metadata/v1.metadata.json", json.dumps(metadata).encode())
        report = look_at(Sink(place, ""), 1)
        assert (report.verdict, report.rollback) == (Verdict.WILL_DUPLICATE, None)

    def test_a_tag_of_a_former_rollback_is_no_alarm(self, table: Table) -> None:
        """Java's ``expire_snapshots`` forgets what main once was; the tag keeps the snapshot."""
        table.batch(0, 1, 2, 3).roll_back(1)
        place = open_location(str(table.as_hadoop_table()))
        metadata = json.loads(place.read("metadata/v1.metadata.json"))
        metadata["snapshot-log"] = metadata["snapshot-log"][-1:]
        place.replace("metadata/v1.metadata.json", json.dumps(metadata).encode())
        assert look_at(Sink(place, ""), 1).verdict is Verdict.SAFE

    def test_a_branch_made_from_main_is_no_alarm(self, table: Table) -> None:
        table.batch(0, 1, 2, 3).branch("old").roll_back(1)
        assert table.look(1).verdict is Verdict.SAFE


class TestByDirectory:
    def test_of_a_catalog_the_directory_is_never_safe(self, table: Table) -> None:
        table.batch(0, 1, 2)
        sink = Sink(open_location(str(table.directory)), "")
        report = look_at(sink, 1)
        assert (report.kind, report.verdict, report.rollback) == ("iceberg", Verdict.WILL_SKIP, None)
        assert "only the table's catalog knows which one is current" in (report.obstacle or "")
        assert look_at(sink, 2).verdict is Verdict.UNKNOWN
        with pytest.raises(RefusedError, match="belongs to a catalog"):
            set_snapshot(IcebergTable(sink.place), table.head or 0, expected=table.head or 0, plan_id="7f3a")

    def test_a_hadoop_table(self, table: Table) -> None:
        table.batch(0, 1, 2)
        place = open_location(str(table.as_hadoop_table()))
        sink = Sink(place, "")
        assert look_at(sink, 2).verdict is Verdict.SAFE
        report = look_at(sink, 0)
        assert report.verdict is Verdict.WILL_SKIP
        assert report.rollback
        old, new = report.rollback.from_version or 0, report.rollback.to_version or 0
        there = IcebergTable(place)
        for _ in range(2):
            assert set_snapshot(there, new, expected=old, plan_id="7f3a") == new
        assert look_at(sink, 0).verdict is Verdict.SAFE
        assert place.read("metadata/version-hint.text") == b"2"
        written = json.loads(place.read("metadata/v2.metadata.json"))
        assert written["refs"]["airflow-ckpt-7f3a"]["snapshot-id"] == old
        assert written["snapshot-log"][-1]["snapshot-id"] == written["refs"]["main"]["snapshot-id"] == new
        set_snapshot(there, old, expected=new, plan_id="7f3a-undo")
        assert look_at(sink, 2).verdict is Verdict.SAFE

    def test_a_hadoop_table_whose_hint_is_old(self, table: Table) -> None:
        """Another writer was killed between the version and the hint: Iceberg continues to the newest version, and so
        does this."""
        table.batch(0, 1, 2)
        place = open_location(str(table.as_hadoop_table()))
        there = IcebergTable(place)
        newest = current_snapshot(there) or 0
        rollback = look_at(Sink(place, ""), 0).rollback
        assert rollback
        set_snapshot(there, rollback.to_version or 0, expected=newest, plan_id="7f3a")
        place.replace("metadata/version-hint.text", b"1")
        assert current_snapshot(there) == rollback.to_version

    def test_a_hadoop_table_is_written_at_the_same_moment(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow_ckpt_provider.sinks import iceberg_rollback

        table.batch(0, 1, 2)
        place = open_location(str(table.as_hadoop_table()))
        rollback = look_at(Sink(place, ""), 0).rollback
        assert rollback
        first = place.read("metadata/v1.metadata.json")
        head_of = iceberg_rollback.head_of

        def late(metadata: dict[str, object]) -> int | None:
            place.create("metadata/v2.metadata.json", first)
            return head_of(metadata)

        monkeypatch.setattr(iceberg_rollback, "head_of", late)
        with pytest.raises(RefusedError, match="was written to at the same moment"):
            set_snapshot(
                IcebergTable(place), rollback.to_version or 0, expected=rollback.from_version or 0, plan_id="7f3a"
            )
        assert place.read("metadata/v2.metadata.json") == first

    @pytest.mark.parametrize("theirs", ["v2.gz.metadata.json", "v2.metadata.json", "v2.metadata.json.gz"])
    @pytest.mark.parametrize("codec", ["", ".gz"])
    @pytest.mark.parametrize("moment", ["before ours", "just after ours"])
    def test_another_writer_with_another_codec(
        self, theirs: str, codec: str, moment: str, table: Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two files of one version: a reader takes the plain one, and the commit in the other is lost silently."""
        table.batch(0, 1, 2)
        metadata = table.as_hadoop_table() / "metadata"
        plain = (metadata / "v1.metadata.json").read_bytes()
        (metadata / "v1.metadata.json").unlink()
        (metadata / f"v1{codec}.metadata.json").write_bytes(gzip.compress(plain) if codec else plain)
        place = open_location(str(metadata.parent))
        rollback = look_at(Sink(place, ""), 0).rollback
        assert rollback
        content = gzip.compress(plain) if "gz" in theirs else plain
        create = Location.create

        def racing(self: Location, path: str, data: bytes) -> None:
            if moment == "before ours":
                (metadata / theirs).write_bytes(content)
            create(self, path, data)
            if moment == "just after ours":
                (metadata / theirs).write_bytes(content)

        with monkeypatch.context() as patch:
            patch.setattr(Location, "create", racing)
            with pytest.raises(RefusedError):
                set_snapshot(
                    IcebergTable(place), rollback.to_version or 0, expected=rollback.from_version or 0, plan_id="7f3a"
                )
        assert [path.name for path in metadata.glob("v2*")] == [theirs]
        assert (metadata / theirs).read_bytes() == content
        assert current_snapshot(IcebergTable(place)) == rollback.from_version

    @pytest.mark.parametrize("codec", [".gz.metadata.json", ".metadata.json.gz"])
    def test_a_compressed_table_stays_compressed(self, codec: str, table: Table) -> None:
        table.batch(0, 1, 2)
        metadata = table.as_hadoop_table() / "metadata"
        (metadata / f"v1{codec}").write_bytes(gzip.compress((metadata / "v1.metadata.json").read_bytes()))
        (metadata / "v1.metadata.json").unlink()
        place = open_location(str(metadata.parent))
        rollback = look_at(Sink(place, ""), 0).rollback
        assert rollback
        set_snapshot(IcebergTable(place), rollback.to_version or 0, expected=rollback.from_version or 0, plan_id="7f3a")
        assert [path.name for path in metadata.glob("v2*")] == ["v2.gz.metadata.json"]
        written = json.loads(gzip.decompress((metadata / "v2.gz.metadata.json").read_bytes()))
        assert written["current-snapshot-id"] == rollback.to_version
        assert look_at(Sink(place, ""), 0).verdict is Verdict.SAFE

    def test_a_newer_version_follows_one_of_two(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        table.batch(0, 1, 2)
        metadata = table.as_hadoop_table() / "metadata"
        plain = (metadata / "v1.metadata.json").read_bytes()
        place = open_location(str(metadata.parent))
        rollback = look_at(Sink(place, ""), 0).rollback
        assert rollback
        create = Location.create

        def racing(self: Location, path: str, data: bytes) -> None:
            create(self, path, data)
            (metadata / "v2.gz.metadata.json").write_bytes(gzip.compress(plain))
            (metadata / "v3.metadata.json").write_bytes(plain)

        monkeypatch.setattr(Location, "create", racing)
        with pytest.raises(
            StorageError, match=r"has version 2 twice, metadata/v2\.metadata\.json and metadata/v2\.gz\.meta"
        ):
            set_snapshot(
                IcebergTable(place), rollback.to_version or 0, expected=rollback.from_version or 0, plan_id="7f3a"
            )

    def test_a_writer_that_renames_over_it(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        """On an object store a rename is a copy: that writer looked before our file was there, and writes over it."""
        table.batch(0, 1, 2)
        metadata = table.as_hadoop_table() / "metadata"
        place = open_location(str(metadata.parent))
        plain = place.read("metadata/v1.metadata.json")
        rollback = look_at(Sink(place, ""), 0).rollback
        assert rollback
        create = Location.create

        def then_renamed(self: Location, path: str, data: bytes) -> None:
            create(self, path, data)
            (metadata.parent / path).write_bytes(plain)

        monkeypatch.setattr(Location, "create", then_renamed)
        there = IcebergTable(place)
        with pytest.raises(RefusedError, match="its commit stands, and the rollback is not in the table"):
            set_snapshot(there, rollback.to_version or 0, expected=rollback.from_version or 0, plan_id="7f3a")
        assert not snapshot_is_set_by(there, "7f3a")
        assert place.read("metadata/version-hint.text") == b"1"

    @pytest.mark.parametrize("paused_before", ["delete", "replace"])
    def test_the_hint_never_goes_back(self, paused_before: str, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        """A process that was suspended between version and hint: the version that it would name is deleted by now."""
        table.batch(0, 1, 2)
        metadata = table.as_hadoop_table() / "metadata"
        place = open_location(str(metadata.parent))
        rollback = look_at(Sink(place, ""), 0).rollback
        assert rollback
        step = getattr(Location, paused_before)

        def paused(self: Location, *args: Any) -> None:
            if (second := metadata / "v2.metadata.json").exists():  # write.metadata.delete-after-commit.enabled
                content = second.read_bytes()
                for number in (3, 4, 5):
                    (metadata / f"v{number}.metadata.json").write_bytes(content)
                (metadata / "version-hint.text").write_text("5")
                for number in (1, 2, 3):
                    (metadata / f"v{number}.metadata.json").unlink()
            step(self, *args)

        monkeypatch.setattr(Location, paused_before, paused)
        set_snapshot(IcebergTable(place), rollback.to_version or 0, expected=rollback.from_version or 0, plan_id="7f3a")
        assert (metadata / "version-hint.text").read_text() == "5"

    def test_damaged_metadata(self, table: Table) -> None:
        place = open_location(str(table.as_hadoop_table()))
        for content in (b'{"format-version":', b"[]", b"\x1f\x8bxx"):
            place.replace("metadata/v1.metadata.json", content)
            with pytest.raises(UnreadableLogError, match="is no metadata of an Iceberg table"):
                look_at(Sink(place, ""), 0)
        place.replace("metadata/v1.metadata.json", b'{"table-uuid": "u", "current-snapshot-id": 7, "snapshots": []}')
        with pytest.raises(UnreadableLogError, match="the current snapshot 7 is not among the snapshots"):
            look_at(Sink(place, ""), 0)

    @pytest.mark.parametrize("made", ["1e400", "1" + 400 * "0", "1" + 30 * "0", '"x"'])
    def test_a_time_that_is_no_time(self, table: Table, made: str) -> None:
        place = open_location(str(table.batch(0).as_hadoop_table()))
        content = place.read("metadata/v1.metadata.json")
        place.replace(
            "metadata/v1.metadata.json", re.sub(rb'("timestamp-ms": ?)[0-9]+', rb"\g<1>" + made.encode(), content)
        )
        with pytest.raises(UnreadableLogError, match="a field of the table's metadata has an unexpected form"):
            look_at(Sink(place, ""), 0)


class TestByName:
    def test_no_such_table(self, table: Table) -> None:
        sink = Sink.named("iceberg:lake.sales.invoices", open_location, storage_options=table.properties)
        with pytest.raises(RefusedError, match=r"catalog lake has no table sales.invoices"):
            look_at(sink, 0)

    def test_not_a_name(self) -> None:
        with pytest.raises(RefusedError, match="iceberg:orders does not name a table"):
            look_at(Sink.named("iceberg:orders", open_location), 0)

    def test_a_catalog_that_is_not_set_up(self) -> None:
        with pytest.raises(StorageError, match=r"iceberg:nowhere\.sales\.orders could not be loaded"):
            look_at(Sink.named("iceberg:nowhere.sales.orders", open_location), 0)

    @pytest.mark.parametrize(
        ("properties", "why"),
        [
            ({"type": "hive", "uri": "thrift://127.0.0.1:1"}, "TTransportException"),
            ({"type": "bigquery"}, r"pip install 'pyiceberg\[bigquery\]'"),
            ({"type": "rest", "uri": "http://127.0.0.1:1"}, "ConnectionError"),
        ],
    )
    def test_another_catalog_is_passed_on(self, properties: dict[str, str], why: str) -> None:
        """Its type and properties go to pyiceberg as they are, and what it says comes back."""
        sink = Sink.named(f"iceberg:{NAME}", open_location, storage_options=properties)
        with pytest.raises(StorageError, match=rf"iceberg:{NAME} could not be loaded \(.*{why}"):
            look_at(sink, 1)

    def test_its_name(self, table: Table) -> None:
        assert table.sink.name == f"iceberg:{NAME}"
        assert "sqlite" not in repr(table.sink)


class TestCutover:
    """A new checkpoint has a new query id: Iceberg remembers nothing of it."""

    def test_from_scratch(self, table: Table) -> None:
        known = Known.of(table.batch(0, 1, 2).sink)
        cutover = cutover_to_new_checkpoint(known, QueryIds.of(QUERY), start=NOTHING_READ, newest=2)
        assert (cutover.kind, cutover.verdict) == ("iceberg", Verdict.WILL_DUPLICATE)
        assert cutover.doubled == {"batches": 3, "rows": 3}

    def test_where_it_stands(self, table: Table) -> None:
        known = Known.of(table.batch(0, 1, 2).sink)
        assert cutover_to_new_checkpoint(known, QueryIds.of(QUERY), start=2, newest=2).verdict is Verdict.SAFE
        assert cutover_to_new_query_id(known, QueryIds.of(QUERY), start=1, newest=2).verdict is Verdict.WILL_DUPLICATE
        assert cutover_of_same_query(known, QueryIds.of(QUERY), start=1, newest=2).verdict is Verdict.WILL_SKIP

    def test_by_directory_it_is_never_safe(self, table: Table) -> None:
        table.batch(0, 1, 2)
        known = Known.of(Sink(open_location(str(table.directory)), ""))
        assert cutover_to_new_checkpoint(known, QueryIds.of(QUERY), start=2, newest=2).verdict is Verdict.UNKNOWN


def test_a_table_without_a_snapshot(table: Table) -> None:
    assert table.look(0).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("kind", "directories"), [("hudi", [".hoodie"]), ("paimon", ["snapshot", "schema"])])
def test_other_tables_are_named_and_never_judged(kind: str, directories: list[str], tmp_path: Path) -> None:
    for directory in directories:
        (tmp_path / directory).mkdir()
        (tmp_path / directory / "file").write_text("x")
    sink = Sink(open_location(str(tmp_path)), "")
    report = look_at(sink, 3)
    assert (report.kind, report.verdict) == (kind, Verdict.UNKNOWN)
    assert kind in report.reasons[0].lower()
    assert look_at(sink, 3, newest=3).verdict is Verdict.SAFE
    known = Known.of(sink)
    for judge in (cutover_to_new_checkpoint, cutover_to_new_query_id, cutover_of_same_query):
        cutover = judge(known, QueryIds.of(QUERY), start=1, newest=2)
        assert (cutover.kind, cutover.verdict) == (kind, Verdict.UNKNOWN)


def test_nothing_named_claims_nothing_of_other_sinks() -> None:
    report = look_at(Sink(), 3, newest=5)
    assert report.verdict is Verdict.UNKNOWN
    assert report.reasons == (
        "the sink is not known: a Delta table, an Iceberg table or a file sink that is written directly silently skips what it "
        "remembers of batches 4 to 5; without such a memory their rows are written again",
    )


def test_an_id_that_a_person_named_is_not_what_iceberg_compares(table: Table) -> None:
    """Batches under an older id are the stream's, and are not skipped."""
    table.batch(0, 1, 2, query=OTHER)
    ids = QueryIds.of(QUERY, app_id=OTHER)
    report = inspect_sink(table.sink, ids, 1, 99)
    assert (report.batch_id, report.remembered, report.verdict) == (2, None, Verdict.WILL_DUPLICATE)


def test_a_directory_that_was_registered_in_a_catalog(tmp_path: Path) -> None:
    """Its version 1 knows nothing of the batches that were written through the catalog, and no rollback of it would count."""
    other = Table(tmp_path / "lake").batch(0, 1).as_registered_table(tmp_path / "other").batch(2, 3)
    report = look_at(Sink.named(str(other.directory), open_location), 1, QUERY, 3)
    assert (report.verdict, report.rollback) == (other.look(1).verdict, None)
    assert "only the table's catalog knows which one is current" in str(report.obstacle)
    place = open_location(str(other.directory))
    head = other.head
    assert head is not None
    with pytest.raises(RefusedError, match="belongs to a catalog"):
        set_snapshot(IcebergTable(place), other.table.snapshots()[0].snapshot_id, expected=head, plan_id="p")
