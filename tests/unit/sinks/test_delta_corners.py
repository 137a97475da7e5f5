"""Corners of Delta: settings that others change, RESTORE to a time, files that VACUUM removed, a log that was cleaned up."""

from __future__ import annotations

import json
import os
import time
import tracemalloc
from pathlib import Path
from random import Random

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from pyarrow import parquet

from airflow_ckpt_provider.errors import RefusedError, StorageError, UnreadableLogError
from airflow_ckpt_provider.guards import delta_client
from airflow_ckpt_provider.guards.delta_log import commit_path
from airflow_ckpt_provider.guards.delta_vector import vector_path
from airflow_ckpt_provider.sinks.delta import RESTORED_WITHOUT_SPARK, equal_versions
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.delta_rollback import TableTarget, roll_back_table
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport, SinkRollback
from airflow_ckpt_provider.sinks.sink import Sink, inspect_sink
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory
from airflow_ckpt_provider.verdict import Verdict
from tests.support.delta_sink import OTHER, QUERY, Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def look(table: Table, batch: int) -> SinkReport:
    """As every verb does it: with the files and the log checkpoint of the table."""
    sink = Sink(table.place, "")
    return inspect_sink(sink, QueryIds.of(QUERY), batch, 99)


def commit(table: Table, *actions: dict[str, object]) -> None:
    """A commit as another engine writes it."""
    lines = "\n".join(json.dumps(action) for action in actions)
    table.place.create(commit_path(table.version + 1), lines.encode())


def metadata_of(table: Table) -> dict[str, object]:
    newest: dict[str, object] = {}
    for version in range(table.version + 1):
        for line in table.place.read(commit_path(version)).splitlines():
            newest = json.loads(line).get("metaData") or newest
    return newest


def alter(table: Table, **properties: str) -> None:
    metadata = metadata_of(table)
    configuration = {**metadata["configuration"], **properties}  # type: ignore[dict-item]
    info = {"commitInfo": {"operation": "SET TBLPROPERTIES", "timestamp": 1_700_000_000_000}}
    commit(table, info, {"metaData": {**metadata, "configuration": configuration}})


class TestSettingsOfOthers:
    """A rollback undoes what is in the table's metadata too."""

    def test_before_the_first_batch_that_leaves_they_stay(self, table: Table) -> None:
        table.batch(0, 1)
        alter(table, **{"delta.setTransactionRetentionDuration": "interval 9 days"})
        rollback = look(table.batch(2), 1).rollback
        assert rollback
        assert (rollback.to_version, rollback.reverts) == (2, ())
        table.roll_back(1)
        assert DeltaTable(table.path).metadata().configuration == {
            "delta.setTransactionRetentionDuration": "interval 9 days"
        }

    def test_what_the_table_is_to_remember_has_a_time(self, table: Table) -> None:
        """Spark forgets a ``txn`` without one where the table limits for how long it remembers."""
        table.batch(0, 1, 2).roll_back(1)
        actions = [json.loads(line) for line in table.place.read(commit_path(3)).splitlines()]
        [txn] = [action["txn"] for action in actions if "txn" in action]
        assert (txn["appId"], txn["version"]) == (QUERY, 1)
        [info] = [action["commitInfo"] for action in actions if "commitInfo" in action]
        assert abs(txn["lastUpdated"] - info["timestamp"]) < 600_000

    def test_after_it_they_are_named(self, table: Table) -> None:
        table.batch(0, 1, 2)
        alter(table, **{"delta.enableChangeDataFeed": "true", "owner": "finance"})
        rollback = look(table.batch(3), 1).rollback
        assert rollback
        assert rollback.reverts == (
            "property delta.enableChangeDataFeed = true (added)",
            "property owner = finance (added)",
        )
        assert SinkRollback.from_json(rollback.to_json()) == rollback

    def test_a_column_and_a_constraint(self, table: Table) -> None:
        table.batch(0, 1, 2)
        DeltaTable(table.path).alter.add_constraint({"has_row": "row is not null"})
        from deltalake import Field
        from deltalake.schema import PrimitiveType

        DeltaTable(table.path).alter.add_columns(Field("amount", PrimitiveType("long")))
        rollback = look(table, 1).rollback
        assert rollback
        assert {words.partition(" =")[0] for words in rollback.reverts} >= {
            "column amount",
            "property delta.constraints.has_row",
        }

    def test_the_streams_own_are_not_others(self, table: Table) -> None:
        import pyarrow as pa
        from deltalake import write_deltalake

        table.batch(0, 1)
        write_deltalake(
            table.path,
            pa.table({"row": [f"{QUERY}/2"], "new": [1]}),
            mode="append",
            schema_mode="merge",
            commit_properties=CommitProperties(app_transactions=[Transaction(QUERY, 2)]),
        )
        rollback = look(table, 1).rollback
        assert rollback
        assert rollback.reverts == ()

    def test_set_and_taken_back_is_nothing(self, table: Table) -> None:
        table.batch(0, 1, 2)
        alter(table, owner="finance")
        metadata = metadata_of(table)
        commit(table, {"commitInfo": {"operation": "UNSET"}}, {"metaData": {**metadata, "configuration": {}}})
        rollback = look(table, 1).rollback
        assert rollback
        assert rollback.reverts == ()


