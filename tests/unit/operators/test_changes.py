"""What holds for every operator that changes a checkpoint: accepted risks, proof that the query is stopped, retries, undo."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.exceptions import AirflowProviderDeprecationWarning
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import BackupRunningError, ChangeRunningError, LeaseLostError, RefusedError
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.doctor import CheckpointDoctorOperator
from airflow_ckpt_provider.operators.refusals import no_retry_when_refused
from airflow_ckpt_provider.operators.reset import CheckpointResetOperator, NewCheckpointOperator
from airflow_ckpt_provider.operators.reset_flow import FlowNextVersionOperator, ResetFlowOperator
from airflow_ckpt_provider.operators.restore import CheckpointRestoreOperator
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.operators.undo import CheckpointUndoOperator
from airflow_ckpt_provider.places import open_place
from tests.support.one_checkpoint import NEWEST

Run = Callable[..., dict[str, Any]]
#: A person's word, as the test knows what runs.
STOPPED: dict[str, Any] = {"query_is_stopped": True, "quiet_for": 0}
#: The sample's input files are on no disk, and Kafka takes the rows of the last batch a second time.
RISKS = ["source_loss", "sink_duplicates"]


def rewind(checkpoint: Path, context: dict[str, Any], **fields: Any) -> dict[str, Any]:
    fields = {"to": "to_batch", "value": NEWEST - 1, "sink": "kafka", "mode": "apply", **STOPPED, **fields}
    result = CheckpointRewindOperator(task_id="rewind", checkpoint=str(checkpoint), **fields).execute(context)
    assert json.loads(json.dumps(result)) == result
    return result


def contents(place: Path) -> dict[str, bytes]:
    """All that Spark sees."""
    found = {file.relative_to(place).as_posix(): file.read_bytes() for file in place.rglob("*") if file.is_file()}
    return {path: content for path, content in found.items() if "/." not in f"/{path}"}


def record(checkpoint: Path) -> dict[str, Any]:
    """The newest audit record beside a checkpoint."""
    return next(Repository.open(open_place(f"{checkpoint}.rewinds")).records())


@pytest.mark.parametrize(
    "accept", [RISKS, tuple(RISKS), "source_loss, sink_duplicates", "['source_loss', 'sink_duplicates']"]
)
def test_the_plan_names_the_words_that_let_it_through(checkpoint: Path, run: Run, accept: Any) -> None:
    before = contents(checkpoint)
    planned = rewind(checkpoint, run(), mode="plan")
    assert sorted(planned["plan"]["accept"]) == sorted(RISKS)
    for word in RISKS:
        assert f"`{word}`" in planned["markdown"]
    with pytest.raises(AirflowFailException, match=r"accept explicitly: accept=\[.*'source_loss'"):
        rewind(checkpoint, run())
    with pytest.raises(AirflowFailException, match=r"accept explicitly: accept=\['source_loss'\]"):
        rewind(checkpoint, run(), accept="sink_duplicates")
    assert contents(checkpoint) == before
    done = rewind(checkpoint, run(), accept=accept, fingerprint=planned["plan"]["fingerprint"])
    assert done["outcome"]["batch_id"] == NEWEST - 1
    assert record(checkpoint)["accepted"] == sorted(RISKS)


@pytest.mark.parametrize("accept", [None, "", "None", [], ()])
def test_an_empty_form_field_accepts_nothing(checkpoint: Path, run: Run, accept: Any) -> None:
    with pytest.raises(AirflowFailException, match="needs somebody to accept"):
        rewind(checkpoint, run(), accept=accept)


def test_a_word_that_is_none(checkpoint: Path, run: Run) -> None:
    with pytest.raises(AirflowFailException, match=r"accept has 'everything'\nHINT: give some of: sink_skips, "):
        rewind(checkpoint, run(), accept=["everything"])


def test_the_fingerprint_is_compared(checkpoint: Path, run: Run) -> None:
    with pytest.raises(AirflowFailException, match=r"the plan that was shown \(beef\) is not the one"):
        rewind(checkpoint, run(), accept=RISKS, fingerprint="beef")


def test_without_proof_nothing_is_changed(checkpoint: Path, run: Run) -> None:
    before = contents(checkpoint)
    with pytest.raises(AirflowFailException, match="it is not known that its query is stopped") as error:
        rewind(checkpoint, run(), accept=RISKS, query_is_stopped=False)
    assert "query_is_stopped" in str(error.value)
    assert contents(checkpoint) == before


def test_the_record_says_who_said_that_it_is_stopped(checkpoint: Path, run: Run) -> None:
    rewind(checkpoint, run(), accept=RISKS, query_is_stopped="True")
    rest = record(checkpoint)["rest"]
    assert (rest["how"], rest["by"]) == ("statement", "dag/manual__1/task/-1")


def test_the_drivers_progress_lines_are_a_probe(checkpoint: Path, tmp_path: Path, run: Run) -> None:
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    lines = tmp_path / "progress.jsonl"
    started, ended = (
        {"event": event, "run_id": "r1", "query_id": query_id, "at": f"2099-01-01T00:0{minute}:00+00:00"}
        for minute, event in enumerate(("started", "terminated"))
    )
    lines.write_text(f"{json.dumps(started)}\n")
    fields = {"accept": RISKS, "query_is_stopped": False, "progress_log": str(lines)}
    with pytest.raises(AirflowFailException, match="it is not known that its query is stopped"):
        rewind(checkpoint, run(), **fields)
    lines.write_text(f"{json.dumps(started)}\n{json.dumps(ended)}\n")
    rewind(checkpoint, run(), **fields)
    assert record(checkpoint)["rest"]["how"] == "probe"


def test_an_address_that_is_no_application(checkpoint: Path, run: Run) -> None:
    with pytest.raises(AirflowFailException, match="api/v1/applications"):
        rewind(checkpoint, run(), accept=RISKS, spark_api_url="http://localhost:18080")


def test_a_retry_after_success_changes_nothing(checkpoint: Path, run: Run) -> None:
    first = rewind(checkpoint, run(), accept=RISKS)
    after = contents(checkpoint)
    again = rewind(checkpoint, run(try_number=2), accept=RISKS)
    assert again["outcome"] == {**first["outcome"], "seconds": 0.0, "already_done": True}
    assert contents(checkpoint) == after


@pytest.mark.parametrize("verb", ["rewind", "reset", "repair", "restore", "flow-reset"])
def test_undo_takes_every_change_back(verb: str, checkpoint: Path, repository: Path, tmp_path: Path, run: Run) -> None:
    place: dict[str, Any] = {"checkpoint": str(checkpoint)}
    if verb == "repair":
        (checkpoint / "state/0/0" / f"{NEWEST}.changelog").unlink()
    if verb == "restore":
        place["repository"] = str(repository)
        CheckpointBackupOperator(task_id="b", **place).execute(run())
        (checkpoint / "commits" / str(NEWEST)).unlink()
    if verb == "flow-reset":
        live = tmp_path / "pipeline/_checkpoints/spark_catalog/default/orders/ingest/0"
        live.parent.mkdir(parents=True)
        checkpoint.rename(live)
        place["checkpoint"] = str(live.parent / "1")
    changed = Path(place["checkpoint"])
    before = contents(changed)
    applied: dict[str, Any] = {"task_id": "change", "mode": "apply", **STOPPED}
    if verb == "rewind":
        rewind(checkpoint, run(), accept=RISKS)
    elif verb == "reset":
        NewCheckpointOperator(way="keep-position", sink="foreachBatch", **place, **applied).execute(run())
    elif verb == "repair":
        CheckpointDoctorOperator(repair=True, accept="sink_unknown", **place, **applied).execute(run())
    elif verb == "restore":
        CheckpointRestoreOperator(
            repository=place["repository"], target=place["checkpoint"], replace=True, **applied
        ).execute(run())
    else:
        flow = FlowNextVersionOperator(
            storage=str(tmp_path / "pipeline"), flow="ingest", way="keep-position", sink="kafka", **applied
        )
        flow.execute(run())
    assert contents(changed) != before
    undo = CheckpointUndoOperator(task_id="undo", **place, **STOPPED)
    undone = undo.execute(run("undo"))
    assert (undone["kind"], undone["already_done"]) == (verb, False)
    assert contents(changed) == before
    assert undo.execute(run("undo", try_number=2))["already_done"]


def test_an_undo_that_is_cleared_leaves_the_change_of_another_run_alone(checkpoint: Path, run: Run) -> None:
    rewind(checkpoint, run(), accept=RISKS)
    undo = CheckpointUndoOperator(task_id="undo", checkpoint=str(checkpoint), **STOPPED)
    undone = undo.execute(run("undo"))
    rewind(checkpoint, run(run_id="manual__2"), accept=RISKS)
    after = contents(checkpoint)
    again = undo.execute(run("undo", try_number=2))
    assert (again["plan_id"], again["already_done"]) == (undone["plan_id"], True)
    assert contents(checkpoint) == after


def test_undo_needs_proof_too(checkpoint: Path, run: Run) -> None:
    rewind(checkpoint, run(), accept=RISKS)
    after = contents(checkpoint)
    with pytest.raises(AirflowFailException, match="it is not known that its query is stopped"):
        CheckpointUndoOperator(task_id="undo", checkpoint=str(checkpoint)).execute(run("undo"))
    assert contents(checkpoint) == after


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ChangeRunningError("x"), ChangeRunningError),
        (BackupRunningError("x"), BackupRunningError),
        (LeaseLostError("x"), LeaseLostError),
        (RefusedError("x"), AirflowFailException),
    ],
)
def test_what_passes_by_itself_is_retried(error: Exception, raised: type[Exception]) -> None:
    with pytest.raises(raised) as found, no_retry_when_refused():
        raise error
    assert type(found.value) is raised


class TestDeprecated:
    """Names of version 0.1: they work, and warn."""

    @pytest.mark.parametrize(
        ("fields", "instead"),
        [
            ({"accept_source_loss": True, "accept": "sink_duplicates"}, "accept=['source_loss', "),
            ({"accept": "WILL_DUPLICATE", "accept_source_loss": "True"}, "accept=['sink_duplicates', "),
            ({"sink_exit": "accept", "accept": "source_loss"}, "sink_policy"),
            ({"sink_policy": "accept", "accept": "source_loss"}, "sink_policy='keep', accept="),
        ],
    )
    def test_rewind(self, checkpoint: Path, run: Run, fields: dict[str, Any], instead: str) -> None:
        with pytest.warns(AirflowProviderDeprecationWarning) as warned:
            assert rewind(checkpoint, run(), **fields)["outcome"]["batch_id"] == NEWEST - 1
        assert any(instead in str(warning.message) for warning in warned)

    def test_a_flag_of_a_form_that_is_not_set_accepts_nothing(self, checkpoint: Path, run: Run) -> None:
        with pytest.warns(AirflowProviderDeprecationWarning), pytest.raises(AirflowFailException, match="source_loss"):
            rewind(checkpoint, run(), accept="sink_duplicates", accept_source_loss="False")

    def test_restore(self) -> None:
        with pytest.warns(AirflowProviderDeprecationWarning, match="seal_running.*stop_running"):
            made = CheckpointRestoreOperator(task_id="t", repository="r", target="t", seal_running="{{ params.x }}")
        assert made.stop_running == "{{ params.x }}"
        with pytest.warns(AirflowProviderDeprecationWarning, match="accept_sink"):
            made = CheckpointRestoreOperator(task_id="t", repository="r", target="t", accept_sink="{{ params.x }}")
        made.render_template_fields({"params": {"x": "True"}})
        assert made._accepted() == ("sink_skips", "sink_duplicates")

    def test_reset(self) -> None:
        with pytest.warns(AirflowProviderDeprecationWarning, match="under.*seal_id"):
            made = NewCheckpointOperator(task_id="t", checkpoint="c", way="keep-position", under="first")
        assert made.seal_id == "first"

    @pytest.mark.parametrize(
        ("old", "new", "fields"),
        [
            (CheckpointResetOperator, NewCheckpointOperator, {"checkpoint": "c", "way": "from-scratch"}),
            (ResetFlowOperator, FlowNextVersionOperator, {"storage": "s", "flow": "f"}),
        ],
    )
    def test_classes(self, old: type, new: type, fields: dict[str, Any]) -> None:
        with pytest.warns(AirflowProviderDeprecationWarning, match=f"`{old.__name__}`.*`{new.__name__}`") as warned:
            assert isinstance(old(task_id="t", **fields), new)
        assert warned[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            new(task_id="t", **fields)

    def test_a_parameter_that_never_was(self) -> None:
        with pytest.raises(TypeError, match="accept_sink"):
            CheckpointRewindOperator(task_id="t", checkpoint="c", to="to_latest", accept_sink=True)
