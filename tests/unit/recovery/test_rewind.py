"""rewind and undo: which files are removed and which stay, and that a refusal changes nothing."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError, SealedError
from airflow_ckpt_provider.guards.registry import GuardSettings, installed_guards
from airflow_ckpt_provider.recovery.rewind.apply import RewindOutcome, apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind, reachable
from airflow_ckpt_provider.recovery.rewind.specifier import Specifier
from airflow_ckpt_provider.recovery.rewind.targets import repartitions
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.backups import back_up, stream
from tests.support.checkpoints import (
    QUERY_ID,
    ROCKSDB,
    batch_metadata,
    contents,
    hdfs_aggregation,
    offsets_log,
    plant,
    schema_file,
)
from tests.support.delta_batches import append, batches_in, delta_table
from tests.support.file_sinks import file_sink
from tests.support.restores import loud_seal
from tests.support.rewinds import NEWEST, repository, rewind, rewound
from tests.support.stopped import STOPPED
from tests.support.watched_stores import Killed, watched


class TestTheCheckpoint:
    @pytest.mark.parametrize("batch", range(NEWEST))
    def test_only_what_lies_beyond_goes(self, orders: Location, batch: int) -> None:
        before = contents(orders)
        rewind(orders, "to_batch", batch)
        assert contents(orders) == {path: data for path, data in before.items() if path in rewound(before, batch)}
        resume = Checkpoint.at(orders).resume_point()
        assert (resume.batch_id, resume.replay, resume.verdict) == (batch + 1, True, Verdict.SAFE)

    @pytest.mark.parametrize("batch", range(1, NEWEST))
    def test_without_exact_replay(self, orders: Location, batch: int) -> None:
        before = contents(orders)
        rewind(orders, "to_batch", batch, exact_replay=False)
        assert set(contents(orders)) == rewound(before, batch) - {f"offsets/{batch + 1}", f"sources/0/{batch + 1}"}

    def test_across_an_offline_repartition(self, place: Location) -> None:
        """Batch 3 repartitioned from two to three: before it nothing of it is left, its own log entry neither."""
        files = stream(NEWEST)
        again = offsets_log('{"logOffset":2}', metadata=batch_metadata(3, provider=ROCKSDB, partitions=3))
        files |= {"offsets/3": again, "state/0/2/4.zip": b"z", "state/0/2/5.changelog": b"c"}
        orders = plant(place / "orders", files)
        assert repartitions(Checkpoint.at(orders).tree()) == {3}
        plans = {
            batch: plan_rewind(Checkpoint.at(orders), Specifier("to_batch", str(batch)), guards=()) for batch in (1, 2)
        }
        assert {batch: plan.exact_replay for batch, plan in plans.items()} == {1: True, 2: False}
        assert "offsets/3" in plans[2].deletes
        assert {"state/0/2/4.zip", "state/0/2/5.changelog"} <= set(plans[2].deletes)

    def test_partitions_of_an_earlier_repartition_keep_what_they_have(self, place: Location) -> None:
        """The state was repartitioned from three to two before the target: partition 2 has older versions only."""
        files = stream(NEWEST) | {"state/0/2/2.zip": b"z", "state/0/2/3.changelog": b"c"}
        orders = plant(place / "orders", files)
        rewind(orders, "to_batch", 4)
        assert {"state/0/2/2.zip", "state/0/2/3.changelog"} <= set(contents(orders))

    @pytest.mark.parametrize("name", ["stateStoreSave", None])
    def test_every_partition_keeps_its_state_whatever_the_keys_are_called(
        self, place: Location, name: str | None
    ) -> None:
        """``groupBy("sessionStartTime")``: the name of the key is that of Spark's session windows, which have one partition."""
        files = hdfs_aggregation(NEWEST, partitions=4)
        files["state/0/0/_metadata/schema"] = schema_file([("sessionStartTime", "timestamp")])
        if name is None:
            del files["state/0/_metadata/metadata"]
        orders = plant(place / "orders", files)
        rewind(orders, "to_batch", 2)
        kept = {path for path in contents(orders) if path.endswith(".delta")}
        assert kept == {f"state/0/{partition}/{version}.delta" for partition in range(4) for version in (1, 2, 3)}

    def test_to_the_newest_changes_nothing(self, orders: Location) -> None:
        before = contents(orders)
        assert rewind(orders, "to_current").already_done
        assert rewind(orders, "to_batch", NEWEST).already_done
        assert contents(orders) == before

    def test_to_latest_drops_what_is_not_committed(self, orders: Location) -> None:
        orders.delete(f"commits/{NEWEST}")
        assert rewind(orders, "to_current").already_done
        assert rewind(orders, "to_latest").batch_id == NEWEST - 1
        assert set(contents(orders)) == set(stream(NEWEST - 1))

    def test_older_history_stays_for_the_next_rewind(self, orders: Location) -> None:
        rewind(orders, "to_batch", 4)
        assert [t.batch_id for t in reachable(Checkpoint.at(orders))] == [0, 1, 2, 3, 4]
        rewind(orders, "to_earliest")
        assert Checkpoint.at(orders).progress().latest_committed == 0

    def test_the_backup_is_a_part_of_what_is_approved(self, place: Location) -> None:
        """The newest one of the batch expires: an older one has another state with the same log entries."""
        files, lost = stream(3), "state/0/0/4.changelog"
        back_up(place, files)
        newest = back_up(place, {**files, lost: files[lost] + b"corrected"}).manifest
        (place / "orders").delete(lost)

        def plan() -> RewindPlan:
            to = Specifier("to_batch", "3")
            return plan_rewind(Checkpoint.at(place / "orders"), to, repository=place / "backups", guards=())

        shown = plan()
        assert shown.source_of_state == newest.backup_id
        assert plan().plan_fingerprint == shown.plan_fingerprint
        (place / "backups").delete(f"backups/{newest.name}/{newest.backup_id}.json")
        with pytest.raises(RefusedError, match="the plan that was shown"):
            plan().check_fingerprint(shown.plan_fingerprint)
        changed = replace(shown, writes=tuple(entry._replace(sha256="0" * 64) for entry in shown.writes))
        assert changed.plan_fingerprint != shown.plan_fingerprint

    def test_a_backup_is_a_target_too(self, orders: Location) -> None:
        create_backup(Checkpoint.at(orders), repository(orders))
        wanted = contents(orders)
        for path in list(orders.walk()):
            orders.delete(path)
        plant(orders, stream(2))
        targets = reachable(Checkpoint.at(orders), repository(orders))
        assert [(t.batch_id, t.where == "checkpoint") for t in targets] == [(0, True), (1, True), (2, True), (6, False)]
        assert rewind(orders, "to_batch", 6).written > 0
        assert contents(orders).items() <= wanted.items()
        assert Checkpoint.at(orders).closure(6)


