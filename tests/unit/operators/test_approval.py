"""What somebody approved is what is applied: place, backup, batch, sinks, risks; also where the query has run on since."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors

from airflow_ckpt_provider.assets import CHANGES
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change import writing
from airflow_ckpt_provider.change.target import inspect_target
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.operators.chain import ChainRewindOperator
from airflow_ckpt_provider.operators.change_operator import ChangeOperator
from airflow_ckpt_provider.operators.reset import NewCheckpointOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.operators.undo import CheckpointUndoOperator
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.chained_streams import Chained
from tests.support.checkpoints import logs, metadata, plant
from tests.support.watched_stores import Killed

Run = Callable[..., dict[str, Any]]
Change = Callable[..., dict[str, Any]]

STOPPED: dict[str, Any] = {"query_is_stopped": True, "quiet_for": 0, "stop_running": True}
ACCEPT = ["sink_duplicates", "sink_unknown", "source_loss"]
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "restore": (CheckpointRestoreOperator, {"replace": True}),
    "rewind": (CheckpointRewindOperator, {"to": "to_batch", "value": 3, "sink_policy": "keep"}),
    "reset": (NewCheckpointOperator, {"way": "keep-position"}),
}


@pytest.fixture
def place(tmp_path: Path) -> Location:
    """A checkpoint at batch 5; the repository has a backup of batch 4."""
    at = open_location(str(tmp_path / "orders"))
    repository = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    plant(at, logs(range(5)))
    create_backup(Checkpoint.at(at), repository, name="orders", restorable_batches=2)
    return plant(at, logs(range(6)))


@pytest.fixture
def change(place: Location, tmp_path: Path, run: Run) -> Change:
    """Plan or apply a change of a kind."""

    def make(
        kind: str, *, try_number: int = 1, max_tries: int = 0, outlet_events: Any = None, **given: Any
    ) -> dict[str, Any]:
        operator, fields = KINDS[kind]
        context = run(kind, try_number=try_number)
        context["ti"].max_tries = max_tries
        if outlet_events is not None:
            context["outlet_events"] = outlet_events
        where = "target" if kind == "restore" else "checkpoint"
        fields = {where: str(place), "repository": f"{tmp_path}/backups", "sink": "foreachBatch", **fields}
        fields = {"name": "orders", "accept": ACCEPT, **STOPPED, **fields, **given}
        return dict(operator(task_id=kind, **fields).execute(context))

    return make


def newest(place: Location) -> int:
    """The newest batch that was committed; -1: none."""
    numbers = [path.removeprefix("commits/") for path in place.walk() if path.startswith("commits/")]
    return max(map(int, numbers), default=-1)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_query_may_have_run_on_since(kind: str, place: Location, change: Change) -> None:
    approval = json.dumps(change(kind)["approval"])
    plant(place, logs(range(7)))
    assert change(kind, approval=approval, mode="apply")["outcome"]
    assert newest(place) == {"restore": 4, "rewind": 3, "reset": -1}[kind]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("what", ["checkpoint", "repository", "sinks"])
def test_a_declaration_that_was_edited_since_is_refused(
    kind: str, what: str, place: Location, change: Change, tmp_path: Path
) -> None:
    approval = change(kind)["approval"]
    for name in ("orders", "backups"):
        shutil.copytree(tmp_path / name, tmp_path / f"{name}_v2")
    edited: dict[str, Any] = {
        "checkpoint": {"target" if kind == "restore" else "checkpoint": f"{place}_v2"},
        "repository": {"repository": f"{tmp_path}/backups_v2"},
        "sinks": {"sink": "kafka"},
    }[what]
    with pytest.raises(
        AirflowFailException, match=f"is not what plan {approval['plan_id']} showed.* was .* and is .*"
    ) as e:
        change(kind, approval=approval, mode="apply", **edited)
    assert "make a new plan" in str(e.value)
    assert newest(open_location(f"{place}_v2")) == newest(place) == 5
    assert inspect_target(place).seal is None


@pytest.mark.parametrize(
    ("kind", "asked", "says"),
    [
        ("restore", {"batch": 3}, "batch_id was 4 and is 3"),
        ("rewind", {"value": 2}, "batch_id was 3 and is 2"),
        ("rewind", {"exact_replay": False}, "exact_replay was True and is False"),
        ("reset", {"way": "from-scratch"}, "way was 'keep-position' and is 'from-scratch'"),
    ],
)
def test_another_change_is_refused(
    kind: str, asked: dict[str, Any], says: str, change: Change, place: Location
) -> None:
    approval = change(kind)["approval"]
    with pytest.raises(AirflowFailException, match=says):
        change(kind, approval=approval, mode="apply", **asked)
    assert newest(place) == 5


@pytest.mark.parametrize("kind", ["restore", "rewind"])
def test_a_risk_that_the_plan_did_not_show_is_refused_though_its_word_was_accepted(kind: str, change: Change) -> None:
    approval = change(kind)["approval"]
    shown = approval["risks"].pop()
    with pytest.raises(AirflowFailException, match=f"its risk {shown} was not shown"):
        change(kind, approval=approval, mode="apply")


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_checkpoint_that_somebody_has_put_back_meanwhile_is_refused(
    kind: str, place: Location, change: Change
) -> None:
    approval = change(kind)["approval"]
    for log in ("offsets", "commits"):
        place.delete(f"{log}/5")
    with pytest.raises(AirflowFailException, match="its newest batch was 5 and is 4: somebody else has changed it"):
        change(kind, approval=approval, mode="apply")


def test_where_there_was_nothing_to_do_nothing_is_done(place: Location, change: Change) -> None:
    approval = change("rewind", value=5)["approval"]
    assert approval["already_done"]
    plant(place, logs(range(7)))
    with pytest.raises(AirflowFailException, match="there was nothing to do, and now there is"):
        change("rewind", value=5, approval=approval, mode="apply")
    assert newest(place) == 6


def test_an_undo_undoes_the_change_that_its_plan_showed(
    place: Location, change: Change, tmp_path: Path, run: Run
) -> None:
    where: dict[str, Any] = {"checkpoint": str(place), "repository": f"{tmp_path}/backups"}

    def undo(**given: Any) -> dict[str, Any]:
        operator = CheckpointUndoOperator(task_id="undo", query_is_stopped=True, quiet_for=0, **where, **given)
        return dict(operator.execute(run("undo")))

    first = change("rewind", value=4, mode="apply")["outcome"]["plan_id"]
    shown = undo(mode="plan")
    assert json.loads(json.dumps(shown)) == shown
    assert (shown["plan"]["of"], newest(place)) == (first, 4)
    assert f"| undoes | rewind `{first}`, batch 4 |" in shown["markdown"]
    change("rewind", value=2, mode="apply")  # by somebody else, while the question is open
    with pytest.raises(AirflowFailException, match=f"was written to since rewind {first}"):
        undo(plan_id=shown["plan"]["of"])
    assert newest(place) == 2


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_new_plan_is_applied_where_both_tasks_were_cleared_and_an_old_one_is_not_applied_twice(
    kind: str, place: Location, change: Change
) -> None:
    first = change(kind)["approval"]
    done = change(kind, approval=first, mode="apply")["outcome"]
    plant(place, logs(range(9)))
    retried = change(kind, approval=first, mode="apply", try_number=2)["outcome"]
    assert (retried["plan_id"], newest(place)) == (done["plan_id"], 8)
    second = change(kind)["approval"]
    again = change(kind, approval=second, mode="apply", try_number=3)["outcome"]
    assert again["plan_id"] != done["plan_id"]
    assert newest(place) == {"restore": 4, "rewind": 3, "reset": -1}[kind]
    assert change(kind, approval=second, mode="apply", try_number=4)["outcome"]["plan_id"] == again["plan_id"]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("max_tries", [2, 3], ids=["retried", "cleared"])
def test_a_change_whose_worker_was_lost_is_announced(
    kind: str, max_tries: int, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow sends no event of a task that is no success; a second one has the same ``plan_id``."""

    def lost(*_: Any) -> None:
        raise Killed("it is lost")

    approval = change(kind)["approval"]
    with monkeypatch.context() as patch:
        patch.setattr(ChangeOperator, "_carried_out", lost)
        with pytest.raises(Killed):
            change(kind, approval=approval, mode="apply")
    for _ in range(2):
        sent = OutletEventAccessors()
        again = {"try_number": 2, "max_tries": max_tries, "retries": 2, "outlet_events": sent}
        outcome = change(kind, approval=approval, mode="apply", **again)["outcome"]
        assert [each.extra["plan_id"] for each in sent[CHANGES].asset_alias_events] == [outcome["plan_id"]]


