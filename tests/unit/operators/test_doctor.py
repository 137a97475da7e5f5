"""CheckpointDoctorOperator: findings as the result, a failure permanently where they are bad enough, the repair on demand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.doctor import CheckpointDoctorOperator
from airflow_ckpt_provider.places import open_place
from tests.support.one_checkpoint import NEWEST

Run = Callable[..., dict[str, Any]]
#: A person's word, as the test knows what runs.
STOPPED = {"query_is_stopped": True, "quiet_for": 0}


def _doctor(checkpoint: Path, context: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return CheckpointDoctorOperator(task_id="doctor", checkpoint=str(checkpoint), **{**STOPPED, **fields}).execute(
        context
    )


def _break_state(checkpoint: Path) -> None:
    """Lose a changelog of the newest state: an error."""
    (checkpoint / "state/0/0" / f"{NEWEST}.changelog").unlink()


def _lose_old_entry(checkpoint: Path) -> None:
    """Lose an entry that Spark does not read: a warning."""
    (checkpoint / "offsets/1").unlink()


def _skip_batches(checkpoint: Path) -> None:
    """Lose commits: silent."""
    for batch in range(NEWEST - 2, NEWEST + 1):
        (checkpoint / "commits" / str(batch)).unlink()


def test_nothing_found(checkpoint: Path, run: Run) -> None:
    context = run()
    result = _doctor(checkpoint, context)
    # The temporary directory of a test is no place for a checkpoint, and advice is no reason to fail.
    assert [advice["code"] for advice in result.pop("advice")] == ["EPHEMERAL-STORAGE"]
    assert result == {"checkpoint": str(checkpoint), "findings": [], "unknown": []}
    assert context["pushed"] == {}


@pytest.mark.parametrize(
    ("harm", "fails_on"),
    [
        (_lose_old_entry, {"warning"}),
        (_break_state, {"warning", "error"}),
        (_skip_batches, {"warning", "error", "silent"}),
    ],
)
@pytest.mark.parametrize("fail_on", ["silent", "error", "warning", None, "None"])
def test_fails_on(
    harm: Callable[[Path], None], fails_on: set[str], fail_on: str | None, checkpoint: Path, run: Run
) -> None:
    harm(checkpoint)
    context = run()
    if fail_on in fails_on:
        with pytest.raises(AirflowFailException, match="HINT: "):
            _doctor(checkpoint, context, fail_on=fail_on)
        assert len(context["pushed"]["findings"]) == 1
    else:
        result = _doctor(checkpoint, context, fail_on=fail_on)
        assert len(result["findings"]) == 1
        assert json.loads(json.dumps(result)) == result


def test_plan_and_apply(checkpoint: Path, run: Run) -> None:
    _break_state(checkpoint)
    planned = _doctor(checkpoint, run(), repair=True)
    assert json.loads(json.dumps(planned)) == planned
    assert (planned["mode"], planned["outcome"], planned["plan"]["batch_id"]) == ("plan", None, NEWEST - 2)
    assert "### Repair, plan" in planned["markdown"]
    assert Checkpoint.at(open_place(str(checkpoint))).diagnose()
    done = _doctor(
        checkpoint,
        run(),
        repair="True",
        mode="apply",
        accept="sink_unknown",
        fingerprint=planned["plan"]["fingerprint"],
        reason="why",
    )
    assert (done["outcome"]["batch_id"], done["outcome"]["replayed"]) == (NEWEST - 2, 2)
    assert Checkpoint.at(open_place(str(checkpoint))).diagnose() == ()
    again = _doctor(
        checkpoint, run(try_number=2), repair=True, mode="apply", fingerprint=planned["plan"]["fingerprint"]
    )
    assert again["outcome"]["already_done"] is True


def test_apply_is_refused_where_the_plan_is_another(checkpoint: Path, run: Run) -> None:
    _break_state(checkpoint)
    shown = _doctor(checkpoint, run(), repair=True)["plan"]["fingerprint"]
    (checkpoint / "state/0/1" / f"{NEWEST - 1}.changelog").unlink()
    with pytest.raises(AirflowFailException, match="is not the one that would be carried out now"):
        _doctor(checkpoint, run(), repair=True, mode="apply", fingerprint=shown)
    assert Checkpoint.at(open_place(str(checkpoint))).diagnose()


def test_with_a_repository(checkpoint: Path, repository: Path, run: Run) -> None:
    CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository)).execute(run())
    _break_state(checkpoint)
    done = _doctor(checkpoint, run(), repair=True, mode="apply", repository=str(repository))
    assert (done["outcome"]["fetched"], done["outcome"]["replayed"], done["plan"]["verdict"]) == (1, 0, "SAFE")


def test_what_cannot_be_repaired_fails_as_a_finding_does(checkpoint: Path, run: Run) -> None:
    (checkpoint / "metadata").unlink()
    with pytest.raises(AirflowFailException, match="QUERY-ID-MISSING"):
        _doctor(checkpoint, run(), repair=True, mode="apply")
    result = _doctor(checkpoint, run(), repair=True, mode="apply", fail_on=None)
    assert result["plan"]["repairable"] is False
    assert result["outcome"] is None
    done = _doctor(checkpoint, run(), repair=True, mode="apply", query_id="0a6ab8f5-4b0f-4a51-93f4-0b6b8a3f0f0e")
    assert done["outcome"]["rewritten"] == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"fail_on": "sometimes"}, "fail_on is 'sometimes'"),
        ({"mode": "do"}, "mode is 'do'"),
        ({"repair": "maybe"}, "repair is 'maybe'"),
        ({"repair": True, "query_id": "orders"}, "is no UUID"),
        ({"checkpoint": ""}, "checkpoint is empty"),
    ],
)
def test_bad_input_is_refused_for_good(fields: dict[str, Any], words: str, checkpoint: Path, run: Run) -> None:
    with pytest.raises(AirflowFailException, match=words):
        CheckpointDoctorOperator(**{"task_id": "t", "checkpoint": str(checkpoint), **fields}).execute(run())


def test_not_a_checkpoint(tmp_path: Path, run: Run) -> None:
    with pytest.raises((AirflowFailException, StorageError)):
        _doctor(tmp_path / "nowhere", run())