class TestForgotten:
    """``delta.setTransactionRetentionDuration``: Delta forgets a ``txn`` that is older, and at once one without a time."""

    @pytest.mark.parametrize(
        ("retention", "days", "verdict"),
        [
            ("interval 7 days", 10, Verdict.WILL_DUPLICATE),
            ("interval 7 days", None, Verdict.WILL_DUPLICATE),
            ("interval 7 days", 6.5, Verdict.UNKNOWN),  # the query may be started tomorrow
            ("interval 7 days", 1, Verdict.WILL_SKIP),
            ("interval 1 fortnight", 1, Verdict.UNKNOWN),
            (None, None, Verdict.WILL_SKIP),
        ],
    )
    def test_what_a_replay_does(
        self, retention: str | None, days: float | None, verdict: Verdict, table: Table
    ) -> None:
        self.written(table, retention, days)
        report = look(table, 2)
        assert report.verdict is verdict
        assert report.rollback
        assert (report.remembered is None) == (verdict is Verdict.WILL_DUPLICATE)
        assert ("delta.setTransactionRetentionDuration" in report.reasons[0]) == (verdict is not Verdict.WILL_SKIP)
        if retention == "interval 7 days" and days:  # deltalake remembers one without a time, as Spark does not
            version = table.version
            assert (table.batch(3).version > version) == (verdict is Verdict.WILL_DUPLICATE)

    @pytest.mark.parametrize(("days", "verdict"), [(10, Verdict.SAFE), (6.5, Verdict.UNKNOWN), (1, Verdict.WILL_SKIP)])
    def test_restored_without_that_memory(self, days: float, verdict: Verdict, table: Table) -> None:
        self.written(table, "interval 7 days", days)
        assert look(table.restore(3), 2).verdict is verdict

    def test_only_the_log_checkpoint_has_it(self, table: Table) -> None:
        """When it was set is not known then."""
        self.written(table, "interval 7 days", 1)
        table.rows("a").clean_log(6)
        assert look(table, 2).verdict is Verdict.UNKNOWN

    def written(self, table: Table, retention: str | None, days: float | None) -> None:
        updated = None if days is None else int((time.time() - days * 86400) * 1000)
        table.batch(0)
        alter(table, **({"delta.setTransactionRetentionDuration": retention} if retention else {}))
        table.batch(1, 2, 3, 4, updated=updated)