class TestTheTable:
    @pytest.mark.parametrize("batch", [0, 3, 5])
    def test_content_and_memory_in_one_commit(self, orders: Location, table: Location, batch: int) -> None:
        version = DeltaTable(table.uri).version()
        outcome = rewind(orders, "to_batch", batch, table=table)
        assert outcome.table_version == version + 1
        assert batches_in(table) == sorted([*range(batch + 1)] * 2)
        assert DeltaTable(table.uri).transaction_version(QUERY_ID) == batch

    def test_twice(self, orders: Location, table: Location) -> None:
        rewind(orders, "to_batch", 4, table=table)
        append(table.uri, 5, value=10)
        rewind(orders, "to_batch", 2, table=table)
        assert batches_in(table) == [0, 0, 1, 1, 2, 2]

    def test_forward_to_where_the_table_is(self, orders: Location, table: Location) -> None:
        """The checkpoint was restored to an older batch; the table stays."""
        create_backup(Checkpoint.at(orders), repository(orders))
        rewind(orders, "to_batch", 3, table=table, sink_exit=SinkPolicy.ACCEPT)
        version = DeltaTable(table.uri).version()
        outcome = rewind(orders, "to_current", table=table, sink_exit=SinkPolicy.FORWARD)
        assert outcome.batch_id == Checkpoint.at(orders).progress().latest_committed == NEWEST
        assert DeltaTable(table.uri).version() == version

    def test_forward_to_where_the_checkpoint_cannot_go(self, orders: Location, table: Location) -> None:
        append(table.uri, 9)
        with pytest.raises(
            RefusedError, match="the sink is at batch 9, which the checkpoint cannot go to; reachable: 0 to 6"
        ):
            rewind(orders, "to_batch", 3, table=table, sink_exit=SinkPolicy.FORWARD)

    def test_by_the_version_of_the_table(self, orders: Location, table: Location) -> None:
        assert rewind(orders, "to_table_version", 3, table=table).batch_id == 3

    def test_somebody_else_wrote(self, orders: Location, table: Location) -> None:
        append(table.uri, 99, app_id=None)
        with pytest.raises(RefusedError, match=r"others have written into .*: version 7 \(WRITE"):
            rewind(orders, "to_batch", 4, table=table)
        assert Checkpoint.at(orders).progress().seal is None
        assert set(contents(orders)) == set(stream(NEWEST))
        target = Specifier("to_batch", "4")
        plan = plan_rewind(
            Checkpoint.at(orders), target, sink=Sink(place=table), sink_exit=SinkPolicy.ROLLBACK, guards=()
        )
        assert plan.sink_verdict is Verdict.WILL_LOSE

    def test_another_table_at_the_same_place(self, orders: Location, table: Location) -> None:
        """Dropped and made again since the plan, with as many versions: they are others."""
        checkpoint, sink = Checkpoint.at(orders), Sink(place=table)
        to = Specifier("to_batch", "4")
        plan = plan_rewind(checkpoint, to, sink=sink, sink_exit=SinkPolicy.ROLLBACK, guards=())
        newest = DeltaTable(table.uri).version()
        shutil.rmtree(table.uri)
        delta_table(Path(table.uri), range(newest + 1), app_id="somebody-else")
        for made in (plan, RewindPlan.of_document(json.loads(json.dumps(plan.document())))):
            with pytest.raises(RefusedError, match="is another table now"):
                apply_rewind(replace(made, continued=False), checkpoint, repository(orders), sink=sink, rest=STOPPED)
        assert DeltaTable(table.uri).version() == newest

    def test_an_undo_with_another_table(self, orders: Location, table: Location, tmp_path: Path) -> None:
        """Of as many versions as the one that was rolled back: it is not touched."""
        rewind(orders, "to_batch", 4, table=table)
        versions = DeltaTable(table.uri).version()
        other = delta_table(tmp_path / "other", range(versions + 1), app_id="somebody-else")
        with pytest.raises(RefusedError, match="is not the table that rewind"):
            undo(orders, repository(orders), sink=Sink(place=other), rest=STOPPED)
        assert DeltaTable(other.uri).version() == versions

    @pytest.mark.parametrize("cleaned", [False, True])
    def test_an_undo_of_half_a_rewind_with_another_table(
        self, orders: Location, table: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleaned: bool
    ) -> None:
        """The checkpoint must not be put back while its own table stays rolled back.

        :param cleaned: the log of the other table has its id in a log checkpoint alone.
        """
        from airflow_ckpt_provider.sinks import delta_sink

        real = delta_sink.roll_back_table

        def die(*args: Any, **how: Any) -> int:
            real(*args, **how)
            raise Killed("after the table")

        with monkeypatch.context() as patched:
            patched.setattr(delta_sink, "roll_back_table", die)
            with pytest.raises(Killed):
                rewind(orders, "to_batch", 4, table=table)
        other = delta_table(tmp_path / "other", range(3), app_id="somebody-else")
        if cleaned:
            DeltaTable(other.uri).create_checkpoint()
            other.delete("_delta_log/00000000000000000000.json")
        with pytest.raises(RefusedError, match="is another table now"):
            undo(orders, repository(orders), sink=Sink(place=other), rest=STOPPED)
        assert Checkpoint.at(orders).progress().seal is not None
        undo(orders, repository(orders), sink=Sink(place=table), rest=STOPPED)
        assert batches_in(table) == sorted([*range(NEWEST + 1)] * 2)

    @pytest.mark.parametrize("newest", [None, 3, 4, NEWEST])
    def test_an_undo_into_another_file_sink(self, orders: Location, tmp_path: Path, newest: int | None) -> None:
        """It was taken for the sink of the rewind: its query skipped the batches whose log entries were written there."""
        out = file_sink(open_location(str(tmp_path / "out")), NEWEST)
        rewind(orders, "to_batch", 4, table=out)
        other = open_location(str(tmp_path / "other"))
        if newest is not None:
            file_sink(other, newest)
        before = contents(orders), contents(out), contents(other)
        with pytest.raises(RefusedError, match=f"rolled {out} back too, and it was not given") as refused:
            undo(orders, repository(orders), sink=Sink(place=other), rest=STOPPED)
        assert refused.value.hint == f"name it: --sink {out}"
        assert (contents(orders), contents(out), contents(other)) == before
        assert Checkpoint.at(orders).progress().seal is None

    def test_an_undo_by_another_name_of_the_file_sink(self, orders: Location, tmp_path: Path) -> None:
        out = file_sink(open_location(str(tmp_path / "out")), NEWEST)
        before = contents(out)
        rewind(orders, "to_batch", 4, table=out)
        (tmp_path / "link").symlink_to(tmp_path / "out")
        undo(orders, repository(orders), sink=Sink(place=open_location(str(tmp_path / "link"))), rest=STOPPED)
        assert contents(out) == before

    def test_a_rewind_with_another_file_sink_than_its_plan(self, orders: Location, tmp_path: Path) -> None:
        """Empty batches have the same log entries everywhere."""
        out, other = (file_sink(open_location(str(tmp_path / name)), NEWEST) for name in ("out", "other"))
        for sink in (out, other):
            for batch in (5, 6):
                sink.replace(f"_spark_metadata/{batch}", b"v1")
        to, before = Specifier("to_batch", "4"), contents(other)
        made = plan_rewind(Checkpoint.at(orders), to, sink=Sink(place=out), sink_exit=SinkPolicy.ROLLBACK, guards=())
        with pytest.raises(RefusedError, match=f"the plan rolls {out} back, and it was not given"):
            apply_rewind(made, Checkpoint.at(orders), repository(orders), sink=Sink(place=other), rest=STOPPED)
        assert contents(other) == before
        assert Checkpoint.at(orders).progress().seal is None

    def test_somebody_writes_between_plan_and_apply(self, orders: Location, table: Location) -> None:
        sink = Sink(place=table)
        checkpoint = Checkpoint.at(orders)
        plan = plan_rewind(checkpoint, Specifier("to_batch", "4"), sink=sink, sink_exit=SinkPolicy.ROLLBACK, guards=())
        append(table.uri, 99, app_id=None)
        with pytest.raises(RefusedError, match="is at version 7, and the plan was made at version 6"):
            apply_rewind(plan, checkpoint, repository(orders), sink=sink, rest=STOPPED)
        assert checkpoint.progress().seal is None
        assert set(contents(orders)) == set(stream(NEWEST))

    def test_not_the_sink_of_this_query(self, orders: Location, tmp_path: Path) -> None:
        other = delta_table(tmp_path / "other", range(7), app_id="somebody-else")
        said = f"the table has no commit of the query {QUERY_ID}: it is not its sink, or it was dropped and created again, or "
        with pytest.raises(RefusedError, match=said):
            rewind(orders, "to_batch", 4, table=other)

    def test_no_table_at_all(self, orders: Location, tmp_path: Path) -> None:
        with pytest.raises(RefusedError, match="neither a Delta table nor the output of a file sink"):
            rewind(orders, "to_batch", 4, table=open_location(str(tmp_path / "nothing")))


