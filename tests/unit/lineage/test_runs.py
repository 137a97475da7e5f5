"""What each operator says that it read and wrote, on real checkpoints, backups and tables; and the schema of our facets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.lineage.names import Dataset
from airflow_ckpt_provider.lineage.runs import FACETS, SCHEMA_ID, Lineage, Opened, of_backup, of_guard
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.chain import (
    ChainBackupOperator,
    ChainRestoreOperator,
    ChainRewindOperator,
    ChainUndoOperator,
)
from airflow_ckpt_provider.operators.doctor import CheckpointDoctorOperator
from airflow_ckpt_provider.operators.file_source_guard import FileSourceGuardOperator
from airflow_ckpt_provider.operators.lineage import LineageOperator
from airflow_ckpt_provider.operators.preflight import RecoveryPreflightOperator
from airflow_ckpt_provider.operators.repository import CheckpointCopyOperator
from airflow_ckpt_provider.operators.reset import NewCheckpointOperator
from airflow_ckpt_provider.operators.reset_flow import FlowNextVersionOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.operators.undo import CheckpointUndoOperator
from airflow_ckpt_provider.operators.verify import CheckpointVerifyOperator
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.stream import Stream
from tests.support.backups import stream
from tests.support.chained_streams import Chained
from tests.support.checkpoints import plant
from tests.support.delta_batches import delta_table
from tests.support.lineage_schema import SCHEMA, check
from tests.support.one_checkpoint import NEWEST, unpack
from tests.support.other_sources import OF_ANOTHER_KIND
from tests.support.other_sources import checkpoint as checkpoint_of
from tests.support.several_sinks import IDS, Application

Run = Callable[..., dict[str, Any]]
STOPPED: dict[str, Any] = {"query_is_stopped": True, "quiet_for": 0}


def noted(operator: LineageOperator) -> Lineage:
    """What the operator has noted, with every facet checked against the schema that is published."""
    found: Lineage = operator.__dict__["_lineage"]()
    for name, facet in [*found.run_facets.items(), *operator.facets_of_every_run().items()]:
        check(name, facet)
    for dataset in (*found.inputs, *found.outputs):
        for name, facet in dataset.facets.items():
            check(name, facet)
    return found


def names(datasets: tuple[Dataset, ...]) -> list[tuple[str, str]]:
    assert {dataset.namespace for dataset in datasets} <= {"file"}
    return [(dataset.name, dataset.version) for dataset in datasets]


@pytest.fixture
def backup(checkpoint: Path, repository: Path, run: Run) -> dict[str, Any]:
    operator = CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository))
    return operator.execute(run())


class TestSchema:
    def test_it_is_a_schema_with_one_definition_for_each_facet(self) -> None:
        jsonschema.Draft202012Validator.check_schema(SCHEMA)
        assert SCHEMA["$id"] == SCHEMA_ID
        assert set(SCHEMA["$defs"]) == {*FACETS.values(), "Identifier"}

    def test_a_facet_with_something_else_in_it_is_refused(self) -> None:
        check("ckpt_checkpoint", {"batchId": 5})
        with pytest.raises(jsonschema.ValidationError):
            check("ckpt_checkpoint", {"batchId": 5, "login": "secret"})


class TestBackup:
    def test_the_checkpoint_was_read_and_the_backup_written(self, checkpoint: Path, repository: Path, run: Run) -> None:
        operator = CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository))
        summary = operator.execute(run())
        found = noted(operator)
        assert names(found.inputs) == [(str(checkpoint), str(NEWEST))]
        (written,) = found.outputs
        assert names(found.outputs) == [(f"{repository}/backups/orders", summary["backup_id"])]
        assert (written.files, written.size) == (summary["files"], summary["bytes"])
        facet = written.facets["ckpt_backup"]
        assert (facet["backupId"], facet["batchId"], facet["stream"]) == (summary["backup_id"], NEWEST, "orders")

    def test_none_that_was_taken_was_written(
        self, checkpoint: Path, repository: Path, backup: dict[str, Any], run: Run
    ) -> None:
        again = CheckpointBackupOperator(
            task_id="b", checkpoint=str(checkpoint), repository=str(repository), skip_if_unchanged=True
        )
        assert again.execute(run("again"))["unchanged"]
        found = noted(again)
        assert names(found.inputs) == [
            (str(checkpoint), str(NEWEST)),
            (f"{repository}/backups/orders", backup["backup_id"]),
        ]
        assert found.outputs == ()

    def test_topics_are_sources_where_a_cluster_was_asked(self, backup: dict[str, Any]) -> None:
        facts = {"end_offsets": [{"index": 0, "kind": "kafka", "offset": {"orders": {"0": 5}, "refunds": {"0": 1}}}]}
        found = of_backup(backup, Opened(), facts, servers="b1:9093,b2:9093")
        assert [(each.namespace, each.name) for each in found.inputs[1:]] == [
            ("kafka://b1:9093", "orders"),
            ("kafka://b1:9093", "refunds"),
        ]
        assert len(of_backup(backup, Opened(), facts).inputs) == 1


class TestVerify:
    def test_whole(self, repository: Path, backup: dict[str, Any], run: Run) -> None:
        operator = CheckpointVerifyOperator(task_id="v", repository=str(repository), read_data="all")
        operator.execute(run())
        (read,) = noted(operator).inputs
        assert (read.name, read.version) == (f"{repository}/backups/orders", backup["backup_id"])
        assert read.facets["ckpt_verification"]["whole"] is True
        assert read.facets["ckpt_verification"]["readFiles"] == backup["files"]

    def test_damage_fails_the_task_and_is_in_the_facet(
        self, repository: Path, backup: dict[str, Any], run: Run
    ) -> None:
        next(file for file in (repository / "objects").rglob("*") if file.is_file()).unlink()
        operator = CheckpointVerifyOperator(task_id="v", repository=str(repository))
        with pytest.raises(AirflowFailException):
            operator.execute(run())
        (read,) = noted(operator).inputs
        assert read.facets["ckpt_verification"]["whole"] is False
        assert read.facets["ckpt_verification"]["findings"]


class TestCopy:
    def test_what_is_there_already_is_not_written(
        self, repository: Path, tmp_path: Path, backup: dict[str, Any], run: Run
    ) -> None:
        for written in (True, False):
            operator = CheckpointCopyOperator(
                task_id="c", repository=str(repository), target=str(tmp_path / "second"), create=True
            )
            operator.execute(run())
            found = noted(operator)
            assert names(found.inputs) == [(f"{repository}/backups/orders", backup["backup_id"])]
            there = [(f"{tmp_path}/second/backups/orders", backup["backup_id"])]
            assert names(found.outputs) == (there if written else [])


class TestRestore:
    def restore(self, repository: Path, target: Path, run: Run, **fields: Any) -> CheckpointRestoreOperator:
        operator = CheckpointRestoreOperator(
            task_id="r", repository=str(repository), target=str(target), **STOPPED, **fields
        )
        operator.execute(run())
        return operator

    def test_a_plan_writes_nothing(self, repository: Path, tmp_path: Path, backup: dict[str, Any], run: Run) -> None:
        found = noted(self.restore(repository, tmp_path / "new", run))
        assert names(found.inputs) == [(f"{repository}/backups/orders", backup["backup_id"])]
        assert found.outputs == ()
        facet = found.run_facets["ckpt_change"]
        assert (facet["kind"], facet["applied"], facet["backupId"]) == ("restore", False, backup["backup_id"])

    def test_applied(self, repository: Path, tmp_path: Path, backup: dict[str, Any], run: Run) -> None:
        found = noted(self.restore(repository, tmp_path / "new", run, mode="apply"))
        assert names(found.outputs) == [(str(tmp_path / "new"), str(NEWEST))]
        assert found.run_facets["ckpt_change"]["applied"] is True

    def test_refused(self, repository: Path, checkpoint: Path, backup: dict[str, Any], run: Run) -> None:
        (checkpoint / "offsets" / str(NEWEST)).write_bytes(b"torn")
        operator = CheckpointRestoreOperator(
            task_id="r", repository=str(repository), target=str(checkpoint), mode="apply", replace=True
        )
        with pytest.raises(AirflowFailException):  # nobody said that the query is stopped
            operator.execute(run())
        found = noted(operator)
        assert found.outputs == ()
        assert "applied" not in found.run_facets["ckpt_change"], "of a task that failed it is not known"


class TestRewindAndUndo:
    @pytest.mark.parametrize("count", [1, 2])
    def test_with_tables(self, tmp_path: Path, run: Run, count: int) -> None:
        place = tmp_path / "orders"
        plant(open_location(str(place)), stream(6))
        tables = [str(tmp_path / name) for name in ("first", "second")[:count]]
        before = [delta_table(Path(table), range(4, 7)) for table in tables]
        assert before
        about: dict[str, Any] = {"checkpoint": str(place), "sink": tables if count > 1 else tables[0], **STOPPED}
        accept = ["source_loss", "source_failure"]
        to: dict[str, Any] = {"to": "to_batch", "value": 4, "sink_policy": "rollback", "accept": accept}
        planned = CheckpointRewindOperator(task_id="p", **to, **about)
        planned.execute(run())
        plan = noted(planned)
        assert [name for name, _ in names(plan.inputs)] == [str(place), *tables]
        assert plan.outputs == ()
        operator = CheckpointRewindOperator(task_id="r", mode="apply", **to, **about)
        result = operator.execute(run())
        outcome = result["outcome"]
        versions = [each["table_version"] for each in outcome.get("sinks", [outcome])]
        found = noted(operator)
        assert dict(names(found.outputs)) == {
            **{table: str(version) for table, version in zip(tables, versions, strict=True)},
            str(place): "4",
        }
        assert [sink["rolledBack"] for sink in found.run_facets["ckpt_change"]["sinks"]] == [True] * count
        undo = CheckpointUndoOperator(task_id="u", **about)
        back = undo.execute(run())
        versions = [each["table_version"] for each in back.get("sinks", [back])]
        assert dict(names(noted(undo).outputs)) == {
            str(place): "",
            **{table: str(version) for table, version in zip(tables, versions, strict=True)},
        }
        assert noted(undo).run_facets["ckpt_change"]["of"] == "rewind"

    def test_from_a_backup(self, checkpoint: Path, repository: Path, backup: dict[str, Any], run: Run) -> None:
        operator = CheckpointRewindOperator(
            task_id="r",
            checkpoint=str(checkpoint),
            repository=str(repository),
            to="to_batch",
            value=NEWEST,
            backup_id=backup["backup_id"],
        )
        operator.execute(run())
        assert (f"{repository}/backups/orders", backup["backup_id"]) in names(noted(operator).inputs)

    def test_a_chain(self, tmp_path: Path, run: Run) -> None:
        chained = Chained(tmp_path)
        streams = chained.streams()
        about: dict[str, Any] = {"streams": [each.argument for each in streams], **STOPPED}
        operator = ChainRewindOperator(
            task_id="r", to="to_batch", value=4, mode="apply", accept="source_loss, source_failure", **about
        )
        result = operator.execute(run())
        found = noted(operator)
        written = dict(names(found.outputs))
        assert set(written) == {each for one in streams for each in (one.checkpoint.uri, *(s.name for s in one.sinks))}
        assert {each.name: written[each.checkpoint.uri] for each in streams} == {
            name: str(batch) for name, batch in result["plan"]["batches"].items()
        }
        assert found.run_facets["ckpt_change"]["batches"] == result["plan"]["batches"]
        undo = ChainUndoOperator(task_id="u", **about)
        undo.execute(run())
        assert set(dict(names(noted(undo).outputs))) == set(written)

    def test_a_set(self, tmp_path: Path, run: Run) -> None:
        application = Application.planted(open_location(str(tmp_path)))
        places = {"streams": [f"{name}={tmp_path}/{name}" for name in IDS], "repository": f"{tmp_path}/backups"}
        made = ChainBackupOperator(task_id="b", **places).execute(run())
        application.go_on()
        operator = ChainRestoreOperator(task_id="r", replace=True, mode="apply", **places, **STOPPED)
        operator.execute(run())
        found = noted(operator)
        backups = [(f"{tmp_path}/backups/backups/{each['name']}", each["backup_id"]) for each in made["backups"]]
        assert set(backups) <= set(names(found.inputs))
        assert set(dict(names(found.outputs))) == {f"{tmp_path}/{name}" for name in IDS}


class TestReset:
    def test_plan_and_apply(self, checkpoint: Path, run: Run) -> None:
        for mode in ("plan", "apply"):
            operator = NewCheckpointOperator(
                task_id="r", checkpoint=str(checkpoint), way="keep-position", sink="foreachBatch", mode=mode, **STOPPED
            )
            operator.execute(run())
            found = noted(operator)
            assert names(found.inputs) == [(str(checkpoint), str(NEWEST))]
            assert names(found.outputs) == ([(str(checkpoint), "")] if mode == "apply" else [])

    def test_a_repair(self, checkpoint: Path, repository: Path, backup: dict[str, Any], run: Run) -> None:
        (checkpoint / "commits" / str(NEWEST)).write_bytes(b"")
        operator = CheckpointDoctorOperator(
            task_id="d",
            checkpoint=str(checkpoint),
            repository=str(repository),
            name="orders",
            repair=True,
            mode="apply",
            **STOPPED,
        )
        operator.execute(run())
        found = noted(operator)
        assert found.run_facets["ckpt_change"]["kind"] == "repair"
        assert [name for name, _ in names(found.outputs)] == [str(checkpoint)]


class TestFlows:
    def test_reset_and_restore(self, tmp_path: Path, run: Run) -> None:
        """The next version of a flow is what is written; the one that is live stays as it is."""
        flow = tmp_path / "_checkpoints/spark_catalog/default/orders/ingest"
        unpack(flow / "0")
        backup = CheckpointBackupOperator(
            task_id="b", checkpoint=str(flow / "0"), repository=str(tmp_path / "backups"), name="ingest", create=True
        )
        backup.execute(run())
        about: dict[str, Any] = {"storage": str(tmp_path), "flow": "ingest", "mode": "apply", "sink": "foreachBatch"}
        for version, fields in enumerate(
            (
                {"way": "restore", "repository": str(tmp_path / "backups"), "name": "ingest"},
                {"way": "from-scratch", "accept": "sink_duplicates"},
            ),
            1,
        ):
            operator = FlowNextVersionOperator(task_id="f", **about, **STOPPED, **fields)
            operator.execute(run())
            found = noted(operator)
            assert [name for name, _ in names(found.outputs)] == [str(flow / str(version))]


class TestGuards:
    def test_a_verdict_that_fails_the_task_is_told(self, tmp_path: Path, run: Run) -> None:
        place = checkpoint_of(tmp_path / "ck", OF_ANOTHER_KIND)
        operator = RecoveryPreflightOperator(task_id="g", checkpoint=place)
        with pytest.raises(AirflowFailException, match="UNKNOWN"):
            operator.execute(run())
        found = noted(operator)
        assert names(found.inputs) == [(place, "")]
        assert found.outputs == ()
        assert found.run_facets["ckpt_guard"]["verdict"] == "UNKNOWN"

    def test_on_warning(self, checkpoint: Path, run: Run) -> None:
        operator = FileSourceGuardOperator(task_id="g", checkpoint=str(checkpoint), on_finding="warn")
        result = operator.execute(run())
        facet = noted(operator).run_facets["ckpt_guard"]
        assert facet["verdict"] == result["verdict"]
        assert facet["sources"][0]["kind"] == "file"

    def test_sources_are_inputs(self) -> None:
        """As the reports of the guards have them; ``tests/component/guards`` asks a real broker for one."""
        kafka = {
            "index": 0, "kind": "kafka", "verdict": "WILL_FAIL", "lost": 3, "seconds_left": 0.0, "servers": "b1:9092",
            "topics": {"orders": {}}, "parts": [{"topic": "orders"}, {"topic": "deleted"}],
        }  # fmt: skip
        delta = {
            "name": "items",
            "kind": "delta",
            "verdict": "SAFE",
            "lost": 0,
            "seconds_left": None,
            "table": "s3://lake/t",
        }
        report = {
            "subject": "s3://lake/checkpoints/orders", "verdict": "WILL_FAIL", "batch_id": 7, "lost": 3, "seconds_left": 0.0,
            "reasons": ["lost at https://user:hunter2@host/x"] * 30, "sources": [kafka, delta],
        }  # fmt: skip
        found = of_guard(report, Opened({"s3://lake/checkpoints/orders": "s3://lake/checkpoints/orders"}))
        assert [(each.namespace, each.name) for each in found.inputs] == [
            ("s3://lake", "checkpoints/orders"),
            ("kafka://b1:9092", "orders"),
            ("kafka://b1:9092", "deleted"),
            ("s3://lake", "t"),
        ]
        facet = found.run_facets["ckpt_guard"]
        check("ckpt_guard", facet)
        assert "hunter2" not in json.dumps(facet)
        assert len(facet["reasons"]) == 21


class TestDeclaredStreams:
    def test_the_declaration_is_in_the_run(
        self, checkpoint: Path, repository: Path, backup: dict[str, Any], run: Run
    ) -> None:
        declared = Stream(
            "orders",
            checkpoint=str(checkpoint),
            repository=str(repository),
            sources={"delta": {"tables": {"table.0": "s3a://lake/items"}}, "kafka": {"conn_id": "kafka_prod"}},
            sinks=("abfss://c@acc.dfs.core.windows.net/t", "foreachBatch"),
            objectives={"rpo": "1h", "rto": "15m"},
            owner="sales",
        )
        operator = CheckpointVerifyOperator(task_id="v", stream=declared)
        operator.after_rendering()
        operator.execute(run())
        assert names(noted(operator).inputs) == [(f"{repository}/backups/orders", backup["backup_id"])]
        facet = operator.facets_of_every_run()["ckpt_stream"]
        assert facet["sourceTables"] == [{"namespace": "s3://lake", "name": "items"}]
        assert facet["sinks"] == [{"namespace": "abfss://c@acc.dfs.core.windows.net", "name": "t"}]
        assert (facet["rpoSeconds"], facet["rtoSeconds"], facet["owner"]) == (3600.0, 900.0, "sales")
        assert facet["checkpoint"] == {"namespace": "file", "name": str(checkpoint)}

    def test_a_task_without_a_stream_has_none(self) -> None:
        assert RecoveryPreflightOperator(task_id="g", checkpoint="/c").facets_of_every_run() == {}

    def test_a_declaration_that_cannot_be_read_keeps_nothing_from_being_told(self, tmp_path: Path) -> None:
        operator = CheckpointBackupOperator(task_id="b", stream="orders", streams_file=str(tmp_path / "none.yaml"))
        assert operator.facets_of_every_run() == {}
