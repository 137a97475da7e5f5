"""NewCheckpointOperator, FlowNextVersionOperator, and undo of a reset: plan and apply, retries, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.sealing import seal
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.reset import NewCheckpointOperator
from airflow_ckpt_provider.operators.reset_flow import FlowNextVersionOperator
from airflow_ckpt_provider.operators.undo import CheckpointUndoOperator
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.one_checkpoint import NEWEST

Run = Callable[..., dict[str, Any]]
#: A person's word, as the test knows what runs.
STOPPED: dict[str, Any] = {"query_is_stopped": True, "quiet_for": 0.01}


def reset(checkpoint: Path, context: dict[str, Any], **fields: Any) -> dict[str, Any]:
    fields = {"way": "keep-position", "sink": "foreachBatch", **STOPPED, **fields}
    operator = NewCheckpointOperator(task_id="reset", checkpoint=str(checkpoint), **fields)
    result = operator.execute(context)
    assert json.loads(json.dumps(result)) == result
    return result


def visible(place: Path) -> set[str]:
    files = (f.relative_to(place).as_posix() for f in place.rglob("*") if f.is_file())
    return {path for path in files if "/." not in f"/{path}"}


def test_plan_then_apply_as_approved(checkpoint: Path, run: Run) -> None:
    before = visible(checkpoint)
    planned = reset(checkpoint, run())
    assert (planned["mode"], planned["outcome"], visible(checkpoint)) == ("plan", None, before)
    assert planned["plan"]["start"] == NEWEST
    assert "### Reset, plan" in planned["markdown"]
    done = reset(checkpoint, run(), mode="apply", fingerprint=planned["plan"]["fingerprint"])
    assert visible(checkpoint) == {"sources/0/0"}
    assert done["outcome"]["options"] == planned["plan"]["options"] == {"0": {}}


def test_the_howto(checkpoint: Path, run: Run) -> None:
    place, table = str(checkpoint), "foreachBatch"
    # [START howto_reset]
    reset = NewCheckpointOperator(
        task_id="reset",
        checkpoint=place,
        way="keep-position",
        sink=table,
        query_is_stopped=True,
        mode="apply",
        reason="deduplication added",
    )
    # [END howto_reset]
    assert reset.execute(run())["outcome"]["start"] == NEWEST


def test_a_plan_that_is_not_the_approved_one(checkpoint: Path, run: Run) -> None:
    with pytest.raises(AirflowFailException, match=r"the plan that was shown \(beef\) is not the one"):
        reset(checkpoint, run(), mode="apply", fingerprint="beef")


def test_a_retry_after_success_changes_nothing(checkpoint: Path, run: Run) -> None:
    first = reset(checkpoint, run(), mode="apply")
    again = reset(checkpoint, run(try_number=2), mode="apply")
    assert again["outcome"] == {**first["outcome"], "seconds": 0.0}
    assert visible(checkpoint) == {"sources/0/0"}


def test_under_a_seal_that_is_there(checkpoint: Path, run: Run) -> None:
    """It is taken over; where the reset is refused it stays; and a run that is cleared resets under its next one again."""
    before, place = visible(checkpoint), Checkpoint.at(open_location(str(checkpoint)))
    seal(place, reason="upgrade", plan_id="first")
    with pytest.raises(AirflowFailException, match="is not the one"):
        reset(checkpoint, run(), mode="apply", seal_id="first", fingerprint="beef")
    assert (place.progress().seal or pytest.fail("lifted")).plan_id == "first"
    assert reset(checkpoint, run(), mode="apply", seal_id="first")["outcome"]["plan_id"] == "first"
    assert visible(checkpoint) == {"sources/0/0"}
    CheckpointUndoOperator(task_id="undo", checkpoint=str(checkpoint), **STOPPED).execute(run("undo"))
    assert visible(checkpoint) == before
    seal(place, reason="upgrade", plan_id="second")
    for try_number in (2, 3):
        assert (
            reset(checkpoint, run(try_number=try_number), mode="apply", seal_id="second")["outcome"]["plan_id"]
            == "second"
        )
        assert visible(checkpoint) == {"sources/0/0"}


def test_undo(checkpoint: Path, run: Run) -> None:
    before = visible(checkpoint)
    reset(checkpoint, run(), mode="apply", way="new-query-id", sink="kafka")
    undone = CheckpointUndoOperator(task_id="undo", checkpoint=str(checkpoint), **STOPPED).execute(run("undo"))
    assert undone["put_back"] == 1
    reset(checkpoint, run("another"), mode="apply")
    CheckpointUndoOperator(task_id="undo", checkpoint=str(checkpoint), **STOPPED).execute(run("undo"))
    assert visible(checkpoint) == before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"way": "somehow"}, "way is 'somehow'"),
        ({"sink": None, "mode": "apply"}, r"or accept explicitly: accept=\['sink_unknown'\]"),
        ({"sink": None, "mode": "apply", "accept": "yes"}, "accept has 'yes'"),
        ({"batch": 99}, "batch 99 is not in the log"),
        ({"batch": "x"}, "batch is 'x'"),
        ({"continue_numbers": "yes"}, "keeps state"),
        ({"kafka_partitions": {"orders": 3}}, "the query reads no topic 'orders'"),
        ({"checkpoint": "nowhere"}, "there is nothing to reset"),
    ],
)
def test_refused_without_a_retry(checkpoint: Path, run: Run, fields: dict[str, Any], message: str) -> None:
    before = visible(checkpoint)
    place = Path(fields.pop("checkpoint", checkpoint))
    with pytest.raises(AirflowFailException, match=message):
        reset(place, run(), **fields)
    assert visible(checkpoint) == before


class TestFlows:
    @pytest.fixture
    def storage(self, checkpoint: Path, tmp_path: Path) -> Path:
        place = tmp_path / "pipeline" / "_checkpoints" / "spark_catalog" / "default" / "orders" / "ingest" / "0"
        shutil.copytree(checkpoint, place)
        return tmp_path / "pipeline"

    def flow(self, storage: Path, context: dict[str, Any], **fields: Any) -> dict[str, Any]:
        fields = {"flow": "ingest", "sink": "foreachBatch", **STOPPED, **fields}
        result = FlowNextVersionOperator(task_id="flow", storage=str(storage), **fields).execute(context)
        assert json.loads(json.dumps(result)) == result
        return result

    def versions(self, storage: Path) -> list[str]:
        return sorted(p.name for p in (storage / "_checkpoints/spark_catalog/default/orders/ingest").iterdir())

    def test_reset(self, storage: Path, run: Run) -> None:
        planned = self.flow(storage, run(), way="keep-position")
        assert (planned["outcome"], self.versions(storage)) == (None, ["0"])
        approved = planned["plan"]["fingerprint"]
        done = self.flow(storage, run(), way="keep-position", mode="apply", fingerprint=approved)
        assert self.versions(storage) == ["0", "1"]
        assert visible(Path(done["path"])) == {"metadata", "sources/0/0"}
        # A retry, and a second thought.
        assert self.flow(storage, run(try_number=2), way="keep-position", mode="apply")["outcome"]["already_done"]
        assert self.versions(storage) == ["0", "1"]
        with pytest.raises(AirflowFailException, match="sink_duplicates"):
            self.flow(storage, run(), mode="apply")
        done = self.flow(storage, run(), mode="apply", accept=["sink_duplicates"])
        assert (done["path"][-2:], visible(Path(done["path"]))) == ("/2", {"metadata"})

    @pytest.mark.parametrize("way", ["from-scratch", "keep-position", "restore"])
    def test_a_version_that_has_run_since_is_not_replaced_by_a_task_that_is_cleared(
        self, way: str, storage: Path, repository: Path, run: Run
    ) -> None:
        """Another version would read again what this one has read; of a restore, its batches would be gone."""
        kept = Repository.open_or_create(open_location(str(repository)))
        live = storage / "_checkpoints/spark_catalog/default/orders/ingest/0"
        create_backup(Checkpoint.at(open_location(str(live))), kept, name="ingest")
        shutil.copytree(live, ran := storage.parent / "ran")
        (live / "commits" / str(NEWEST)).unlink()
        fields: dict[str, Any] = {
            "way": way,
            "repository": str(repository),
            "mode": "apply",
            "accept": ["sink_duplicates"],
        }
        fields |= {"name": "ingest"} if way == "restore" else {}
        done = self.flow(storage, run(), **fields)
        shutil.copytree(ran, done["path"], dirs_exist_ok=True)
        for log in ("offsets", "commits"):
            shutil.copyfile(ran / log / str(NEWEST), Path(done["path"]) / log / str(NEWEST + 1))
        again = self.flow(storage, run(try_number=2), **fields)
        assert (again["path"], again["outcome"]["already_done"]) == (done["path"], True)
        assert again["outcome"]["plan_id"] == done["outcome"]["plan_id"]
        assert self.versions(storage) == ["0", "1"]

    def test_the_howto(self, storage: Path, run: Run) -> None:
        place, table = str(storage), "foreachBatch"
        # [START howto_flow]
        begin_anew = FlowNextVersionOperator(
            task_id="begin_anew",
            storage=place,
            flow="ingest",
            way="keep-position",
            sink=table,
            query_is_stopped=True,
            mode="apply",
        )
        # [END howto_flow]
        assert begin_anew.execute(run())["path"].endswith("/ingest/1")

    def test_restore(self, storage: Path, repository: Path, run: Run) -> None:
        kept = Repository.open_or_create(open_location(str(repository)))
        live = storage / "_checkpoints/spark_catalog/default/orders/ingest/0"
        create_backup(Checkpoint.at(open_location(str(live))), kept, name="ingest")
        fields = {"way": "restore", "repository": str(repository), "name": "ingest", "mode": "apply"}
        (live / "commits" / str(NEWEST)).unlink()
        done = self.flow(storage, run(), **fields)
        assert done["path"].endswith("/1")
        assert Checkpoint.at(open_location(done["path"])).progress().latest_committed == NEWEST
        again = self.flow(storage, run(try_number=2), **fields)
        assert again["outcome"]["already_done"]
        assert self.versions(storage) == ["0", "1"]

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"flow": "nothing"}, "there is no flow 'nothing'"),
            ({"flow": ""}, "flow is empty"),
            ({"way": "restore"}, "repository is empty"),
            ({"mode": "apply", "fingerprint": "beef", "accept": "sink_duplicates"}, "is not the one"),
        ],
    )
    def test_refused(self, storage: Path, run: Run, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(AirflowFailException, match=message):
            self.flow(storage, run(), **fields)
        assert self.versions(storage) == ["0"]