class TestRefused:
    @pytest.mark.parametrize(
        ("kind", "value", "message"),
        [
            ("to_batch", 7, "batch 7 cannot be rewound to; reachable: 0 to 6"),
            ("to_batch", 99, "batch 99 cannot be rewound to; reachable: 0 to 6"),
            ("shift_by", -7, "--shift-by -7 from batch 6 is before the first batch; reachable: 0 to 6"),
            ("shift_by", 1, "batch 7 cannot be rewound to; reachable: 0 to 6"),
            ("to_datetime", "yesterday", "'yesterday' is not a time in ISO 8601"),
            ("to_datetime", "2026-11-21T14:05:00", "'2026-11-21T14:05:00' has no time zone"),
            ("to_datetime", "1999-01-01T00:00:00Z", "no reachable batch had ended at 1999-01-01T00:00:00Z"),
            ("to_datetime", "2999-01-01T00:00:00Z", "2999-01-01T00:00:00Z is in the future"),
            ("to_datetime", "0001-01-01T00:00:00+23:59", "'0001-01-01T00:00:00+23:59' is beyond the times there are"),
            ("by_duration", "P999999999999D", "the duration is 'P999999999999D', which is no duration"),
            ("by_duration", "P999999D", "no reachable batch had ended at P999999D ago"),
            ("by_duration", "two hours", "the duration is 'two hours', which is no duration"),
            ("by_duration", "P", "the duration is 'P', which is no duration"),
            ("from_file", "orders,0", r"line 1 is not topic,partition,offset: 'orders,0'"),
            ("from_file", "orders,0,5", "no reachable batch has offsets of Kafka"),
            ("to_table_version", 3, "--to-table-version needs a Delta table as the sink"),
        ],
    )
    def test_where_to(self, orders: Location, kind: str, value: object, message: str) -> None:
        before = contents(orders)
        with pytest.raises(RefusedError) as e:
            rewind(orders, kind, value)
        assert e.value.message.startswith(message)
        assert e.value.hint or "line" in message
        assert contents(orders) == before

    def test_a_sink_with_more_needs_an_exit(self, orders: Location, table: Location) -> None:
        for sink in (table, None):
            with pytest.raises(RefusedError, match=r"needs somebody to accept: sink_(skips|duplicates) \("):
                rewind(orders, "to_batch", 4, table=sink, sink_exit=None)

    def test_a_sink_nobody_named(self, orders: Location) -> None:
        plan = plan_rewind(Checkpoint.at(orders), Specifier("to_batch", "4"), guards=())
        assert plan.verdict is Verdict.UNKNOWN
        with pytest.raises(RefusedError, match=r"needs somebody to accept: sink_unknown \("):
            apply_rewind(plan, Checkpoint.at(orders), repository(orders), rest=STOPPED)

    def test_sources_that_lost_data(self, orders: Location) -> None:
        """The input files of this stream are missing at all."""
        guards = installed_guards(GuardSettings())
        with pytest.raises(RefusedError, match=r"needs somebody to accept: source_\w+ \("):
            rewind(orders, "to_batch", 4, guards=guards)

    def test_a_stream_that_went_on(self, orders: Location) -> None:
        checkpoint = Checkpoint.at(orders)
        sink = Sink(kind="foreachBatch")
        plan = plan_rewind(checkpoint, Specifier("to_batch", "4"), sink=sink, sink_exit=SinkPolicy.ACCEPT, guards=())
        plant(orders, stream(NEWEST + 1))
        with pytest.raises(RefusedError, match=r"is not any more what plan .* nothing was changed"):
            apply_rewind(plan, checkpoint, repository(orders), sink=sink, rest=STOPPED)
        assert checkpoint.progress().seal is None
        assert set(contents(orders)) == set(stream(NEWEST + 1))

    def test_sealed_by_somebody_else(self, orders: Location) -> None:
        from airflow_ckpt_provider.change.sealing import seal

        seal(Checkpoint.at(orders), reason="mine", plan_id="beef")
        with pytest.raises(SealedError, match="sealed by plan beef"):
            rewind(orders, "to_batch", 4)


