"""What `docs/lakeflow-contract.md` claims, asked of a workspace in this order on one pipeline: the fake one, or a real one.

What no page establishes is not asserted but written down (``target.found``), and comes with the recording.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from databricks.sdk import WorkspaceClient
from databricks.sdk.service import pipelines

from airflow_ckpt_provider.errors import ActiveUpdateError, NoSuchPipelineError, RefusedError
from airflow_ckpt_provider.lakeflow.examine import examine
from airflow_ckpt_provider.lakeflow.gathering import Readers, gather
from airflow_ckpt_provider.lakeflow.histories import history_of
from airflow_ckpt_provider.lakeflow.positions import SQL
from airflow_ckpt_provider.lakeflow.recovery_steps import AboutFlow, recovery_steps
from airflow_ckpt_provider.lakeflow.settings import MARK, merge_configuration, put_back_configuration
from airflow_ckpt_provider.lakeflow.updates import UpdateState, active_update, configuration_of
from tests.contract.recording import Masks, Recording, ReplayedClient, answers
from tests.contract.target import Target
from tests.fake_databricks import TOKEN


def flow_of(target: Target) -> str:
    names = list(examine(target.client, target.pipeline_id).flows.flows)
    assert len(names) == 1, names
    return names[0]


def test_the_pipeline_is_seen(target: Target) -> None:
    assert target.client.find(target.name) == target.pipeline_id
    found = target.client.ask(target.pipeline_id)
    assert found["name"] == target.name
    assert configuration_of(found) == {"contract.kept": "1"}
    assert isinstance(found["last_modified"], int)
    assert active_update(found) is None
    with pytest.raises(NoSuchPipelineError):
        target.client.ask("00000000-0000-0000-0000-000000000000")


def test_one_update_at_a_time(target: Target) -> None:
    first = target.client.start_update(target.pipeline_id, {})
    with pytest.raises(ActiveUpdateError) as refused:
        target.client.start_update(target.pipeline_id, {})
    conflict = target.client.recording.lines[-1]
    target.found["second start"] = {"status": conflict["status"], "error_code": conflict["answer"].get("error_code")}
    assert refused.value.update_id in (first, "")
    newest = next(target.client.iter_updates(target.pipeline_id))
    assert newest["update_id"] == first

    def ended() -> bool:
        state = UpdateState.of(target.client.ask(target.pipeline_id, f"updates/{first}")["update"])
        assert state.created is not None
        assert state.state in {each.value for each in pipelines.UpdateInfoState}
        return state.is_terminal

    target.until(ended, "the first update ends")
    assert UpdateState.of(target.client.ask(target.pipeline_id, f"updates/{first}")["update"]).is_successful
    assert target.rows() == 2


def test_events_name_the_flow(target: Target) -> None:
    examined = examine(target.client, target.pipeline_id)
    (name, flow), *more = examined.flows.flows.items()
    assert not more
    assert name.endswith(f"{target.name}_copy")
    target.found["flow name"] = "qualified" if name.count(".") == 2 else "bare"
    assert flow.streaming is True
    kinds = {event["event_type"] for event in target.client.iter_events(target.pipeline_id, max_results=250)}
    assert {"create_update", "update_progress", "flow_definition", "flow_progress"} <= kinds
    target.found["stream_progress over REST"] = "stream_progress" in kinds
    assert list(target.client.iter_events(target.pipeline_id, filter="level='ERROR'")) == []
    # A page token stands for all the rest.
    every = [event["id"] for event in target.client.iter_events(target.pipeline_id, max_results=250)]
    assert [event["id"] for event in target.client.iter_events(target.pipeline_id, max_results=5)] == every


def test_histories_and_the_event_log_table(target: Target) -> None:
    history = history_of(target.queries(f"DESCRIBE HISTORY {target.table} LIMIT 1000"))
    write = history.newest_write
    assert write is not None, [commit.operation for commit in history.commits]
    target.found["history of a streaming table"] = {
        "operation": write.operation,
        "names batches": write.epoch is not None,
    }
    source = history_of(
        target.queries(f"DESCRIBE HISTORY {target.source} LIMIT 1000"),
        target.queries(f"DESCRIBE DETAIL {target.source}"),
    )
    assert source.table_id
    assert source.commits[-1].version == 0
    evidence = gather(
        target.client, examine(target.client, target.pipeline_id), flow_of(target), Readers(target.queries)
    )
    target.found["progress"] = {"found": evidence.progress is not None, "unread": list(evidence.unread)}
    assert evidence.completed is not None
    assert evidence.table == target.table


def test_settings_are_replaced_and_put_back(target: Target) -> None:
    before = target.client.ask(target.pipeline_id)
    merge_configuration(target.client, target.pipeline_id, {"contract.key": "x"}, "contract")
    merged = configuration_of(target.client.ask(target.pipeline_id))
    assert {key: merged.get(key) for key in ("contract.kept", "contract.key")} == {
        "contract.kept": "1",
        "contract.key": "x",
    }
    assert MARK in merged
    # An edit that goes by older settings is a conflict, and changes nothing.
    body = {key: value for key, value in before["spec"].items() if key != "id"}
    with pytest.raises(ActiveUpdateError):
        target.client.edit_pipeline(target.pipeline_id, {**body, "expected_last_modified": before["last_modified"]})
    target.found["edit by older settings"] = target.client.recording.lines[-1]["answer"].get("error_code")
    assert put_back_configuration(target.client, target.pipeline_id, "contract").put_back == {"contract.key": None}
    after = target.client.ask(target.pipeline_id)
    assert after["spec"] == before["spec"], "all other settings are as they were"


def test_a_dry_run_changes_nothing(target: Target) -> None:
    update = target.run(validate_only=True, reset_checkpoint_selection=[flow_of(target)])
    assert (update["state"], target.rows()) == ("COMPLETED", 2)
    assert "reset_checkpoint_selection" not in update


def test_a_flow_that_does_not_exist(target: Target) -> None:
    name = flow_of(target).replace("_copy", "_nosuch")
    try:
        state = target.run(reset_checkpoint_selection=[name])["state"]
    except RefusedError:
        state = "refused"
    target.found["reset of an unknown flow"] = state
    assert state in ("refused", "FAILED"), "it must not pass for a reset"
    if state == "FAILED":
        errors = list(target.client.iter_events(target.pipeline_id, filter="level='ERROR'"))
        assert any("does not exist in the graph" in str(event) for event in errors)
    target.found["state after a failure"] = target.client.ask(target.pipeline_id).get("state")
    assert target.rows() == 2


def test_positions_are_found(target: Target) -> None:
    flow = flow_of(target)
    target.queries(f"INSERT INTO {target.source} VALUES ('c', '3')")
    about = AboutFlow.from_json({flow: {"sources": {target.source: "delta"}, "language": SQL, "stateful": False}})
    found = recovery_steps(
        target.client,
        examine(target.client, target.pipeline_id),
        Readers(target.queries),
        flows=[flow],
        about=about,
    )
    position = found.flows[0].positions[0]
    target.found["position"] = {
        "how": position.how,
        "verdict": position.verdict.value,
        "options": dict(position.options),
    }
    # It must not lie after the row that has not been read: version 2, after the table was made and filled.
    if version := position.options.get("startingVersion"):
        assert int(version) <= 2
    assert target.real or (position.verdict.value, version) == ("SAFE", "2")


def test_a_reset_keeps_the_rows_and_reads_again(target: Target) -> None:
    """The control of all positions: without one, what the source has is written a second time."""
    update = target.run(reset_checkpoint_selection=[flow_of(target)])
    assert "reset_checkpoint_selection" not in update
    assert (update["state"], target.rows()) == ("COMPLETED", 5)


def test_a_full_refresh_empties(target: Target) -> None:
    update = target.run(full_refresh_selection=[target.table])
    assert (update["state"], target.rows()) == ("COMPLETED", 3)


def test_a_stop_without_an_update(target: Target) -> None:
    target.client.stop_pipeline(target.pipeline_id)
    assert active_update(target.client.ask(target.pipeline_id)) is None


def test_the_vendors_own_client_sees_the_same(target: Target) -> None:
    client = WorkspaceClient() if target.real else WorkspaceClient(host=target.client.host, token=TOKEN)
    seen = client.pipelines.get(target.pipeline_id)
    assert (seen.name, seen.pipeline_id) == (target.name, target.pipeline_id)
    newest = next(iter(client.pipelines.list_updates(target.pipeline_id).updates))
    assert newest.state is pipelines.UpdateInfoState.COMPLETED
    names = {
        event.origin.flow_name for event in client.pipelines.list_pipeline_events(target.pipeline_id) if event.origin
    }
    assert flow_of(target) in names
    assert client.pipelines.start_update(target.pipeline_id, validate_only=True).update_id
    client.pipelines.stop_and_wait(target.pipeline_id)


def test_the_recording_names_nobody_and_can_be_played_back(target: Target, tmp_path: Path) -> None:
    live = target.client.recording
    examined = examine(target.client, target.pipeline_id)
    path = tmp_path / "recording.jsonl"
    live.save(path, Masks({target.client.host: "host", target.warehouse: "warehouse"}))
    text = path.read_text()
    assert "Authorization" not in text
    assert target.client.host not in text
    assert target.pipeline_id not in text
    assert "@" not in text
    assert target.real or "etl@example.com" in str(live.lines), "there was something to hide"
    loaded = Recording.load(path)
    assert len(loaded.lines) == len(live.lines)
    for answer in answers(loaded, "GET", r"/api/2\.0/pipelines/[^/]+/updates/[^/]+"):
        assert pipelines.GetUpdateResponse.from_dict(answer).update.state is not None
    masked = loaded.lines[-1]["path"].split("/")[4]
    newest = Recording([line for line in loaded.lines[-40:] if masked in line["path"]])
    again = examine(ReplayedClient(newest), masked)
    assert list(again.flows.flows) == list(examined.flows.flows)
    path.write_text('{"format": "airflow-ckpt-contract", "version": 2}\n')
    with pytest.raises(ValueError, match="is no recording of version 1"):
        Recording.load(path)