@pytest.mark.parametrize("stop_running", [False, True])
def test_a_refused_chain_leaves_no_seal(tmp_path: Path, run: Run, stop_running: bool) -> None:
    """A risk that was not shown: the streams are sealed by then, and nothing is changed."""
    chained = Chained(tmp_path)

    def rewind(**fields: Any) -> dict[str, Any]:
        given = {"streams": [s.argument for s in chained.streams()], "to": "to_batch", "value": "4", **fields}
        made = ChainRewindOperator(
            task_id="rewind", query_is_stopped=True, quiet_for=0.0, accept="source_loss, source_failure", **given
        )
        return made.execute(run("rewind"))  # type: ignore[arg-type]

    shown = rewind()
    apply = {"mode": "apply", "batches": shown["plan"]["batches"], "stop_running": stop_running}
    with pytest.raises(AirflowFailException, match="was not shown"):
        rewind(approval={**shown["approval"], "risks": []}, **apply)
    assert not any(inspect_target(stream.checkpoint).seal for stream in chained.streams())
    assert rewind(approval=shown["approval"], **apply)["outcome"]


def test_a_killed_restore_over_another_query_is_resumed_with_its_approval(
    place: Location, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target does not say any more whose checkpoint it was."""
    place.replace("metadata", metadata("7e8f3a60-3a2f-4f7e-9d4b-1c7f1a3b5d11"))
    given: dict[str, Any] = {"accept": [*ACCEPT, "other_query"], "stop_running": False}
    apply = {"mode": "apply", "approval": change("restore", **given)["approval"], **given}

    def killed(*_: Any) -> int:
        raise Killed("it is killed")

    with monkeypatch.context() as patch:
        patch.setattr(writing.FileWriter, "write", killed)
        with pytest.raises(Killed):
            change("restore", **apply)
    assert inspect_target(place).seal
    assert change("restore", try_number=2, **apply)["outcome"]
    assert not inspect_target(place).seal