class TestTimes:
    def test_the_last_batch_that_had_ended(self, orders: Location) -> None:
        targets = {t.batch_id: t.ended for t in reachable(Checkpoint.at(orders))}
        for batch in range(NEWEST):
            ended = targets[batch]
            assert ended is not None
            asked = (ended + timedelta(milliseconds=1)).isoformat()
            plan = plan_rewind(Checkpoint.at(orders), Specifier("to_datetime", asked))
            assert plan.batch_id == max(b for b, e in targets.items() if e and e <= ended)

    def test_by_duration(self, orders: Location) -> None:
        ended = reachable(Checkpoint.at(orders))[2].ended
        assert ended is not None
        ago = int((datetime.now(UTC) - ended).total_seconds()) - 1
        assert plan_rewind(Checkpoint.at(orders), Specifier("by_duration", f"PT{ago}S")).batch_id >= 2


class TestUndo:
    def test_file_by_file(self, orders: Location, table: Location) -> None:
        before, rows = contents(orders), batches_in(table)
        rewind(orders, "to_batch", 2, table=table)
        outcome = undo(orders, repository(orders), sink=Sink(place=table), rest=STOPPED)
        assert contents(orders) == before
        assert batches_in(table) == rows
        assert outcome.table_version is not None
        assert undo(orders, repository(orders), sink=Sink(place=table), rest=STOPPED).already_done
        assert rewind(orders, "to_batch", 3, table=table).batch_id == 3

    def test_not_after_the_stream_went_on(self, orders: Location) -> None:
        rewind(orders, "to_batch", 2)
        plant(orders, stream(3))
        with pytest.raises(RefusedError, match="was written to since rewind"):
            undo(orders, repository(orders), rest=STOPPED)

    def test_not_after_the_table_was_written_to(self, orders: Location, table: Location) -> None:
        rewind(orders, "to_batch", 2, table=table)
        append(table.uri, 99, app_id=None)
        with pytest.raises(RefusedError, match="it is at version 8, the roll-back was 7"):
            undo(orders, repository(orders), sink=Sink(place=table), rest=STOPPED)

    def killed_after_the_table(self, orders: Location, table: Location) -> None:
        """A rewind that rolled the table back and was stopped before it deleted a file."""

        def die(operation: str, path: str) -> None:
            if operation == "delete_listed":
                raise Killed(path)

        dying, _ = watched(orders, die)
        with pytest.raises(Killed):
            rewind(dying, "to_batch", 2, table=table)
        assert batches_in(table)[-1] == 2

    def test_what_others_wrote_after_a_half_done_rewind_is_not_dropped(self, orders: Location, table: Location) -> None:
        self.killed_after_the_table(orders, table)
        append(table.uri, 99, app_id=None)
        before = contents(orders)
        with pytest.raises(RefusedError, match="it is at version 8, the roll-back was 7") as error:
            undo(orders, repository(orders), sink=Sink(place=table), rest=STOPPED)
        assert batches_in(table)[-2:] == [99, 99]
        assert contents(orders) == before  # sealed as it was
        assert error.value.hint == (
            "run the same rewind again, which ends it and keeps what was written; or restore version 7, without what was written "
            f"since (RESTORE TABLE delta.`{table.uri}` TO VERSION AS OF 7), then run the same undo again"
        )
        rewind(orders, "to_batch", 2, table=table)
        assert batches_in(table) == [0, 0, 1, 1, 2, 2, 99, 99]

    @pytest.mark.parametrize("half_done", [True, False])
    def test_what_others_write_at_the_last_moment_is_not_dropped(
        self, orders: Location, table: Location, half_done: bool
    ) -> None:
        """After every poll and before the commit that brings the table forward."""
        if half_done:
            self.killed_after_the_table(orders, table)
        else:
            rewind(orders, "to_batch", 2, table=table)
        before = contents(orders)

        def write(operation: str, path: str) -> None:
            if operation == "create" and path.endswith("offsets/7"):
                append(table.uri, 99, app_id=None)

        meddled, _ = watched(orders, write)
        undoing = Checkpoint.at(meddled)
        if half_done:  # it is sealed at 7 already
            meddled, store = watched(orders)
            store.before = lambda operation, path: (
                append(table.uri, 99, app_id=None) if operation == "walk" and store.count("walk") == 1 else None
            )
            undoing = Checkpoint.at(meddled)
        with pytest.raises(RefusedError, match="it is at version 8, the roll-back was 7"):
            undo(undoing.location, repository(orders), sink=Sink(place=table), rest=STOPPED)
        assert batches_in(table)[-2:] == [99, 99]
        assert contents(orders) == before

    def test_a_rewind_is_not_gone_on_with_once_its_undo_was_begun(self, orders: Location, table: Location) -> None:
        """The table is forward again: rewound now, the checkpoint would stand before batches that the table skips."""
        self.killed_after_the_table(orders, table)

        def die(operation: str, path: str) -> None:
            if operation == "replace_listed" and not path.endswith("offsets/7"):
                raise Killed(path)

        dying, _ = watched(orders, die)
        with pytest.raises(Killed):
            undo(dying, repository(orders), sink=Sink(place=table), rest=STOPPED)
        assert batches_in(table)[-1] == NEWEST
        with pytest.raises(SealedError, match=r"is sealed by plan \w+-undo \(undo of rewind") as error:
            rewind(orders, "to_batch", 2, table=table)
        assert "if it was stopped, run it again: `airflow-ckpt undo" in str(error.value.hint)
        assert loud_seal(orders)
        undo(orders, repository(orders), sink=Sink(place=table), rest=STOPPED)
        assert set(contents(orders)) == set(stream(NEWEST))

    def test_nothing_to_undo(self, orders: Location) -> None:
        from airflow_ckpt_provider.errors import NoSuchBackupError

        with pytest.raises(NoSuchBackupError, match="keeps no change of"):
            undo(orders, repository(orders), rest=STOPPED)


