"""Rows that left a table while its memory stayed: files that were lost, a recreated table, a restore that names nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.guards.delta_log import commit_path
from airflow_ckpt_provider.sinks.delta import inspect_delta
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import SinkReport
from airflow_ckpt_provider.sinks.sink import Sink, inspect_sink
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.delta_sink import OTHER, QUERY, Table


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def files_of(table: Table, version: int) -> list[Path]:
    actions = map(json.loads, table.place.read(commit_path(version)).splitlines())
    return [Path(table.path) / action["add"]["path"] for action in actions if "add" in action]


def test_files_that_were_lost_and_taken_out(table: Table) -> None:
    """It was SAFE: what others delete by their own wish is, and this is not."""
    table.batch(*range(6))
    for version in (3, 4):
        for file in files_of(table, version):
            file.unlink()
    DeltaTable(table.path).repair()
    report = table.look(5)
    assert report.verdict is Verdict.UNKNOWN
    assert (
        "took files out of the table because they were lost: the rows of batches 3 to 4 are missing"
        in report.reasons[0]
    )


class TestBeforeAnybodyRepairsTheTable:
    """It was SAFE: the log names the file, and only readers find that it is gone."""

    def look(self, table: Table) -> SinkReport:
        return inspect_sink(Sink(table.place, ""), QueryIds.of(QUERY), 5, 5)

    def test_a_file_of_the_newest_commits(self, table: Table) -> None:
        table.batch(*range(6))
        assert self.look(table).verdict is Verdict.SAFE
        [file] = files_of(table, 4)
        file.unlink()
        report = self.look(table)
        assert report.verdict is Verdict.UNKNOWN
        assert report.reasons[0].startswith(f"the table needs the data file {file.name}, which is gone: its rows")

    def test_they_may_not_be_read(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(*_: object) -> bytes:
            raise StorageError("part-0.parquet: access denied")

        table.batch(*range(6))
        monkeypatch.setattr(type(table.place), "read_part", denied)
        report = self.look(table)
        assert report.verdict is Verdict.UNKNOWN
        assert report.reasons[0].startswith("whether the table's newest data files are there is not known: part-0")


class TestTakenOut:
    """FSCK takes files out of a table that are lost."""

    def lose(self, table: Table, version: int) -> None:
        for file in files_of(table, version):
            file.unlink()
        DeltaTable(table.path).repair()

    def test_those_of_others_alone(self, table: Table) -> None:
        """It was UNKNOWN: rows of the query were said to be missing."""
        table.batch(0, 1).rows("a").batch(2, 3)
        self.lose(table, 2)
        assert table.look(3).verdict is Verdict.SAFE

    def test_before_the_first_batch_that_the_log_still_has(self, table: Table) -> None:
        table.batch(0, 1, 2)
        self.lose(table, 1)
        table.clean_log(3).batch(3)
        assert "took files out of the table because they were lost: rows are missing" in table.look(3).reasons[0]

    def test_none(self, table: Table) -> None:
        """A commit that says FSCK and removes nothing."""
        table.batch(0, 1).place.create(commit_path(2), b'{"commitInfo":{"operation":"FSCK"}}')
        assert table.look(1).verdict is Verdict.SAFE

    def test_before_the_query_wrote_the_whole_table_again(self) -> None:
        fsck = TableCommit(1, None, "FSCK", {}, True, removed=frozenset({"0"}))
        whole = TableCommit(2, None, "STREAMING UPDATE", {QUERY: 1}, True, replaces=True, is_all=True)
        history = TableHistory("t", (TableCommit(0, None, "STREAMING UPDATE", {QUERY: 0}, True), fsck, whole))
        assert inspect_delta(history, QueryIds.of(QUERY), 1).verdict is Verdict.SAFE

    def test_in_a_table_that_is_known_by_its_name(self) -> None:
        """It was SAFE: DESCRIBE HISTORY names who ran it, and no files."""
        own = [TableCommit(v, None, "STREAMING UPDATE", {QUERY: b}, True) for v, b in ((0, 0), (1, 1), (3, 2))]
        history = TableHistory("t", (*own[:2], TableCommit(2, None, "FSCK by bob", {}, True), own[2]))
        report = inspect_delta(history, QueryIds.of(QUERY), 2)
        assert report.verdict is Verdict.UNKNOWN
        assert report.reasons[0].startswith(
            "version 2 (FSCK by bob) took files out of the table because they were lost"
        )


def test_a_restore_that_says_nothing_of_itself(table: Table) -> None:
    """A commitInfo is optional in Delta's protocol. It was SAFE though batches 3 to 5 had left the table."""
    table.batch(*range(6)).restore(2)
    path = Path(table.path) / commit_path(6)
    lines = [line for line in path.read_text().splitlines() if "commitInfo" not in json.loads(line)]
    path.write_text("\n".join(lines))
    report = table.look(5)
    assert report.verdict is not Verdict.SAFE
    assert report.batch_id == 2
    assert report.remembered == 5


