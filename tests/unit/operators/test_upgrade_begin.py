"""`begin` and `go` of an upgrade refuse what could not be undone, before anything is stopped."""

from __future__ import annotations

import builtins
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.stream_action import ENDED
from airflow_ckpt_provider.operators.upgrade import UpgradeBeginOperator, UpgradeGoOperator, UpgradePlanOperator
from airflow_ckpt_provider.operators.upgrade_switch import UpgradeSealOperator
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.upgrade.record import Event, Upgrade, is_needed, newest_upgrade, note
from tests.support.delta_batches import append, delta_table
from tests.support.one_checkpoint import NEWEST
from tests.support.operator_runs import Run
from tests.support.upgrade_beginnings import FEATURES, PROTOCOL, edit_first, file_sink
from tests.support.upgrade_beginnings import query_id as query_id
from tests.support.upgrade_beginnings import table as table


def failing(monkeypatch: pytest.MonkeyPatch, operation: str, below: str) -> None:
    """Let a store fail at a place: the requests of one kind."""
    real = getattr(LocalStore, operation)

    def request(self: LocalStore, path: str, *arguments: Any) -> Any:
        if path.startswith(below):
            raise StorageError(f"{path}: read-only, or out of reach")
        return real(self, path, *arguments)

    monkeypatch.setattr(LocalStore, operation, request)


class Upgrades:
    """The tasks of an upgrade, one at a time."""

    def __init__(self, checkpoint: Path, repository: Path, run: Run) -> None:
        self.places = {"checkpoint": str(checkpoint), "repository": str(repository)}
        self.repository = repository
        self._run = run

    def begin(self, **given: Any) -> dict[str, Any]:
        return UpgradeBeginOperator(task_id="begin", mode="savepoint", **self.places, **given).execute(self._run())

    def go(self, **given: Any) -> dict[str, Any]:
        return UpgradeGoOperator(task_id="go", **self.places, **given).execute(self._run())

    @property
    def record(self) -> Upgrade | None:
        return newest_upgrade(Repository.open(open_location(str(self.repository))), "orders")

    def refused(self, code: str, **given: Any) -> str:
        """See that `begin` refuses, names the reason, and does not take the stream; that the word it prints is enough."""
        with pytest.raises((AirflowFailException, StorageError)) as refused:
            self.begin(**given)
        said = str(refused.value)
        assert f"so nothing is stopped:\n* {code}: " in said
        assert "\n  Next: " in said
        assert self.record is None
        word = json.loads(said.rpartition("accept=")[2].replace("'", '"'))
        accepted = self.begin(**given, accept=word)
        assert f"* accepted (`{word[0]}`): {code}: " in accepted["way_back"]["markdown"]
        record = self.record
        assert record
        assert (record.accepted, record.obstacles) == (tuple(word), (code,))
        return said


@pytest.fixture
def upgrades(checkpoint: Path, repository: Path, run: Run) -> Upgrades:
    return Upgrades(checkpoint, repository, run)


class TestNothingInTheWay:
    def test_a_delta_table(self, upgrades: Upgrades, table: Path) -> None:
        begun = upgrades.begin(sink=str(table))
        assert begun["way_back"]["obstacles"] == []
        assert "policy `rollback`" in begun["way_back"]["markdown"]
        assert upgrades.go(sink=str(table))["way_back"]["obstacles"] == []
        assert upgrades.record
        assert is_needed(upgrades.record)  # from here on whatever happens is undone

    def test_a_file_sink(self, upgrades: Upgrades, tmp_path: Path) -> None:
        assert upgrades.begin(sink=str(file_sink(tmp_path / "out", NEWEST)))["way_back"]["obstacles"] == []

    def test_rows_that_stay(self, upgrades: Upgrades) -> None:
        begun = upgrades.begin(sink="foreachBatch", sink_policy="keep")
        assert begun["way_back"]["obstacles"] == []
        assert "the old code writes them again" in begun["way_back"]["how"]

    def test_a_table_that_is_a_batch_ahead(self, upgrades: Upgrades, table: Path, query_id: str) -> None:
        """Spark has written the batch and not committed it yet."""
        append(table, NEWEST + 1, app_id=query_id)
        assert upgrades.begin(sink=str(table))["way_back"]["obstacles"] == []

    def test_a_log_that_was_cleaned_up(self, upgrades: Upgrades, table: Path) -> None:
        DeltaTable(str(table)).create_checkpoint()
        for version in range(4):
            (table / "_delta_log" / f"{version:020d}.json").unlink()
        assert upgrades.begin(sink=str(table))["way_back"]["obstacles"] == []