def stop_and_rewind(
    orders: Location, plan: Callable[[str | None], RewindPlan], sink: Sink
) -> tuple[RewindPlan, RewindOutcome]:
    held = repository(orders)
    apply = functools.partial(apply_rewind, checkpoint=Checkpoint.at(orders), repository=held, sink=sink)
    return stop_plan_and_apply(orders, held, plan, apply, change="rewind", stop_running=True, rest=STOPPED)


def test_a_running_query_is_stopped_by_the_seal(orders: Location) -> None:
    """The query here is suspended; what counts is that the plan is made under the seal and the seal is gone in the end."""
    sink = Sink(kind="foreachBatch")

    def plan(seal_id: str | None):
        assert seal_id is not None
        assert loud_seal(orders)
        return plan_rewind(
            Checkpoint.at(orders),
            Specifier("shift_by", "-1"),
            sink=sink,
            sink_exit=SinkPolicy.ACCEPT,
            seal_id=seal_id,
            guards=(),
        )

    _, outcome = stop_and_rewind(orders, plan, sink)
    assert outcome.batch_id == 5
    assert Checkpoint.at(orders).progress().seal is None


def test_a_refusal_lifts_the_seal_that_stopped_the_query(orders: Location) -> None:
    def plan(seal_id: str | None):
        return plan_rewind(Checkpoint.at(orders), Specifier("to_batch", "99"), seal_id=seal_id)

    with pytest.raises(RefusedError, match="batch 99"):
        stop_and_rewind(orders, plan, Sink())
    assert Checkpoint.at(orders).progress().seal is None
    assert set(contents(orders)) == set(stream(NEWEST))