def test_a_table_that_was_recreated_while_the_query_went_on(table: Table) -> None:
    """Its log is whole, and begins with batch 5. It was SAFE though no version has the rows of batches 0 to 4."""
    table.batch(*range(5, 10))
    report = table.look(9)
    assert report.verdict is Verdict.UNKNOWN
    assert "if it was dropped and recreated since, the rows of batches 0 to 4 are missing" in report.reasons[0]


@pytest.mark.parametrize("case", ["from the first batch", "cleaned up", "of another id before"])
def test_an_ordinary_table_is_not_doubted(table: Table, case: str) -> None:
    if case == "from the first batch":
        table.batch(*range(10))
    elif case == "cleaned up":
        table.batch(*range(10)).clean_log(4)
    else:
        table.batch(*range(5), query=OTHER).batch(*range(5, 10))
    report = table.look(9)
    assert not any("recreated since" in reason for reason in report.reasons)
    assert report.verdict is Verdict.SAFE


def test_the_plan_of_a_rollback_names_what_the_table_still_skips(table: Table) -> None:
    """A foreachBatch that appends two frames, each with an id of its own; one of them is rolled back."""
    for batch in range(7):
        table.batch(batch).batch(batch, query=OTHER)
    rollback = table.look(4).rollback
    assert rollback
    assert all(f"still skips batches of {OTHER} up to" in each for each in rollback.foreign)


def test_a_shallow_clone_is_rolled_back_by_spark(tmp_path: Path) -> None:
    """deltalake does not find a file of the original: the plan offered what could not be carried out."""
    log = tmp_path / "clone/_delta_log"
    log.mkdir(parents=True)
    original = f"file:{tmp_path}/original/part-0.parquet"
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    metadata = {"id": "t", "schemaString": '{"type":"struct","fields":[]}', "partitionColumns": [], "configuration": {}}
    metadata["format"] = {"provider": "parquet", "options": {}}

    def add(path: str, *, changes: bool = True) -> dict[str, object]:
        return {"add": {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": changes}}

    commits: list[list[dict[str, object]]] = [
        [{"commitInfo": {"operation": "CLONE"}}, {"protocol": protocol}, {"metaData": metadata}, add(original)],
        *(
            [{"commitInfo": {"operation": "WRITE"}}, {"txn": {"appId": QUERY, "version": n}}, add(f"{n}")]
            for n in range(3)
        ),
        [
            {"commitInfo": {"operation": "OPTIMIZE"}},
            *({"remove": {"path": path, "dataChange": False}} for path in (original, "0", "1", "2")),
            add("all", changes=False),
        ],
    ]
    for version, actions in enumerate(commits):
        (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))
    for name in "012":
        (tmp_path / "clone" / name).write_text("x")
    report = inspect_sink(Sink(place=open_location(str(tmp_path / "clone"))), QueryIds.of(QUERY), 0, 2)
    assert report.rollback
    assert report.rollback.feature == "shallowClone"
