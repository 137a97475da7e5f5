"""``airflow-ckpt pipelines``: over HTTP, logged in by the vendor's SDK, with the plans and the core of the operators."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from requests.utils import get_netrc_auth

from airflow_ckpt_provider.cli import databricks_client
from airflow_ckpt_provider.cli.databricks_client import DatabricksClient
from airflow_ckpt_provider.cli.pipeline_notes import FileMemos
from airflow_ckpt_provider.cli.pipeline_words import in_shell
from airflow_ckpt_provider.errors import WorkspaceError, WorkspaceForbiddenError
from airflow_ckpt_provider.lakeflow import blocking_run, one_update, starting
from airflow_ckpt_provider.lakeflow.settings import MARK
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from tests.fake_databricks import TOKEN, WAREHOUSE, FakeWorkspace, FlowFailed, Pace, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Killed, Task
from tests.support.command_line import PROGRAM, Finished, run, run_program
from tests.support.lakeflow_shell import shell as shell
from tests.support.waiting import wait_until

FLOW = samples.INCREMENTAL
AFTER = "2026-08-20T05:00:00Z"
POSITIONS = {
    FLOW: {"options": {"modifiedAfter": AFTER}, "carried_by": {"modifiedAfter": "modifiedAfter"}, "language": "python"}
}


@pytest.fixture
def pipeline(workspace: FakeWorkspace) -> Pipeline:
    made = samples.customers(workspace)
    samples.remove_drop_duplicates(made)
    samples.land(workspace.sources["/landing/customers"], 2)
    made.start({}, cause="USER_ACTION")
    made.advance()
    assert made.updates[-1].state == "FAILED"
    return made


def pipelines(*argv: object) -> Finished:
    quick = () if argv[0] in ("list", "flows") else ("--poll", "0.001")
    return run("pipelines", *argv, *quick)


def written(place: Path, content: Any, name: str = "positions.json") -> Path:
    file = place / name
    file.write_text(json.dumps(content))
    return file


def rows(workspace: FakeWorkspace) -> int:
    return len(workspace.rows("main.customers.customers"))


def test_list_and_flows(workspace: FakeWorkspace, pipeline: Pipeline, shell: Path) -> None:
    samples.orders(workspace)
    listed = pipelines("list", "--json").document["pipelines"]
    assert {each["name"] for each in listed} == {"customers", "orders"}
    assert [each["name"] for each in pipelines("list", "cust%", "--json").document["pipelines"]] == ["customers"]
    assert "FAILED" in pipelines("list").out
    found = pipelines("flows", "customers", "--json").document
    assert (found["pipeline_id"], found["complete"]) == (pipeline.pipeline_id, True)
    assert {flow["name"]: flow["table"] for flow in found["flows"]}[FLOW] == "main.customers.customers"
    assert FLOW in pipelines("flows", pipeline.pipeline_id).out
    assert {request.user_agent.split("/")[0] for request in workspace.requests} == {"airflow-ckpt"}
    assert {request.method for request in workspace.requests} == {"GET"}


def test_a_reset_is_planned_and_then_carried_out(workspace: FakeWorkspace, pipeline: Pipeline, shell: Path) -> None:
    file = written(shell, POSITIONS)
    argv = ("reset", "customers", "--positions", file, "--set", f"modifiedAfter={AFTER}")
    planned = pipelines(*argv, "--json")
    assert (planned.code, planned.document["verdict"]) == (0, "SAFE"), planned.err
    of_operator = Task(
        lambda: ResetCheckpointOperator(
            task_id="reset",
            pipeline_id=pipeline.pipeline_id,
            flows=[FLOW],
            starting_positions=POSITIONS,
            configuration={"modifiedAfter": AFTER},
        )
    ).attempt()["plan"]
    assert planned.document == of_operator, "the operator's plan"
    assert "Nothing was changed: this is a plan." in pipelines(*argv).out
    assert not [r for r in workspace.requests if r.method != "GET"]
    wrong = pipelines(*argv, "--fingerprint", "0" * 16, "--apply")
    assert (wrong.code, "is not the one that would be carried" in wrong.err) == (1, True)
    done = pipelines(*argv, "--fingerprint", planned.document["fingerprint"], "--apply", "--json")
    assert done.code == 0, done.err
    assert (done.document["mode"], done.document["state"]) == ("apply", "COMPLETED")
    assert done.document["updates"]["reset"]["found"] == "answer"
    assert (rows(workspace), pipeline.flows[FLOW].resets) == (11, 1)
    assert pipeline.configuration == {"modifiedAfter": AFTER}, "kept by default: the flow may need it later"
    assert list((shell / "state").rglob("*.json")) == []


def test_control_without_a_position(workspace: FakeWorkspace, pipeline: Pipeline, shell: Path) -> None:
    argv = ("reset", "customers", "--flow", FLOW)
    refused = pipelines(*argv, "--apply")
    assert (refused.code, "the verdict is UNKNOWN" in refused.err) == (1, True)
    assert not workspace.asked("POST")
    assert pipelines(*argv, "--accept", "UNKNOWN", "--apply").code == 0
    assert rows(workspace) == 17, "8 files again, on top of 9 rows"


def test_positions_go_into_the_reset(workspace: FakeWorkspace, pipeline: Pipeline, shell: Path) -> None:
    about = {
        FLOW: {
            "sources": ["/landing/customers"],
            "carried_by": {"modifiedAfter": "modifiedAfter"},
            "language": "python",
            "stateful": False,
        }
    }
    argv = ("positions", "customers", "--warehouse", WAREHOUSE, "--about", written(shell, about, "about.json"))
    unsure = pipelines(*argv, "--json")
    assert (unsure.code, unsure.document["verdict"]) == (1, "UNKNOWN"), "a file may turn up late"
    found = pipelines(*argv, "--margin", "0s", "--json")
    assert found.document["steps"][0]["positions"][0]["again"] == {}, found.out
    assert "1. **Identify.**" in found.document["markdown"]
    assert "Identify" in pipelines(*argv).out
    file = shell / "found.json"
    file.write_text(found.out)
    done = pipelines("reset", "customers", "--positions", file, "--apply", "--json")
    assert done.code == 0, done.err
    assert rows(workspace) == 11, "2 new files"


def test_refresh(workspace: FakeWorkspace, pipeline: Pipeline, shell: Path) -> None:
    report = written(shell, {"verdict": "SAFE", "reasons": []}, "guard.json")
    argv = ("refresh", "customers", "--empty", "customers", "--guard-report", report)
    plan = pipelines(*argv, "--json").document
    assert (
        plan
        == Task(
            lambda: PipelineRefreshOperator(
                task_id="t",
                pipeline_id=pipeline.pipeline_id,
                full_refresh_selection="customers",
                guard_report={"verdict": "SAFE"},
            )
        ).attempt()["plan"]
    )
    assert pipelines("refresh", "customers", "--empty", "customers", "--apply").code == 1
    assert rows(workspace) == 9
    dry = pipelines(*argv, "--validate-only", "--apply", "--json")
    assert (dry.document["mode"], rows(workspace)) == ("dry_run", 9)
    assert pipelines(*argv, "--apply").code == 0
    assert rows(workspace) == 11


def test_rewind(workspace: FakeWorkspace, shell: Path) -> None:
    settings: Any = {"channel": "PREVIEW", "configuration": {"pipelines.rewind.betaEnabled": "true"}}
    orders = samples.orders(workspace, **settings)
    to = (orders.points.points[0].time + timedelta(milliseconds=1)).isoformat()
    workspace.clock.advance(hours=2)
    orders.start({})
    orders.advance()
    workspace.clock.advance(hours=1)
    planned = pipelines("rewind", "orders", "--to", to, "--json")
    assert (planned.code, planned.document["verdict"]) == (0, "SAFE"), planned.out
    done = pipelines("rewind", "orders", "--to", to, "--apply", "--json")
    assert list(done.document["updates"]) == ["dry_run", "rewind", "replay"], done.err
    assert pipelines("rewind", "orders").code == 2


def test_a_lost_answer_is_looked_for(workspace: FakeWorkspace, pipeline: Pipeline, shell: Path) -> None:
    workspace.fault("POST", "/updates$", status=503, took_effect=True)
    workspace.fault("GET", "/updates$", status=429, retry_after=1, nth=2)
    argv = ("reset", "customers", "--flow", FLOW, "--accept", "UNKNOWN", "--apply", "--json")
    done = pipelines(*argv)
    assert (done.code, done.document["updates"]["reset"]["found"]) == (0, "search"), done.err
    assert (len(workspace.asked("POST", "/updates")), pipeline.flows[FLOW].resets) == (1, 1)


def test_a_failure_is_explained_and_the_configuration_put_back(
    workspace: FakeWorkspace, pipeline: Pipeline, shell: Path
) -> None:
    pipeline.when["SETTING_UP_TABLES"] = lambda p: setattr(p.flows[FLOW], "error", FlowFailed("X_Y", "it is broken"))
    argv = ("reset", "customers", "--positions", written(shell, POSITIONS), "--set", f"modifiedAfter={AFTER}")
    failed = pipelines(*argv, "--configuration-after", "put_back", "--accept", "UNKNOWN", "--apply")
    assert failed.code == 1
    assert "[X_Y] it is broken" in failed.err
    assert "The pipeline's configuration was put back" in failed.err
    assert pipeline.configuration == {}
    assert list((shell / "state").rglob("*.json")) == []


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


def test_hints_name_options_of_the_command(
    workspace: FakeWorkspace, pipeline: Pipeline, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_ckpt_provider.lakeflow.settings import merge_configuration

    refresh = ("refresh", "customers", "--empty", "customers")
    unsure = pipelines(*refresh, "--apply")
    said = " ".join((unsure.out + unsure.err).split())
    assert ("--accept UNKNOWN" in said, "--guard-report" in said) == (True, True), said
    nothing = pipelines("refresh", "customers").err
    assert "name the tables with --empty, or give --everything" in nothing
    merge_configuration(databricks_client.open_client(), pipeline.pipeline_id, {"x": "y"}, "ann@host/1")
    reset = ("reset", "customers", "--flow", FLOW, "--set", "x=y", "--accept", "WILL_FAIL", "--apply")
    foreign = pipelines(*reset)
    assert "pipelines put-back PIPELINE --changed-by 'ann@host/1' --apply" in foreign.err
    # Two updates that can be ours after a lost answer: the note is the way out.
    monkeypatch.setattr(starting.StartRequest, "may_be", lambda *_: True)
    pipeline.when["RESETTING"] = lambda p: None
    workspace.fault("POST", "/updates$", status=503, took_effect=True)
    before = starting.note_before
    monkeypatch.setattr(starting, "note_before", lambda *given: {**before(*given), "after": None, "since": 0})
    lost = pipelines(*refresh, "--accept", "UNKNOWN", "--apply")
    note = next((shell / "state").rglob("*.json"))
    assert f"give --forget, which removes {note}, only when none is" in lost.err
    for found in (unsure, foreign, lost):
        for word in ("Operator", "Sensor", "this task", "accept=", "guard_report"):
            assert word not in found.err + found.out
    assert pipelines(*refresh, "--forget").code == 0
    assert not note.exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("give on_active_update='stop'", "give --on-active-update stop"),
        ("give wait_for='RUNNING', or None", "give --wait-for RUNNING"),
        ("give wait_for, or configuration_after='keep'", "give wait_for, or --configuration-after keep"),
        ("or give timezone='Europe/Berlin'", "or give --timezone Europe/Berlin"),
        ("accept it explicitly: accept='WILL_LOSE'", "accept it explicitly: --accept WILL_LOSE"),
        ("the next attempt of this task tries again", "the same command, run again, tries again"),
    ],
)
def test_words_of_the_shell(text: str, words: str) -> None:
    assert in_shell(text) == words


def test_keys_of_a_command_that_is_lost(workspace: FakeWorkspace, pipeline: Pipeline, shell: Path) -> None:
    from airflow_ckpt_provider.lakeflow.settings import merge_configuration

    client = databricks_client.open_client()
    merge_configuration(client, pipeline.pipeline_id, {"modifiedAfter": AFTER}, "ann@host/1")
    looked = pipelines("put-back", "customers", "--json")
    assert (looked.code, looked.document["changed_by"]) == (1, "ann@host/1")
    assert pipelines("put-back", "customers", "--apply").code == 1
    other = pipelines("put-back", "customers", "--changed-by", "bob@host/2", "--apply")
    assert (other.code, "was changed by ann@host/1, not by bob@host/2" in other.err) == (1, True)
    done = pipelines("put-back", "customers", "--changed-by", "ann@host/1", "--apply", "--json")
    assert (done.code, done.document["put_back"], pipeline.configuration) == (0, {"modifiedAfter": None}, {})


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("reset",), 2, "pipelines reset needs a PIPELINE"),
        (("list", "--apply"), 2, "--apply is not for list"),
        (("flows", "customers", "--to", "now"), 2, "--to is not for flows"),
        (("explode", "customers"), 2, "there is no 'explode'; known: flows, list, positions"),
        (("reset", "customers", "--accept", "MAYBE"), 2, "'MAYBE' is not one of WILL_SKIP"),
        (("reset", "customers", "--positions", "/nowhere.json"), 2, "/nowhere.json cannot be read"),
        (("reset", "customers"), 1, "flows is empty: nothing would be reset"),
        (("refresh", "customers"), 1, "nothing would be refreshed in full"),
        (("flows", "nosuch"), 1, "no pipeline has the id or the name 'nosuch'"),
        (("reset", "customers", "--flow", FLOW, "--on-active-update", "perhaps"), 2, "is not one of fail, wait, stop"),
    ],
)
def test_bad_input(
    workspace: FakeWorkspace, pipeline: Pipeline, shell: Path, argv: tuple[str, ...], code: int, words: str
) -> None:
    found = run("pipelines", *argv)
    assert (found.code, words in found.err) == (code, True), found.err
    assert not [r for r in workspace.requests if r.method != "GET"]


def test_logins(workspace: FakeWorkspace, shell: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shell / ".databrickscfg").write_text(f"[prod]\nhost = {workspace.url}\ntoken = {TOKEN}\n")
    monkeypatch.setenv("DATABRICKS_TOKEN", "wrong")
    refused = run("pipelines", "list")
    assert (refused.code, "Invalid access token" in refused.err) == (3, True), refused.err
    monkeypatch.delenv("DATABRICKS_TOKEN")
    monkeypatch.delenv("DATABRICKS_HOST")
    monkeypatch.setenv("DATABRICKS_CONFIG_FILE", str(shell / ".databrickscfg"))
    assert run("pipelines", "list", "--profile", "prod").code == 0
    none = run("pipelines", "list", "--profile", "nosuch")
    assert (none.code, "HINT: set DATABRICKS_HOST and DATABRICKS_TOKEN" in none.err) == (3, True), none.err


def test_netrc_does_not_replace_the_login(
    workspace: FakeWorkspace, shell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = shell / ".netrc"
    netrc.write_text("machine 127.0.0.1 login token password dapi-other\nmachine localhost login token password x\n")
    netrc.chmod(0o600)
    monkeypatch.delenv("NETRC", raising=False)
    assert get_netrc_auth(workspace.url) is not None, "requests would take it"
    found = run("pipelines", "list")
    assert found.code == 0, found.err


@pytest.mark.parametrize("token", ["dapi-SECRET\n", "dapi-SEC\nRET", "dapi-SECRET\u2019", "dapi-SECRET\x7f"])
def test_a_token_that_cannot_be_sent_is_not_shown(
    workspace: FakeWorkspace, shell: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("DATABRICKS_TOKEN", token)
    refused = run("pipelines", "list")
    assert (refused.code, "Authorization has characters that are no printable ASCII" in refused.err) == (3, True)
    assert "SEC" not in refused.err + refused.out
    client = DatabricksClient(workspace.url, lambda: {"Authorization": f"Bearer {token}"})
    if token.isprintable() or "\n" in token:
        with pytest.raises(WorkspaceForbiddenError, match="cannot be made") as found:
            client.ask("p")
        assert "SEC" not in str(found.value)
        assert found.value.__suppress_context__
    assert not workspace.requests


def test_a_workspace_that_does_not_answer(workspace: FakeWorkspace, pipeline: Pipeline, shell: Path) -> None:
    workspace.fault("GET", "/pipelines$", status=503, count=3)
    assert run("pipelines", "list").code == 0
    workspace.fault("GET", "/pipelines$", cut=True, count=None)
    assert run("pipelines", "list").code == 3


def test_notes_that_cannot_be_read(shell: Path, workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    memos = FileMemos("x")
    memos.notes("reset").save({"after": None})
    assert memos.notes("reset").load() == {"after": None}
    memos.path.write_text("{")
    with pytest.raises(Exception, match="check the pipeline's updates before you remove it"):
        memos.load()


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


@pytest.mark.parametrize("edit", [{"catalog": "prod"}, {"libraries": [{"file": {"path": "/other.py"}}]}], ids=repr)
@pytest.mark.parametrize("verb", ["reset", "refresh", "rewind"])
def test_an_approval_does_not_hold_for_an_edited_pipeline(
    workspace: FakeWorkspace, shell: Path, edit: dict[str, Any], verb: str
) -> None:
    pipeline = samples.customers(workspace)
    more: dict[str, tuple[object, ...]] = {
        "reset": ("--flow", FLOW),
        "refresh": ("--empty", "customers"),
        "rewind": ("--to", "2026-08-20T05:00:00Z"),
    }
    argv = (verb, "customers", *more[verb], "--json")
    shown = pipelines(*argv).document["fingerprint"]
    spec = {**pipeline.spec, "parameters": pipeline.parameters}
    pipeline.edit({**spec, "configuration": {"theirs": "1"}})
    assert pipelines(*argv).document["fingerprint"] == shown
    pipeline.edit({**spec, **edit})
    verdict = pipelines(*argv).document["verdict"]
    refused = pipelines(*argv, "--accept", verdict, "--fingerprint", shown, "--apply")
    assert "is not the one that would be carried out now" in refused.document["error"]["message"]
    assert len(pipeline.updates) == 1