class TestRestoreToATime:
    """Delta writes the local time of the driver, without a zone: the files show where it went."""

    def restored(self, table: Table, version: int, stamp: str) -> Table:
        """RESTORE as Spark's ``TO TIMESTAMP`` writes it."""
        DeltaTable(table.path).restore(version)
        path = commit_path(table.version)
        lines = [json.loads(line) for line in table.place.read(path).splitlines()]
        for action in lines:
            if "commitInfo" in action:
                action["commitInfo"]["operationParameters"] = {"version": None, "timestamp": stamp}
        table.place.replace(path, "\n".join(json.dumps(action) for action in lines).encode())
        return table

    @pytest.mark.parametrize("stamp", ["1999-01-01 00:00:00.0", "2999-01-01 00:00:00.0", "local", ""])
    def test_whatever_the_time_says(self, stamp: str, table: Table) -> None:
        self.restored(table.batch(0, 1, 2, 3), 1, stamp)
        report = look(table, 1)
        assert (report.batch_id, report.remembered, report.verdict) == (1, 3, Verdict.WILL_SKIP)
        assert table.held == {f"{QUERY}/0", f"{QUERY}/1"}

    def test_to_a_version_that_is_not_in_the_log(self, table: Table) -> None:
        table.batch(0, 1, 2, 3)
        self.restored(table, 1, "2026-01-01 00:00:00.0")
        table.clean_log(3)
        report = look(table, 1)
        assert report.verdict is Verdict.UNKNOWN
        assert report.reasons == ("the table was restored to a version that its log does not have any more",)


class TestVacuum:
    def removed(self, table: Table, version: int) -> list[str]:
        return sorted(read_table_history(table.place).commits[version].removed)

    def test_files_that_are_gone_are_found_when_it_is_planned(self, table: Table) -> None:
        table.batch(0, 1, 2).optimize().batch(3)
        for name in self.removed(table, 3):
            os.unlink(Path(table.path) / name)
        report = look(table, 1)
        assert report.rollback is None
        assert (report.obstacle or "").startswith("version 1 needs the data file ")
        assert "no version with these rows is whole" in (report.obstacle or "")

    def test_among_equal_versions_the_whole_one_is_chosen(self, table: Table) -> None:
        """Compacted, restored to the small files, and compacted again: the small files may be gone, the big one is not."""
        table.batch(0, 1, 2).optimize()
        small = self.removed(table, 3)
        table.batch(3)
        report = look(table, 2)
        assert report.rollback
        assert report.rollback.to_version == 3
        for name in small:
            os.unlink(Path(table.path) / name)
        report = look(table, 2)
        assert report.rollback
        assert report.rollback.to_version == 3
        table.roll_back(2)
        assert table.held == {f"{QUERY}/{batch}" for batch in range(3)}

    def test_only_the_memory_is_wrong(self, table: Table) -> None:
        """Restored by Spark and compacted: the newest version is the right one, and the small files are not needed."""
        table.batch(0, 1, 2, 3).restore(1).optimize()
        for name in self.removed(table, 5):
            os.unlink(Path(table.path) / name)
        report = look(table, 1)
        assert report.rollback
        assert report.rollback.to_version == table.version == 5
        table.roll_back(1)
        assert look(table, 1).verdict is Verdict.SAFE
        assert table.batch(2, 3).held == {f"{QUERY}/{batch}" for batch in range(4)}

    def test_of_two_equal_versions_the_one_with_its_files_is_chosen(self, table: Table) -> None:
        """Compacted, restored by Spark to the small files: the version just before the next batch needs those."""
        table.batch(0, 1).optimize().restore(1).batch(2).optimize()
        assert (rollback := look(table, 1).rollback)
        assert rollback.to_version == 3
        for name in self.removed(table, 2):
            os.unlink(Path(table.path) / name)
        assert (rollback := look(table, 1).rollback)
        assert rollback.to_version == 2
        roll_back_table(TableTarget(table.place, 2, QUERY, 1, "7f3a", {}), expected=table.version)
        assert table.held == {f"{QUERY}/0", f"{QUERY}/1"}