class TestRefused:
    def test_no_sink_is_named(self, upgrades: Upgrades) -> None:
        assert "name it (sink=…), or leave its rows in it (sink_policy='keep')" in upgrades.refused("sink_not_named")

    def test_an_unknown_sink_whose_rows_stay(self, upgrades: Upgrades) -> None:
        assert "accept=['sink_unknown']" in upgrades.refused("sink_unknown", sink_policy="keep")

    @pytest.mark.parametrize("kind", ["foreachBatch", "foreach", "kafka"])
    def test_a_sink_without_memory(self, upgrades: Upgrades, kind: str) -> None:
        upgrades.refused("sink_without_memory", sink=kind)

    @pytest.mark.parametrize("policy", ["rollback", "keep"])
    def test_a_place_that_is_no_sink(self, upgrades: Upgrades, tmp_path: Path, policy: str) -> None:
        said = upgrades.refused("sink_unreadable", sink=str(tmp_path / "nothing"), sink_policy=policy)
        assert "is neither a Delta table nor the output of a file sink" in said

    def test_no_such_connection(self, upgrades: Upgrades) -> None:
        said = upgrades.refused("sink_unreadable", sink="s3://lake/tables/orders", sink_conn_id="nobody")
        assert "there is no Airflow connection 'nobody'" in said

    def test_a_store_that_does_not_answer_is_asked_again(
        self, upgrades: Upgrades, table: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Airflow tries the task again then."""
        failing(monkeypatch, "list", str(table))
        with pytest.raises(StorageError, match="sink_unreadable"):
            upgrades.begin(sink=str(table))
        assert upgrades.record is None

    def test_only_spark_restores_it(self, upgrades: Upgrades, table: Path) -> None:
        edit_first(table, lambda text: text.replace(PROTOCOL, FEATURES))
        assert "has the feature deletionVectors" in upgrades.refused("spark_missing", sink=str(table))

    def test_only_spark_restores_it_and_its_log_was_cleaned_up(self, upgrades: Upgrades, table: Path) -> None:
        """What the table asks for is in the checkpoint of its log alone."""
        edit_first(table, lambda text: text.replace(PROTOCOL, FEATURES))
        DeltaTable(str(table)).create_checkpoint()
        for version in range(4):
            (table / "_delta_log" / f"{version:020d}.json").unlink()
        upgrades.refused("spark_missing", sink=str(table))

    def test_only_spark_restores_it_and_its_connection_is_missing(self, upgrades: Upgrades, table: Path) -> None:
        edit_first(table, lambda text: text.replace(PROTOCOL, FEATURES))
        said = upgrades.refused("sink_unreadable", sink=str(table), spark_conn_id="no_spark")
        assert "there is no Airflow connection 'no_spark'" in said

    def test_only_spark_restores_it_and_there_is_one(
        self, upgrades: Upgrades, table: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK", "spark://local")
        edit_first(table, lambda text: text.replace(PROTOCOL, FEATURES))
        assert upgrades.begin(sink=str(table), spark_conn_id="spark")["way_back"]["obstacles"] == []

    def test_a_txn_app_id_that_spark_leaves(
        self, upgrades: Upgrades, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_SPARK", "spark://local")
        table = Path(delta_table(tmp_path / "by_app", range(NEWEST + 1), app_id="orders_app").uri)
        edit_first(table, lambda text: text.replace(PROTOCOL, FEATURES))
        said = upgrades.refused("txn_app_id", sink=str(table), txn_app_id="orders_app", spark_conn_id="spark")
        assert "still remembers the batches of txnAppId orders_app" in said

    def test_an_append_only_table(self, upgrades: Upgrades, table: Path) -> None:
        edit_first(
            table, lambda text: text.replace('"configuration":{}', '"configuration":{"delta.appendOnly":"true"}')
        )
        upgrades.refused("append_only", sink=str(table))

    def test_the_wrong_table(self, upgrades: Upgrades, tmp_path: Path) -> None:
        other = delta_table(tmp_path / "other", range(3), app_id="another query")
        assert "it is not its sink" in upgrades.refused("sink_history", sink=other.uri)

    def test_a_table_that_was_restored_to_a_version_that_is_gone(self, upgrades: Upgrades, table: Path) -> None:
        DeltaTable(str(table)).create_checkpoint()
        DeltaTable(str(table)).restore(1)
        for version in range(4):
            (table / "_delta_log" / f"{version:020d}.json").unlink()
        said = upgrades.refused("sink_history", sink=str(table))
        assert "restored to a version that its log does not have any more" in said, said

    def test_a_data_file_is_gone(self, upgrades: Upgrades, table: Path) -> None:
        actions = map(json.loads, (table / "_delta_log" / f"{NEWEST:020d}.json").read_text().splitlines())
        [path] = [action["add"]["path"] for action in actions if "add" in action]
        (table / path).unlink()
        assert path in upgrades.refused("data_file_missing", sink=str(table))

    def test_others_write_into_the_table(self, upgrades: Upgrades, table: Path) -> None:
        append(table, 99, app_id=None)
        assert "accept=['foreign_loss']" in upgrades.refused("foreign_writes", sink=str(table))

    def test_a_file_sink_that_was_moved(self, upgrades: Upgrades, tmp_path: Path) -> None:
        place = file_sink(tmp_path / "out", NEWEST, at=tmp_path / "before")
        assert "the sink was moved" in upgrades.refused("file_sink_log", sink=str(place))

    def test_a_file_sink_whose_log_lacks_entries(self, upgrades: Upgrades, tmp_path: Path) -> None:
        place = file_sink(tmp_path / "out", NEWEST)
        (place / "_spark_metadata" / "2").unlink()
        upgrades.refused("file_sink_log", sink=str(place))

    def test_deltalake_is_not_installed(self, upgrades: Upgrades, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        real = builtins.__import__

        def absent(name: str, *arguments: Any, **more: Any) -> Any:
            if name.partition(".")[0] == "deltalake":
                raise ImportError("No module named 'deltalake'")
            return real(name, *arguments, **more)

        monkeypatch.setattr(builtins, "__import__", absent)
        assert "pip install 'airflow-ckpt-provider[delta]'" in upgrades.refused("deltalake_missing", sink=str(table))

    def test_deltalake_cannot_open_it(self, upgrades: Upgrades, table: Path) -> None:
        """It has credentials of its own: here it is a damaged checkpoint of the log, which only it reads."""
        DeltaTable(str(table)).create_checkpoint()
        [parquet] = (table / "_delta_log").glob("*.checkpoint.parquet")
        parquet.write_bytes(b"no parquet")
        for version in range(4):
            (table / "_delta_log" / f"{version:020d}.json").unlink()
        with pytest.raises(StorageError, match="deltalake_cannot_open"):
            upgrades.begin(sink=str(table))

    def test_a_damaged_checkpoint(self, upgrades: Upgrades, checkpoint: Path, table: Path) -> None:
        for file in [*checkpoint.glob("state/0/0/*.zip"), *checkpoint.glob("state/0/0/*.changelog")]:
            file.unlink()
        upgrades.refused("checkpoint_damaged", sink=str(table))

    def test_a_repository_that_takes_no_writes(self, upgrades: Upgrades, repository: Path, table: Path) -> None:
        Repository.open_or_create(open_location(str(repository)))
        (repository / "upgrades").write_text("no directory")
        with pytest.raises(StorageError):
            upgrades.begin(sink=str(table))

    def test_forward_is_no_way_back(self, upgrades: Upgrades, table: Path) -> None:
        with pytest.raises(AirflowFailException, match="sink_policy is 'forward', which an upgrade does not have"):
            upgrades.begin(sink=str(table), sink_policy="forward", accept=["no_way_back"])

    def test_words_that_are_none(self, upgrades: Upgrades) -> None:
        with pytest.raises(AirflowFailException, match="accept has 'yes'"):
            upgrades.begin(accept=["yes"])


class TestRightBeforeTheStop:
    def test_what_has_come_in_between(self, upgrades: Upgrades, table: Path) -> None:
        upgrades.begin(sink=str(table), accept="no_way_back")
        shutil.rmtree(table)
        with pytest.raises(AirflowFailException, match="sink_unreadable"):
            upgrades.go(sink=str(table))
        assert upgrades.record
        assert not is_needed(upgrades.record)

    def test_what_the_plan_has_shown(self, upgrades: Upgrades) -> None:
        upgrades.begin(accept="no_way_back")
        upgrades.go()
        assert upgrades.record
        assert upgrades.record.has(Event.STOPPING)

    def test_the_repository_takes_no_writes_any_more(
        self, upgrades: Upgrades, table: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        upgrades.begin(sink=str(table))
        failing(monkeypatch, "create", str(repository))
        with pytest.raises(StorageError, match="read-only"):
            upgrades.go(sink=str(table))

    def test_begun_again_with_another_acceptance(self, upgrades: Upgrades) -> None:
        """The task was cleared after the DAG was changed: what is approved next is what counts."""
        upgrades.begin(accept=["no_way_back", "foreign_loss"])
        upgrades.begin(accept=["no_way_back"])
        assert upgrades.record
        assert upgrades.record.accepted == ("no_way_back",)
        assert upgrades.record.is_open


def test_the_plan_shows_it(upgrades: Upgrades, run: Run) -> None:
    begun = upgrades.begin(accept=["no_way_back"])
    context = run()
    context["ti"].xcom_pull = lambda task_ids, key: begun if task_ids == "begin" else None
    page = UpgradePlanOperator(task_id="plan", **upgrades.places).execute(context)["markdown"]
    assert "### Way back\n\nSink `unknown`, policy `rollback`: " in page
    assert "* accepted (`no_way_back`): sink_not_named: " in page


def test_the_seal_says_when_the_stop_before_it_had_ended(upgrades: Upgrades, run: Run) -> None:
    upgrades.begin(accept=["no_way_back"])
    upgrades.go()
    context, before = run(), datetime.now(UTC)
    sealed = UpgradeSealOperator(task_id="seal", **upgrades.places).execute(context)
    assert sealed["path"].startswith("offsets/")
    assert before <= datetime.fromisoformat(context["pushed"][ENDED]) <= datetime.now(UTC)


def test_a_report_of_a_rehearsal_that_renders_to_nothing_is_no_rehearsal(upgrades: Upgrades, run: Run) -> None:
    """The task of the rehearsal has returned nothing: what it found is not known."""
    begun = upgrades.begin(sink="foreachBatch", sink_policy="keep")
    context = run()
    context["ti"].xcom_pull = lambda task_ids, key: begun if task_ids == "begin" else None
    plan = UpgradePlanOperator(task_id="plan", rehearsal_report="{{ report }}", **upgrades.places)
    plan.rehearsal_report = "None"  # as Airflow renders it
    with pytest.raises(AirflowFailException, match="rehearsal_report is empty"):
        plan.execute(context)


@pytest.mark.parametrize("step", [Event.GOING_BACK, Event.BACK])
def test_once_the_way_back_has_begun_no_new_code_is_brought(upgrades: Upgrades, run: Run, step: Event) -> None:
    """A person clears `deploy` or `start` alone, while the old code is watched."""
    upgrades.begin(sink="foreachBatch", sink_policy="keep")
    task = UpgradeSealOperator(task_id="seal", **upgrades.places)
    task.check_under_way(run(), brings_new_code=True)
    assert upgrades.record
    note(Repository.open(open_location(str(upgrades.repository))), upgrades.record, step, batch_id=NEWEST, plan=None)
    with pytest.raises(
        AirflowFailException, match="rolls orders back: the new code is neither put in place nor started"
    ):
        task.check_under_way(run(), brings_new_code=True)
    task.check_under_way(run())  # what stops it, or brings the old code, may run again
