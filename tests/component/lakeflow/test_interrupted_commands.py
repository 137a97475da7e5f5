"""``airflow-ckpt pipelines`` that is killed, loses an answer or runs twice: no update is started a second time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.cli import databricks_client
from airflow_ckpt_provider.cli.databricks_client import DatabricksClient
from airflow_ckpt_provider.cli.pipeline_notes import FileMemos
from airflow_ckpt_provider.errors import WorkspaceError
from airflow_ckpt_provider.lakeflow import blocking_run, one_update, starting
from airflow_ckpt_provider.lakeflow.settings import MARK
from tests.fake_databricks import FakeWorkspace, Pace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Killed
from tests.support.command_line import PROGRAM, Finished, run_program
from tests.support.lakeflow_shell import AFTER, FLOW, POSITIONS, pipelines, rows, written
from tests.support.lakeflow_shell import pipeline as pipeline
from tests.support.lakeflow_shell import shell as shell
from tests.support.waiting import wait_until


def cut_off(monkeypatch: pytest.MonkeyPatch, *argv: object, at: str = "") -> None:
    """The command ends while it follows an update, and its note stays."""
    follow = blocking_run.BlockingRun.follow

    def cut(run: Any, step: str, *given: Any, **more: Any) -> None:
        if at in ("", step):
            raise WorkspaceError("cut off")
        follow(run, step, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(blocking_run.BlockingRun, "follow", cut)
        assert "cut off" in pipelines(*argv, "--apply").err


def test_a_lost_answer_is_looked_for(workspace: FakeWorkspace, pipeline: Pipeline, shell: Path) -> None:
    workspace.fault("POST", "/updates$", status=503, took_effect=True)
    workspace.fault("GET", "/updates$", status=429, retry_after=1, nth=2)
    argv = ("reset", "customers", "--flow", FLOW, "--accept", "UNKNOWN", "--apply", "--json")
    done = pipelines(*argv)
    assert (done.code, done.document["updates"]["reset"]["found"]) == (0, "search"), done.err
    assert (len(workspace.asked("POST", "/updates")), pipeline.flows[FLOW].resets) == (1, 1)


def test_killed_and_run_again(workspace: FakeWorkspace, shell: Path, tmp_path: Path) -> None:
    """A process of its own is killed while it waits; the same command finds its update and puts its keys back."""
    pipeline = samples.customers(workspace, pace=Pace.by_hand())
    samples.remove_drop_duplicates(pipeline)
    samples.land(workspace.sources["/landing/customers"], 2)
    argv = ["pipelines", "reset", "customers", "--positions", str(written(shell, POSITIONS)), "--set"]
    argv += [
        f"modifiedAfter={AFTER}",
        "--configuration-after",
        "put_back",
        "--accept",
        "UNKNOWN",
        "--apply",
        "--poll",
        "0.05",
    ]
    child = subprocess.Popen([PROGRAM, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(workspace.asked("GET", pipeline.updates[-1].update_id)) > 1, "it follows its update")
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert MARK in pipeline.configuration
    assert len(list((shell / "state").rglob("*.json"))) == 1
    seen = len(workspace.asked("POST", "/updates"))
    again = subprocess.Popen([PROGRAM, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    looks = len(workspace.asked("GET", pipeline.updates[-1].update_id))
    wait_until(lambda: len(workspace.asked("GET", pipeline.updates[-1].update_id)) > looks + 2, "it follows it again")
    pipeline.advance()
    said, _ = again.communicate(timeout=60)
    assert again.returncode == 0, said
    assert "An earlier run of this command has begun" in said
    assert (len(workspace.asked("POST", "/updates")), pipeline.flows[FLOW].resets) == (seen, 1)
    assert pipeline.configuration == {}
    assert list((shell / "state").rglob("*.json")) == []


def test_an_update_that_ended_before_is_no_success(
    workspace: FakeWorkspace, pipeline: Pipeline, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("refresh", "customers", "--empty", "customers", "--accept", "UNKNOWN")
    cut_off(monkeypatch, *argv)
    pipeline.advance()
    ended = pipeline.updates[-1].update_id
    workspace.clock.advance(hours=24 * 40)
    samples.land(workspace.sources["/landing/customers"], 2)
    again = pipelines(*argv, "--apply", "--json")
    assert (again.code, pipeline.updates[-1].update_id) == (1, ended)
    said = again.document
    assert (said["mode"], said["updates"], said["not_started"]) == ("earlier_run", {"refresh": ended}, [])
    assert f"update {ended} is COMPLETED" in said["ended"]
    assert list((shell / "state").rglob("*.json")) == [], "the earlier run is over"
    assert pipelines("refresh", "customers", "--empty", "customers", "--apply").code == 1, (
        "approval of then is none now"
    )
    assert pipelines(*argv, "--apply").code == 0
    assert (pipeline.updates[-1].update_id != ended, rows(workspace)) == (True, 13)


def test_a_note_is_no_approval(workspace: FakeWorkspace, shell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = samples.customers(workspace, pace=Pace.by_hand())
    argv = ("refresh", "customers", "--empty", "customers")
    cut_off(monkeypatch, *argv, "--accept", "UNKNOWN")
    note = next((shell / "state").rglob("*.json"))
    noted = json.loads(note.read_text())
    approved = noted["approved"]["fingerprint"]
    assert approved == pipelines(*argv, "--json").document["fingerprint"]
    other = pipelines(*argv, "--fingerprint", "0" * 16, "--apply")
    assert (other.code, f"({approved}, " in other.err, "another one (0000000000000000)" in other.err) == (1, True, True)
    under_way = pipelines(*argv, "--forget")
    assert (under_way.code, "is under way" in under_way.err) == (1, True)
    started = len(pipeline.updates)
    # As if the process had died before it knew of an answer: it may have to send the start again.
    note.write_text(json.dumps({**noted, "refresh": {**noted["refresh"], "update_id": None}}))
    unsent = pipelines(*argv, "--apply")
    assert (unsent.code, "the verdict is UNKNOWN" in unsent.err, len(pipeline.updates)) == (1, True, started)
    # The note of a release before this one.
    note.write_text(json.dumps({"refresh": noted["refresh"]}))
    later = pipelines(*argv, "--fingerprint", "0" * 16, "--apply")
    assert "(a plan that was not noted, ? UTC)" in later.err
    pipeline.advance()
    assert pipelines(*argv, "--apply", "--json").document["approved"] == {}


def test_keys_of_a_run_whose_update_ended_meanwhile_are_put_back(
    workspace: FakeWorkspace, pipeline: Pipeline, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    argv = ("reset", "customers", "--positions", written(shell, POSITIONS), "--set", f"modifiedAfter={AFTER}")
    argv = (*argv, "--configuration-after", "put_back", "--accept", "UNKNOWN")
    cut_off(monkeypatch, *argv)
    assert MARK in pipeline.configuration
    pipeline.advance()
    again = pipelines(*argv, "--apply")
    assert (again.code, "is COMPLETED" in " ".join(again.out.split())) == (1, True), again.out
    assert (pipeline.configuration, pipeline.flows[FLOW].resets) == ({}, 1)


def test_a_rewind_that_was_cut_off_starts_no_replay_later(
    workspace: FakeWorkspace, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Any = {"channel": "PREVIEW", "configuration": {"pipelines.rewind.betaEnabled": "true"}}
    orders = samples.orders(workspace, **settings)
    to = (orders.points.points[0].time + timedelta(milliseconds=1)).isoformat()
    workspace.clock.advance(hours=2)
    orders.start({})
    orders.advance()
    workspace.clock.advance(hours=1)
    cut_off(monkeypatch, "rewind", "orders", "--to", to, at="rewind")
    orders.advance()
    started = len(orders.updates)
    workspace.clock.advance(hours=24 * 5)
    later = pipelines("rewind", "orders", "--to", to, "--apply", "--json")
    assert (later.code, later.document["not_started"]) == (1, ["replay"])
    assert len(orders.updates) == started


@pytest.mark.parametrize("waits", [True, False], ids=["waits for another update", "before its note"])
def test_two_shells_reset_once(
    workspace: FakeWorkspace, pipeline: Pipeline, shell: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """While one shell has looked and not started yet, the same command begins in a second one."""
    planned = ("reset", "customers", "--positions", written(shell, POSITIONS), "--set", f"modifiedAfter={AFTER}")
    argv = (*planned, "--on-active-update", "wait", "--apply", "--poll", "0.05")
    second: list[Finished] = []

    def in_a_second_shell() -> None:
        if not second:
            second.append(run_program("pipelines", *argv))

    looked, waited = starting.note_before, blocking_run.BlockingRun._free

    def note_before(*given: Any) -> Any:
        note = looked(*given)
        in_a_second_shell()
        return note

    def free(run: Any, word: str) -> None:
        in_a_second_shell()
        waited(run, word)

    if waits:
        monkeypatch.setattr(one_update, "active_update", lambda _: "scheduled")
        monkeypatch.setattr(blocking_run.BlockingRun, "_free", free)
    else:
        monkeypatch.setattr(starting, "note_before", note_before)
    first = pipelines(*argv)
    assert pipeline.flows[FLOW].resets == 1
    assert (first.code, rows(workspace)) == (0, 11), first.err
    assert (second[0].code, f"the same command is running (process {os.getpid()})" in second[0].err) == (1, True)
    assert pipelines(*argv).code == 0, "the lock went with its process"


def test_keys_of_a_command_that_is_lost(workspace: FakeWorkspace, pipeline: Pipeline, shell: Path) -> None:
    from airflow_ckpt_provider.lakeflow.settings import merge_configuration

    client = databricks_client.open_client()
    merge_configuration(client, pipeline.pipeline_id, {"modifiedAfter": AFTER}, "ann@host/1")
    looked = pipelines("put-back", "customers", "--json")
    assert (looked.code, looked.document["changed_by"]) == (1, "ann@host/1")
    assert pipelines("put-back", "customers", "--apply").code == 1
    other = pipelines("put-back", "customers", "--changed-by", "bob@host/2", "--apply")
    assert (other.code, "was changed by ann@host/1, not by bob@host/2" in other.err) == (1, True)
    running = pipeline.start({})
    needed = pipelines("put-back", "customers", "--changed-by", "ann@host/1", "--apply")
    assert (needed.code, "its update may still need the keys" in needed.err) == (1, True)
    while running.active:
        pipeline.step()
    done = pipelines("put-back", "customers", "--changed-by", "ann@host/1", "--apply", "--json")
    assert (done.code, done.document["put_back"], pipeline.configuration) == (0, {"modifiedAfter": None}, {})


class TestAStartThatWasNeverSent:
    """An ordinary update since then is not taken for it: the workspace repeats neither the reset nor the rewind."""

    def test_after_an_answer_that_forbids_it(self, workspace: FakeWorkspace, shell: Path) -> None:
        pipeline = samples.customers(workspace)
        argv = ("reset", "customers", "--flow", FLOW, "--accept", "UNKNOWN", "--set", "from=1", "--apply", "--json")
        workspace.fault("POST", "/updates$", status=403)
        assert pipelines(*argv).code != 0
        assert "from" not in pipeline.configuration
        pipeline.start({}, cause="API_CALL")
        pipeline.advance()
        assert pipelines(*argv).code == 0
        assert pipeline.flows[FLOW].resets == 1

    def test_after_a_kill(self, workspace: FakeWorkspace, shell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        settings: dict[str, Any] = {
            "channel": "PREVIEW",
            "configuration": {"pipelines.rewind.betaEnabled": "true"},
        }
        orders = samples.orders(workspace, **settings)
        to = (orders.points.points[0].time + timedelta(milliseconds=1)).isoformat()
        argv = ("rewind", "orders", "--to", to, "--apply", "--json")
        send = DatabricksClient.start_update

        def dies(client: DatabricksClient, pipeline_id: str, body: Any) -> str:
            if not body["rewind_spec"]["dry_run"]:
                raise Killed
            return send(client, pipeline_id, body)

        with monkeypatch.context() as patch:
            patch.setattr(DatabricksClient, "start_update", dies)
            with pytest.raises(Killed):
                pipelines(*argv)
        workspace.clock.advance(hours=24)
        orders.start({}, cause="API_CALL")
        orders.advance()
        again = pipelines(*argv)
        assert again.code == 1
        assert "UNKNOWN which update is this run's" in again.document["error"]["message"]
        assert "give --forget" in again.document["error"]["hint"]


def test_notes_that_cannot_be_read(shell: Path, workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    memos = FileMemos("x")
    memos.notes("reset").save({"after": None})
    assert memos.notes("reset").load() == {"after": None}
    memos.path.write_text("{")
    with pytest.raises(Exception, match="check the pipeline's updates before you remove it"):
        memos.load()