class TestDeletionVectors:
    """Rows are marked as deleted in a file beside the data, which ``VACUUM`` deletes when another one takes its place."""

    def vector(self, stored: str, kind: str = "u") -> dict[str, object]:
        return {"storageType": kind, "pathOrInlineDv": stored, "offset": 1, "sizeInBytes": 36, "cardinality": 1}

    def test_the_file_of_a_vector(self) -> None:
        """The example of Delta's PROTOCOL.md."""
        name = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
        assert vector_path(self.vector("ab^-aqEH.-t@S}K{vb[*k^")) == f"ab/{name}"
        assert vector_path(self.vector("^-aqEH.-t@S}K{vb[*k^")) == name
        assert vector_path(self.vector("s3://lake/t/dv.bin", "p")) == "s3://lake/t/dv.bin"
        assert vector_path(self.vector("~" * 20)) is None
        assert vector_path(self.vector("#" * 20)) is None
        assert vector_path(self.vector("wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", "i")) is None

    def test_the_vector_that_a_version_needs_is_gone(self, table: Table) -> None:
        """The data file is there in every version: only the vectors changed."""
        table.batch(0, 1)
        data = sorted(read_table_history(table.place).commits[1].added)[0]
        file: dict[str, object] = {
            "path": data,
            "dataChange": True,
            "size": 1,
            "modificationTime": 1,
            "partitionValues": {},
        }
        first, second = self.vector("ab^-aqEH.-t@S}K{vb[*k^"), self.vector("ac^-aqEH.-t@S}K{vb[*k^")
        path = vector_path(first)
        assert path
        table.place.replace(path, b"1")
        delete = {"commitInfo": {"operation": "DELETE"}}
        commit(table, delete, {"remove": file}, {"add": {**file, "deletionVector": first}})
        commit(table, {"commitInfo": {"operation": "STREAMING UPDATE"}}, {"txn": {"appId": QUERY, "version": 2}})
        replaced = {"add": {**file, "deletionVector": second}}
        commit(table, delete, {"remove": {**file, "deletionVector": first}}, replaced)
        assert (rollback := look(table, 1).rollback)
        assert rollback.to_version == 2
        table.place.delete(path)
        report = look(table, 1)
        assert (report.rollback, report.verdict) == (None, Verdict.WILL_SKIP)
        assert (report.obstacle or "").startswith(f"version 2 needs the data file {path}, which is gone (VACUUM)")


