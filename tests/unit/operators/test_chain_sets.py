"""Operators on sets of backups: what a retry finds, and streams by their declared application."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.operators.chain import ChainBackupOperator, ChainRestoreOperator, ChainUndoOperator
from airflow_ckpt_provider.operators.declared_fleet import repository_of
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import Streams, repository_of_all
from tests.support.operator_runs import Run
from tests.support.several_sinks import IDS, NEWEST, Application


@pytest.fixture
def application(tmp_path: Path) -> Application:
    return Application.planted(open_location(str(tmp_path)))


def places(application: Application) -> dict[str, Any]:
    root = application.root.root
    return {"streams": [f"{name}={root}/{name}" for name in IDS], "repository": f"{root}/backups"}


def newest(application: Application) -> dict[str, int | None]:
    return {name: Checkpoint.at(application.root / name).progress().latest_committed for name in IDS}


def backup(planted: Application, /, **fields: Any) -> ChainBackupOperator:
    return ChainBackupOperator(task_id="backup", **{**places(planted), **fields})


def restore(planted: Application, /, **fields: Any) -> ChainRestoreOperator:
    given = {**places(planted), "replace": True, **fields}
    return ChainRestoreOperator(task_id="restore", query_is_stopped=True, quiet_for=0.0, **given)


def test_there_again_and_back(application: Application, run: Run) -> None:
    made = backup(application, tags={"env": "prod"}).execute(run("backup"))
    assert made["whole"]
    application.go_on()
    shown = restore(application).execute(run("plan"))
    assert shown["outcome"] is None
    assert "| orders | `" in shown["markdown"]
    how = {"mode": "apply", "set_id": shown["plan"]["set_id"], "fingerprint": shown["plan"]["fingerprint"]}
    done = restore(application, **how).execute(run("restore"))
    assert [stream["name"] for stream in done["outcome"]["streams"]] == ["orders", "returns"]
    assert newest(application) == NEWEST
    again = restore(application, **how).execute(run("restore", try_number=2))
    assert again["outcome"] == {**done["outcome"], "streams": [], "seconds": 0.0, "already_done": True}
    undo = ChainUndoOperator(task_id="undo", query_is_stopped=True, quiet_for=0.0, **places(application))
    assert undo.execute(run("undo"))["plan_id"] == done["plan"]["plan_id"]
    assert newest(application) == {name: batch + 2 for name, batch in NEWEST.items()}


def test_an_approved_set_is_named_where_the_queries_are_stopped(application: Application, run: Run) -> None:
    """The fingerprint was left out: a set that was made since the approval was restored."""
    backup(application).execute(run("backup"))
    application.go_on()
    shown = restore(application, stop_running=True).execute(run("plan"))["plan"]
    backup(application).execute(run("backup", run_id="manual__2"))
    application.go_on()
    how = {"mode": "apply", "fingerprint": shown["fingerprint"], "stop_running": True}
    with pytest.raises(AirflowFailException, match="give the set_id that the approved plan names"):
        restore(application, **how).execute(run("restore"))
    done = restore(application, **how, set_id=shown["set_id"]).execute(run("restore"))
    assert (done["plan"]["set_id"], newest(application)) == (shown["set_id"], NEWEST)


def test_a_retry_takes_what_is_missing(application: Application, run: Run) -> None:
    """The worker was lost between the two backups; the second attempt finds the set by its run."""
    first = backup(application).execute(run("backup"))
    (application.root / "backups").delete(f"backups/returns/{first['backups'][1]['backup_id']}.json")
    again = backup(application).execute(run("backup", try_number=2))
    assert again["set_id"] == first["set_id"]
    assert again["backups"][0] == first["backups"][0]
    assert again["whole"]
    other = backup(application).execute(run("backup", run_id="manual__2"))
    assert other["set_id"] != first["set_id"]


def test_by_the_application(application: Application, run: Run) -> None:
    root = application.root.root
    declared = Streams(
        Stream(name, checkpoint=f"{root}/{name}", repository=f"{root}/backups", application="shop") for name in IDS
    )
    fields: dict[str, Any] = {"application": "shop", "streams_file": declared, "streams": (), "repository": None}
    made = backup(application, **fields).execute(run("backup"))
    assert made["streams"] == list(IDS)
    application.go_on()
    restore(application, mode="apply", **fields).execute(run("restore"))
    assert newest(application) == NEWEST
    with pytest.raises(AirflowFailException, match="no stream with application: shops"):
        backup(application, **{**fields, "application": "shops"}).execute(run("backup"))
    with pytest.raises(AirflowFailException, match="streams and application are both given"):
        backup(application, **{**fields, "streams": ["a=/ck"]}).execute(run("backup"))


def test_two_repositories(application: Application, run: Run) -> None:
    root = application.root.root
    declared = Streams(
        Stream(name, checkpoint=f"{root}/{name}", repository=f"{root}/{name}-backups", application="shop")
        for name in IDS
    )
    with pytest.raises(AirflowFailException, match="streams orders and returns have different repositories"):
        ChainBackupOperator(task_id="backup", application="shop", streams_file=declared).execute(run("backup"))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"streams": ""}, "no stream is named"),
        ({"set_id": "5e7"}, "is not whole: it has no backup of orders"),
        ({}, "has no whole set of backups of orders, returns"),
        ({"set_id": ""}, "set_id is empty"),
    ],
)
def test_what_does_not_fit(application: Application, run: Run, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(AirflowFailException, match=why):
        restore(application, **fields).execute(run("restore"))


def test_one_connection_under_two_names_is_one_repository() -> None:
    """It was refused: the fields were compared, not what they mean."""
    where = {"checkpoint": "/c", "repository": "s3://b/r"}
    one = Stream("orders", **where, repository_conn_id="vault", storage_conn_id="lake")
    assert repository_of_all([one, Stream("returns", **where, storage_conn_id="vault")]) == ("s3://b/r", "vault")


def test_a_connection_that_streams_declare_names_their_repository(
    application: Application, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{application.root.root}/backups"
    monkeypatch.setenv(
        "AIRFLOW_CONN_VAULT", json.dumps({"conn_type": "ckpt_repository", "extra": {"repository": place}})
    )
    declared = [Stream(name, checkpoint=f"/{name}", repository_conn_id="vault") for name in IDS]
    backup(application).execute(run("backup"))
    assert repository_of(declared).location.root == place
    with pytest.raises(RefusedError, match="the streams have no repository"):
        repository_of([replace(stream, repository_conn_id=None) for stream in declared])
