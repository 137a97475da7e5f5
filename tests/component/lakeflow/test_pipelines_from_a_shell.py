"""``airflow-ckpt pipelines``: over HTTP, logged in by the vendor's SDK, with the plans and the core of the operators."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from requests.utils import get_netrc_auth

from airflow_ckpt_provider.cli import databricks_client
from airflow_ckpt_provider.cli.databricks_client import DatabricksClient
from airflow_ckpt_provider.cli.pipeline_words import in_shell
from airflow_ckpt_provider.errors import WorkspaceForbiddenError
from airflow_ckpt_provider.lakeflow import starting
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from tests.fake_databricks import TOKEN, WAREHOUSE, FakeWorkspace, FlowFailed, samples
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Task
from tests.support.command_line import run
from tests.support.lakeflow_shell import AFTER, FLOW, POSITIONS, pipelines, rows, written
from tests.support.lakeflow_shell import pipeline as pipeline
from tests.support.lakeflow_shell import shell as shell


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
        (
            "no copy is kept (backup='deep_clone' keeps one)",
            "no copy is kept (the command line keeps none; a task of Airflow can, by a deep clone)",
        ),
        ("the next attempt of this task tries again", "the same command, run again, tries again"),
    ],
)
def test_words_of_the_shell(text: str, words: str) -> None:
    assert in_shell(text) == words


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
