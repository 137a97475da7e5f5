"""CheckpointSealOperator and CheckpointUnsealOperator: one's own seal is kept and lifted, anybody else's is left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.operators.seal import CheckpointSealOperator, CheckpointUnsealOperator
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.one_checkpoint import NEWEST

Run = Callable[..., dict[str, Any]]


def _seal(checkpoint: Path, context: dict[str, Any], reason: str = "deploying 2.7") -> dict[str, Any]:
    return CheckpointSealOperator(task_id="seal", checkpoint=str(checkpoint), reason=reason).execute(context)


def _unseal(checkpoint: Path, context: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return CheckpointUnsealOperator(task_id="unseal", checkpoint=str(checkpoint), **fields).execute(context)


def _offsets(checkpoint: Path) -> set[str]:
    return {file.name for file in (checkpoint / "offsets").iterdir() if not file.name.startswith(".")}


def test_seal_and_unseal(checkpoint: Path, run: Run) -> None:
    before = _offsets(checkpoint)
    sealed = _seal(checkpoint, run())
    assert json.loads(json.dumps(sealed)) == sealed
    assert sealed == {
        "checkpoint": str(checkpoint),
        "plan_id": sealed["plan_id"],
        "batch_id": NEWEST + 1,
        "path": f"offsets/{NEWEST + 1}",
        "reason": "deploying 2.7",
        "made_by": "dag/manual__1/task/-1",
        "since": sealed["since"],
    }
    assert (
        (checkpoint / sealed["path"])
        .read_text()
        .startswith(f"airflow-ckpt: sealed by plan {sealed['plan_id']} (deploying 2.7, dag/manual__1/task/-1, ")
    )
    assert _unseal(checkpoint, run("unseal"), plan_id=sealed["plan_id"]) == {**sealed, "lifted": True}
    assert _offsets(checkpoint) == before


def test_retry_keeps_the_seal_of_the_attempt_before(checkpoint: Path, run: Run) -> None:
    first = _seal(checkpoint, run())
    assert _seal(checkpoint, run(try_number=2)) == first
    assert _offsets(checkpoint) == {str(b) for b in range(NEWEST + 2)}


def test_seal_of_another_task_is_left(checkpoint: Path, run: Run) -> None:
    first = _seal(checkpoint, run())
    with pytest.raises(AirflowFailException) as e:
        _seal(checkpoint, run("another"))
    assert str(e.value).startswith(
        f"{checkpoint} is sealed by plan {first['plan_id']} (deploying 2.7, dag/manual__1/task/-1, "
    )


@pytest.mark.parametrize("fields", [{}, {"plan_id": "somebody"}, {"force": "False"}])
def test_seal_of_somebody_else_is_not_lifted(checkpoint: Path, run: Run, fields: dict[str, str]) -> None:
    first = _seal(checkpoint, run())
    with pytest.raises(AirflowFailException) as e:
        _unseal(checkpoint, run("unseal"), **fields)
    assert f"is sealed by plan {first['plan_id']} " in str(e.value)
    assert (checkpoint / first["path"]).exists()


def test_force(checkpoint: Path, run: Run) -> None:
    _seal(checkpoint, run())
    assert _unseal(checkpoint, run("unseal"), force="True")["lifted"] is True


def test_nothing_to_lift(checkpoint: Path, run: Run) -> None:
    """A retry of an unseal that had been carried out is fine."""
    assert _unseal(checkpoint, run(), plan_id="any") == {"checkpoint": str(checkpoint), "lifted": False}


def test_no_reason(checkpoint: Path, run: Run) -> None:
    with pytest.raises(AirflowFailException) as e:
        _seal(checkpoint, run(), reason=" ")
    assert str(e.value) == "reason is empty\nHINT: give reason, or check the template that it comes from"
    assert _offsets(checkpoint) == {str(b) for b in range(NEWEST + 1)}


def test_lifted_for_a_start(checkpoint: Path, run: Run, tmp_path: Path) -> None:
    before = _offsets(checkpoint)
    sealed = _seal(checkpoint, run(), "stopping the query for a rewind")
    with pytest.raises(AirflowFailException, match="it is not known whether that plan has begun to change files"):
        _unseal(checkpoint, run("unseal"), for_start="True")
    repository = Repository.open_or_create(open_location(str(tmp_path / "backups")))
    repository.keep_plan("another", {})
    lifted = _unseal(checkpoint, run("unseal"), for_start="True", repository=str(tmp_path / "backups"))
    assert lifted == {**sealed, "lifted": True}
    assert _offsets(checkpoint) == before
    sealed = _seal(checkpoint, run(), "stopping the query for a rewind")
    repository.keep_plan(sealed["plan_id"], {})
    with pytest.raises(AirflowFailException, match="which has begun to change files and is not finished"):
        _unseal(checkpoint, run("unseal"), for_start=True, repository=str(tmp_path / "backups"))