class TestACleanedLog:
    """The table's protocol and properties are in the log's checkpoint alone."""

    def cleaned(self, table: Table) -> Table:
        return table.batch(0, 1, 2, 3).clean_log(2)

    def test_append_only(self, table: Table) -> None:
        table.batch(0)
        alter(table, **{"delta.appendOnly": "true"})
        table.batch(1, 2, 3).clean_log(3)
        assert read_table_history(table.place).configuration == {}
        report = look(table, 2)
        assert report.rollback is None
        assert "the table is append-only" in (report.obstacle or "")

    def test_a_version_whose_commit_is_left_without_those_before_it(self, table: Table) -> None:
        """Nobody can put it together: the plan promised a rollback that deltalake and Spark then refused."""
        table.batch(0, 1, 2, 3).clean_log(1)
        report = look(table, 1)
        assert (report.verdict, report.rollback) == (Verdict.WILL_SKIP, None)
        assert (report.obstacle or "").startswith(
            "version 1 cannot be put together any more: the log lacks commits before it"
        )
        with pytest.raises(Exception, match="No table metadata or protocol found"):
            DeltaTable(table.path).restore(1)
        table.batch(4)
        assert (rollback := look(table, 3).rollback)
        assert rollback.to_version == 3
        roll_back_table(TableTarget(table.place, 3, QUERY, 3, "7f3a", {}), expected=4)
        assert look(table, 3).verdict is Verdict.SAFE

    def test_a_feature_that_only_the_checkpoint_names(self, table: Table) -> None:
        table.batch(0)
        features = {"readerFeatures": [], "writerFeatures": ["appendOnly", "domainMetadata", "rowTracking"]}
        commit(
            table,
            {"commitInfo": {"operation": "SET TBLPROPERTIES"}},
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features["writerFeatures"]}},
        )
        before = read_table_history(table.place)
        assert before.features - RESTORED_WITHOUT_SPARK == {"domainMetadata", "rowTracking"}
        self.batch_by_spark(table, 1)
        DeltaTable(table.path).create_checkpoint()
        self.batch_by_spark(table, 2)
        for version in range(3):
            table.place.delete(commit_path(version))
        report = look(table, 1)
        assert report.rollback
        assert report.rollback.feature == "domainMetadata"

    def batch_by_spark(self, table: Table, batch: int) -> None:
        """A batch without rows: Delta's sink commits those too."""
        commit(
            table,
            {"commitInfo": {"operation": "STREAMING UPDATE"}},
            {"txn": {"appId": QUERY, "version": batch}},
        )

    def test_nothing_can_read_the_checkpoint(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cleaned(table)

        def unreadable(*_: object, **__: object) -> None:
            raise delta_client.UnreadableTableError("a feature that it does not know")

        monkeypatch.setattr(delta_client, "read_state", unreadable)
        report = look(table, 2)
        assert report.rollback is None
        assert "which features a rollback has to keep is not known" in (report.obstacle or "")

    @pytest.mark.parametrize(
        ("change", "feature"),
        [
            ({"configuration": {"delta.columnMapping.mode": "name"}}, "columnMapping"),
            (
                {
                    "schemaString": json.dumps(
                        {"fields": [{"name": "id", "type": "long", "metadata": {"delta.identity.start": 1}}]}
                    )
                },
                "identityColumns",
            ),
        ],
    )
    def test_a_protocol_version_that_names_no_feature(
        self, change: dict[str, object], feature: str, table: Table
    ) -> None:
        table.batch(0)
        commit(
            table,
            {"protocol": {"minReaderVersion": 2, "minWriterVersion": 6}},
            {"metaData": {**metadata_of(table), **change}},
        )
        assert feature in read_table_history(table.place).features

    def partly(self, table: Table) -> None:
        """The writer of the log checkpoint at version 3 was stopped after the first of its two parts."""
        table.batch(0, 1, 2, 3)
        DeltaTable(table.path).create_checkpoint()
        log = Path(table.path) / "_delta_log"
        whole = log / f"{3:020}.checkpoint.parquet"
        rows = parquet.read_table(whole)
        parquet.write_table(rows.slice(0, 3), log / f"{3:020}.checkpoint.{1:010}.{2:010}.parquet")
        whole.unlink()
        (log / "_last_checkpoint").unlink()
        table.batch(4)
        DeltaTable(table.path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        table.batch(5, 6, 7).clean_log(4)

    def test_one_part_of_a_checkpoint(self, table: Table) -> None:
        """It was taken for a whole one, and the rollback removed the rows of the batches before it."""
        self.partly(table)
        report = look(table, 5)
        assert (report.verdict, report.rollback) == (Verdict.WILL_SKIP, None)
        assert (report.obstacle or "").startswith("version 6 cannot be put together any more")

    def test_a_rollback_that_restores_only_a_part(self, table: Table) -> None:
        """deltalake restores what it can read of a version; the commit shows it, and a second run does not pass it either."""
        self.partly(table)
        expected = table.version
        target = TableTarget(table.place, 6, QUERY, 5, "7f3a", {})
        for _ in range(2):
            with pytest.raises(StorageError, match="removed files that this version had") as raised:
                roll_back_table(target, expected=expected, undo_command="airflow-ckpt undo")
            assert raised.value.hint == "undo it (`airflow-ckpt undo`)"
        roll_back_table(TableTarget(table.place, expected, QUERY, 7, "7f3a-undo", {}), expected=expected + 1)
        assert table.held == {f"{QUERY}/{batch}" for batch in range(8)}


def test_a_commit_that_deltalake_cannot_make_is_no_writer(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else wrote: the error must not say so."""
    import deltalake
    from deltalake.exceptions import CommitFailedError

    table.batch(0, 1)

    def fails(*_: object, **__: object) -> None:
        raise CommitFailedError("Unsupported writer feature: rowTracking")

    monkeypatch.setattr(deltalake.DeltaTable, "restore", fails)
    settings = {"txns": {QUERY: 0}, "about": {}, "expected": 1, "storage_options": {}}
    with pytest.raises(StorageError, match=r"deltalake cannot commit to this table .*rowTracking.*nothing was changed"):
        delta_client.restore(table.place, 0, **settings)  # type: ignore[arg-type]

    def meanwhile(*_: object, **__: object) -> None:
        table.batch(2)
        raise CommitFailedError("Transaction failed: conflict")

    monkeypatch.setattr(deltalake.DeltaTable, "restore", meanwhile)
    with pytest.raises(RefusedError, match="was written to at the same moment"):
        delta_client.restore(table.place, 0, **settings)  # type: ignore[arg-type]


class TestAnyNumbers:
    """A ``txn`` can have any number; it took all memory to count up to it."""

    NOW = 1_795_000_000_000

    def test_a_time_is_no_batch(self, table: Table) -> None:
        table.rows("a").batch(self.NOW, self.NOW + 60_000, self.NOW + 120_000)
        report = look(table, 1)
        assert (report.verdict, report.rollback) == (Verdict.UNKNOWN, None)
        assert report.reasons == (report.obstacle,)
        assert f"has the number {self.NOW}; more batches are missing than the log has commits" in report.reasons[0]

    def test_one_odd_commit(self, table: Table) -> None:
        table.batch(0, 1, self.NOW)
        assert look(table, 1).verdict is Verdict.WILL_SKIP
        report = look(table, self.NOW)
        assert report.verdict is Verdict.UNKNOWN
        assert f"no commit of batches 2 to {self.NOW - 1}" in report.reasons[0]
        assert "these are no batch numbers" in report.reasons[0]
        assert f"rows of batches {self.NOW + 1} to {self.NOW * 2} are missing" in look(table, self.NOW * 2).reasons[1]

    def test_after_another_id(self, table: Table) -> None:
        assert look(table.batch(0, query=OTHER).batch(self.NOW), self.NOW).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    "action",
    [
        {"add": {"path": []}},
        {"add": {}},
        {"add": 1.5},
        {"remove": {"path": "x", "deletionVector": "x"}},
        {"txn": {"appId": "x", "version": "x"}},
        {"txn": {"appId": "x", "version": 1, "lastUpdated": 10**30}},
        {"commitInfo": "x"},
        {"commitInfo": {"timestamp": 10**30}},
        {"commitInfo": {"operationMetrics": 1}},
        {"commitInfo": {"operationMetrics": {"numOutputRows": "x"}}},
        {"metaData": 1},
        {"metaData": {"configuration": ["x"]}},
        {"protocol": {"writerFeatures": 1}},
    ],
)
def test_a_field_of_an_unexpected_form(action: dict[str, object], table: Table) -> None:
    commit(table.batch(0), action)
    with pytest.raises(
        UnreadableLogError, match=r"0{19}1\.json: a field is missing or has an unexpected form: \w+Error \("
    ):
        look(table, 0)


class TestALongLog:
    """Every version had a copy of its whole lineage: 20,000 versions took gigabytes."""

    def test_memory_grows_with_the_versions(self) -> None:
        versions = 20_000
        commits = tuple(TableCommit(v, None, "STREAMING UPDATE", {"q": v}, True) for v in range(versions))
        history = TableHistory("t", commits)
        tracemalloc.start()
        try:
            assert history.lineage() == commits
            assert equal_versions(history, versions - 1) == (versions - 1,)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 400 * versions

    def test_restores_over_restores(self) -> None:
        """Compared with lineages that are put together one by one."""
        random = Random(7)
        for _ in range(200):
            first, commits = random.choice((0, 3)), list[TableCommit]()
            wanted: dict[int, tuple[TableCommit, ...] | None] = {first - 1: ()}
            for version in range(first, first + random.randint(1, 12)):
                restored = random.randint(first - 2, version - 1) if random.random() < 0.3 else None
                changes = random.random() < 0.7
                commit = TableCommit(
                    version, None, "RESTORE" if restored is not None else "WRITE", {}, changes, restored
                )
                before = wanted[version - 1]
                if restored is not None:
                    wanted[version] = wanted.get(restored)
                else:
                    wanted[version] = (*before, commit) if before is not None and changes else before
                commits.append(commit)
            history = TableHistory("t", tuple(commits))
            assert {version: history.lineage(version) for version in wanted} == wanted
            for version in range(first, history.newest + 1):
                if wanted[version] is not None:
                    same = {v for v in range(first, history.newest + 1) if wanted[v] == wanted[version]}
                    assert set(equal_versions(history, version)) == same
