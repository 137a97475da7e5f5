"""Positions that are found: what the event log, histories, files and offsets tell, and the rows that a reset from there gives."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException

from airflow_ckpt_provider.guards.delta_start import TABLE_READ
from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.lakeflow.evidence import KafkaState
from airflow_ckpt_provider.lakeflow.examine import examine
from airflow_ckpt_provider.lakeflow.found_position import Terms
from airflow_ckpt_provider.lakeflow.gathering import Readers
from airflow_ckpt_provider.lakeflow.queries import warehouse_queries
from airflow_ckpt_provider.lakeflow.recovery_steps import AboutFlow, RecoverySteps, recovery_steps
from airflow_ckpt_provider.operators.pipeline_positions import PipelinePositionsOperator
from airflow_ckpt_provider.operators.reset_checkpoint import ResetCheckpointOperator
from airflow_ckpt_provider.operators.table_check import TableCheckOperator
from tests.fake_databricks import DROP_DUPLICATES, WAREHOUSE, Dataset, FakeWorkspace, Flow
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.sources import Kind, Source
from tests.fake_databricks.tables import Version
from tests.support.attempts import Task

NAMES = {"kafka": "orders-events", "delta": "lake.raw.orders", "files": "/landing/orders"}
OPTIONS = {"kafka": "startingOffsets", "delta": "startingVersion", "files": "modifiedAfter"}
MINUTES = timedelta(minutes=1)


def kafka_of(workspace: FakeWorkspace, topics: Sequence[str]) -> KafkaState:
    """What a broker says of the workspace's topics, one partition each."""
    source = workspace.sources[topics[0]]

    def at(time: datetime) -> dict[str, dict[int, int]]:
        return {source.name: {0: min((r.position for r in source.kept() if r.timestamp >= time), default=source.end)}}

    first, end = {source.name: {0: source.first}}, {source.name: {0: source.end}}
    return KafkaState(first, end, source.append_time, at)


def land(workspace: FakeWorkspace, source: Source, count: int = 1) -> None:
    for _ in range(count):
        source.add(workspace.clock.now(), id=f"o{len(source.rows):04d}-{source.end}")
        workspace.clock.advance(seconds=1)


def run(workspace: FakeWorkspace, pipeline: Pipeline, **body: Any) -> None:
    pipeline.start(body, cause="USER_ACTION")
    pipeline.advance()
    workspace.clock.advance(minutes=5)


def made(
    workspace: FakeWorkspace, kind: Kind, *, keys: tuple[str, ...] = (), **settings: Any
) -> tuple[Pipeline, Source]:
    """A flow that has read 12 rows in three updates, an hour apart."""
    source = workspace.add_source(NAMES[kind], kind)
    start = {"startingOffsets": "earliest"} if kind == "kafka" else {}
    flow = Flow("orders", "orders", (NAMES[kind],), start_in_code=start)
    pipeline = workspace.add_pipeline("sales", datasets=[Dataset("orders", keys=keys)], flows=[flow], **settings)
    for _ in range(3):
        land(workspace, source, 4)
        workspace.clock.advance(minutes=10)
        run(workspace, pipeline)
        workspace.clock.advance(hours=1)
    return pipeline, source


def broken(workspace: FakeWorkspace, pipeline: Pipeline, source: Source, unread: int = 3) -> None:
    """New rows, and new code that the checkpoint does not survive."""
    workspace.clock.advance(hours=2)
    land(workspace, source, unread)
    workspace.clock.advance(minutes=10)
    pipeline.flows["orders"].operators = (DROP_DUPLICATES,) if not pipeline.flows["orders"].operators else ()
    run(workspace, pipeline)
    assert pipeline.updates[-1].state == "FAILED"
    # As the code of the flow has it that is deployed for the recovery.
    pipeline.flows["orders"].operators = ()
    pipeline.flows["orders"].checkpoint.operators = ("gone",)  # type: ignore[union-attr]


def steps(
    workspace: FakeWorkspace, pipeline: Pipeline, kind: Kind, *, kafka: bool = True, warehouse: bool = True, **said: Any
) -> RecoverySteps:
    hook = DatabricksPipelinesHook()
    margin = said.pop("margin", None)
    key = {OPTIONS[kind]: f"orders.{OPTIONS[kind]}"}
    facts = {"sources": {NAMES[kind]: kind}, "carried_by": key, "language": "python", "stateful": False} | said
    queries = warehouse_queries(hook, WAREHOUSE, sleep=lambda _: None)
    readers = Readers(queries if warehouse else None, (lambda topics: kafka_of(workspace, topics)) if kafka else None)
    examined = examine(hook, pipeline.pipeline_id)
    flow = next(iter(examined.flows.flows))
    return recovery_steps(
        hook, examined, readers, flows=[flow], about=AboutFlow.from_json({flow: facts}), terms=Terms(margin=margin)
    )


def go(pipeline: Pipeline, found: RecoverySteps) -> None:
    """Reset as the steps say, with what they accept."""
    verdict = found.verdict.value
    result = Task(
        lambda: ResetCheckpointOperator(
            task_id="reset",
            pipeline_id=pipeline.pipeline_id,
            flows=[each.flow for each in found.flows],
            starting_positions=found.starting_positions,
            configuration=found.configuration,
            parameters=found.parameters,
            accept=None if verdict == "SAFE" else verdict,
            mode="apply",
            poll_interval=0.001,
        )
    ).attempt()
    assert result["state"] == "COMPLETED"


def rows_of(workspace: FakeWorkspace) -> tuple[int, int]:
    """Rows, and different ones."""
    ids = [row["id"] for row in workspace.rows("main.sales.orders")]
    return len(ids), len(set(ids))


def only(found: RecoverySteps) -> Any:
    return found.flows[0].positions[0]


@pytest.mark.parametrize("kind", ["kafka", "delta"])
@pytest.mark.parametrize("shape", ["table", "rest", "text"])
def test_the_end_of_the_newest_batch_is_exact(workspace: FakeWorkspace, kind: Kind, shape: str) -> None:
    pipeline, source = made(workspace, kind, progress_as_text=shape == "text")
    if shape == "rest":
        pipeline.events.metrics_over_rest = True
        pipeline.events.events, pipeline.events.metrics = pipeline.events.table, []
        workspace.tables.refuse["event_log("] = "only the owner may"
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, kind)
    position = only(found)
    assert (position.how, position.verdict.value, position.again) == ("progress", "SAFE", {}), position.reasons
    wanted = {"kafka": '{"orders-events": {"0": 12}}', "delta": "12"}[kind]
    assert position.options == {OPTIONS[kind]: wanted}
    # Whether Kafka still has these offsets, and in the same topic, a guard's report says: none was given.
    verdict = {"kafka": "UNKNOWN", "delta": "SAFE"}[kind]
    assert (found.verdict.value, found.configuration) == (verdict, {f"orders.{OPTIONS[kind]}": wanted})
    if shape == "rest":
        assert "only the owner may" in " ".join(position.reasons)
    go(pipeline, found)
    assert rows_of(workspace) == (15, 15)


@pytest.mark.parametrize("short_pages", [True, False])
@pytest.mark.parametrize("kept_for", [None, timedelta(hours=1)])
def test_events_in_short_pages_and_those_that_are_too_old(
    workspace: FakeWorkspace, short_pages: bool, kept_for: timedelta | None
) -> None:
    pipeline, source = made(workspace, "delta")
    broken(workspace, pipeline, source)
    pipeline.events.short_pages, pipeline.events.kept_for = short_pages, kept_for
    position = only(steps(workspace, pipeline, "delta"))
    found = ("SAFE", "progress", {"startingVersion": "12"})
    assert (position.verdict.value, position.how, position.options) == (("UNKNOWN", "", {}) if kept_for else found)


@pytest.mark.parametrize("kind", ["kafka", "delta", "files"])
def test_control_without_a_position_all_is_written_again(workspace: FakeWorkspace, kind: Kind) -> None:
    pipeline, source = made(workspace, kind)
    broken(workspace, pipeline, source)
    pipeline.start({"reset_checkpoint_selection": ["main.sales.orders"]})
    pipeline.advance()
    assert rows_of(workspace) == (27, 15)


@pytest.mark.parametrize("kind", ["kafka", "delta"])
@pytest.mark.parametrize("target", ["append", "dedup", "apply_changes", "apply_changes_scd2"])
def test_batches_that_were_not_reported_are_forecast(workspace: FakeWorkspace, kind: Kind, target: str) -> None:
    changes = target.startswith("apply")
    pipeline, source = made(workspace, kind, keys=("id",) if changes else ())
    pipeline.progress_lost.add("orders")
    land(workspace, source, 2)
    run(workspace, pipeline)
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, kind, target=target)
    position = only(found)
    assert position.how == "progress"
    assert "has batch 3 of the flow, and the newest reported one is 2" in " ".join(position.reasons)
    # Kafka: from the position to the end of the log; Delta: what had been committed when the flow last wrote.
    assert position.again == ({"offsets": 5} if kind == "kafka" else {"versions": 2, "rows": 2})
    verdict = {"append": "WILL_DUPLICATE", "apply_changes_scd2": "UNKNOWN"}.get(target, "SAFE")
    of_reset = "UNKNOWN" if (kind, verdict) == ("kafka", "SAFE") else verdict
    assert (position.verdict.value, found.verdict.value) == (verdict, of_reset), position.reasons
    go(pipeline, found)
    assert rows_of(workspace) == ((17, 17) if changes else (19, 17))


def test_a_trigger_that_found_nothing_reports_a_batch_that_has_not_run(workspace: FakeWorkspace) -> None:
    """Its number is that of the next batch: taken for a batch, the next one would seem to be reported."""
    pipeline, source = made(workspace, "kafka")
    run(workspace, pipeline)  # finds nothing, and reports batch 3
    pipeline.progress_lost.add("orders")
    land(workspace, source, 2)
    run(workspace, pipeline)  # is batch 3
    broken(workspace, pipeline, source)
    position = only(steps(workspace, pipeline, "kafka"))
    assert (position.verdict.value, position.again) == ("WILL_DUPLICATE", {"offsets": 5})


@pytest.mark.parametrize("kind", ["kafka", "delta"])
def test_a_history_without_batches(workspace: FakeWorkspace, kind: Kind) -> None:
    """Whether the history of a streaming table names queries and batches is not established."""
    pipeline, source = made(workspace, kind, history_names_batches=False)
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, kind)
    position = only(found)
    assert position.options == {OPTIONS[kind]: {"kafka": '{"orders-events": {"0": 12}}', "delta": "12"}[kind]}
    # Kafka: all up to the end may have been read; Delta: nothing was committed before the flow last wrote.
    assert position.verdict.value == ("WILL_DUPLICATE" if kind == "kafka" else "SAFE"), position.reasons
    go(pipeline, found)
    assert rows_of(workspace) == (15, 15)


@pytest.mark.parametrize(("margin", "again"), [(None, 4), (timedelta(0), 0), (timedelta(hours=2), 8)])
def test_delta_by_time(workspace: FakeWorkspace, margin: timedelta | None, again: int) -> None:
    pipeline, source = made(workspace, "delta")
    pipeline.events.metrics.clear()
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, "delta", margin=margin)
    position = only(found)
    assert position.how == "time"
    assert position.verdict.value == ("WILL_DUPLICATE" if again else "SAFE"), position.reasons
    assert position.again == ({"versions": again, "rows": again} if again else {})
    go(pipeline, found)
    assert rows_of(workspace) == (15 + again, 15)


@pytest.mark.parametrize("append_time", [True, False])
@pytest.mark.parametrize("margin", [None, timedelta(minutes=30)])
def test_kafka_by_time(workspace: FakeWorkspace, append_time: bool, margin: timedelta | None) -> None:
    pipeline, source = made(workspace, "kafka")
    source.append_time = append_time
    pipeline.events.metrics.clear()
    broken(workspace, pipeline, source)
    position = only(steps(workspace, pipeline, "kafka", margin=margin))
    assert (position.how, position.again) == ("time", {"offsets": 7})
    # The producers' times may be late, unless somebody says by how much.
    unsure = not append_time and margin is None
    assert ("CreateTime" in " ".join(position.reasons)) is not append_time
    assert {r for r in position.judgements if r.verdict.value == "UNKNOWN"} != set() if unsure else True
    assert position.verdict.value == "WILL_DUPLICATE"
    without = only(steps(workspace, pipeline, "kafka", kafka=False))
    assert (list(without.options), without.verdict.value) == (["startingTimestamp"], "UNKNOWN")


def test_files_that_auto_loader_has_read(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "files")
    source.add(workspace.clock.now() - timedelta(hours=2), id="late")
    broken(workspace, pipeline, source)
    default = only(steps(workspace, pipeline, "files"))
    assert (default.how, default.verdict.value, default.again) == ("file state", "WILL_DUPLICATE", {"files": 4})
    assert "say how late it may be (margin)" in " ".join(default.reasons)
    found = steps(workspace, pipeline, "files", margin=timedelta(0))
    position = only(found)
    assert position.options == {"modifiedAfter": position.options["modifiedAfter"]}
    assert position.again == {"files": 4}, "the files that are newer than the late one"
    go(pipeline, found)
    assert rows_of(workspace) == (20, 16), "the late file is read too"


@pytest.mark.parametrize("other", ["reads", "paths"])
def test_files_by_time_where_their_state_cannot_be_read(workspace: FakeWorkspace, other: str) -> None:
    pipeline, source = made(workspace, "files")
    broken(workspace, pipeline, source)
    if other == "reads":
        workspace.tables.refuse["cloud_files_state"] = "commit_time is in private preview"
    else:
        state = workspace.tables.file_state
        workspace.tables.file_state = lambda table: [
            {**row, "path": f"/landing/orders/x{row['path']}"} for row in state(table)
        ]
    position = only(steps(workspace, pipeline, "files", margin=timedelta(minutes=30)))
    assert (position.how, position.verdict.value) == ("time", "UNKNOWN")
    assert "an unknown amount may be read again" in " ".join(position.reasons)


def test_a_table_that_was_made_again(workspace: FakeWorkspace) -> None:
    """The vendor's symptom: the source was recreated; a version of the old table means nothing in the new one."""
    pipeline, source = made(workspace, "delta")
    source.recreate()
    land(workspace, source, 14)
    run(workspace, pipeline)
    assert "DIFFERENT_DELTA_TABLE" in str(pipeline.events.events)
    for metrics in (True, False):
        if not metrics:
            pipeline.events.metrics.clear()
        position = only(steps(workspace, pipeline, "delta"))
        assert (position.verdict.value, position.options) == ("UNKNOWN", {})
        assert "another table than the one that was read" in " ".join(position.reasons)


@pytest.mark.parametrize("vacuum", [True, False])
def test_files_that_vacuum_may_have_removed(workspace: FakeWorkspace, vacuum: bool) -> None:
    """A history shows the versions, and not whether the files of those that were rewritten are still there."""
    pipeline, source = made(workspace, "delta")
    broken(workspace, pipeline, source)
    read = workspace.tables.outside

    def maintained(name: str) -> tuple[str, list[Version]] | None:
        found = read(name)
        if found is None:
            return None
        table_id, versions = found
        last, more = versions[-1], ["OPTIMIZE", *(["VACUUM START", "VACUUM END"] if vacuum else [])]
        return table_id, versions + [Version(last.number + 1 + i, last.time, op, []) for i, op in enumerate(more)]

    workspace.tables.outside = maintained
    position = only(steps(workspace, pipeline, "delta"))
    unknown = [j.reason for j in position.judgements if j.verdict.value == "UNKNOWN"]
    assert [("VACUUM ran since" in reason) for reason in unknown] == [True] * vacuum
    assert any(reason.startswith(TABLE_READ) for reason in position.reasons) is not vacuum


@pytest.mark.parametrize("what", ["full refresh", "TRUNCATE", "DELETE", "RESTORE", "overwrite", "no warehouse"])
@pytest.mark.parametrize("metrics", [True, False], ids=["by progress", "by time"])
def test_rows_that_may_be_gone_make_it_unknown(workspace: FakeWorkspace, what: str, metrics: bool) -> None:
    pipeline, source = made(workspace, "delta")
    table = "main.sales.orders"
    broken(workspace, pipeline, source)
    if not metrics:
        pipeline.events.metrics.clear()
    if what == "full refresh":
        pipeline.flows["orders"].analysis_error = None
        pipeline.when["RESETTING"] = lambda p: p.stop()
        pipeline.start({"full_refresh_selection": ["orders"]})
        pipeline.advance()
    elif what == "overwrite":
        workspace.tables.replace(table, workspace.rows(table)[:3], "WRITE")
        workspace.tables.history[table][-1].parameters["mode"] = "Overwrite"  # type: ignore[index]
    elif what == "RESTORE":
        workspace.tables.execute(f"RESTORE TABLE {table} TO VERSION AS OF 1")
    elif what != "no warehouse":
        workspace.tables.execute(f"DELETE FROM {table} WHERE id < 'o0003'")
        workspace.tables.history[table][-1] = workspace.tables.history[table][-1]
    position = only(steps(workspace, pipeline, "delta", warehouse=what != "no warehouse"))
    assert any(j.verdict.value == "UNKNOWN" for j in position.judgements), position.reasons
    assert position.verdict.value != "SAFE"


def test_a_checkpoint_that_is_not_known_has_written_since(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "kafka")
    pipeline.progress_lost.add("orders")
    pipeline.start({"reset_checkpoint_selection": ["main.sales.orders"]})
    pipeline.advance()
    broken(workspace, pipeline, source)
    position = only(steps(workspace, pipeline, "kafka"))
    assert "written since by another checkpoint" in " ".join(position.reasons)
    assert position.verdict.value != "SAFE"


def test_offsets_that_kafka_has_no_more(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "kafka")
    broken(workspace, pipeline, source)
    source.expire_before(14)
    position = only(steps(workspace, pipeline, "kafka"))
    assert (position.verdict.value, position.reasons[0]) == (
        "WILL_LOSE",
        "orders-events-0: 2 offsets from 12 on are gone",
    )
    source.recreate()
    land(workspace, source, 3)
    position = only(steps(workspace, pipeline, "kafka"))
    assert position.verdict.value == "UNKNOWN"
    assert "it is another topic than the one that was read" in position.reasons[0]


def test_a_topic_that_was_made_again_and_has_grown(workspace: FakeWorkspace) -> None:
    """Its offsets go beyond those that were read: only the times of its records tell."""
    pipeline, source = made(workspace, "kafka")
    broken(workspace, pipeline, source)
    source.recreate()
    workspace.clock.advance(hours=5)
    land(workspace, source, 40)
    position = only(steps(workspace, pipeline, "kafka"))
    assert position.verdict.value == "UNKNOWN"
    assert "records before 12 are newer than the batch that read them" in position.reasons[0]


def test_a_version_that_is_not_committed_yet(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "delta")
    broken(workspace, pipeline, source, unread=0)
    position = only(steps(workspace, pipeline, "delta"))
    assert (position.verdict.value, position.options) == ("WILL_FAIL", {"startingVersion": "12"})
    source.expire_before(5)
    assert only(steps(workspace, pipeline, "delta")).options == {"startingVersion": "12"}


def test_state_is_not_brought_back(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "kafka")
    broken(workspace, pipeline, source)
    for stateful, verdict in ((True, "UNKNOWN"), (False, "SAFE"), (None, "SAFE")):
        position = only(steps(workspace, pipeline, "kafka", stateful=stateful))
        assert position.verdict.value == verdict, (stateful, position.reasons)
    pipeline.events.metrics.clear()
    assert "keeps state" in " ".join(only(steps(workspace, pipeline, "kafka", stateful=None)).reasons)


def test_several_flows_into_one_table(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "kafka")
    other = workspace.add_source("other-events", "kafka")
    pipeline.flows["second"] = Flow(
        "second", "orders", ("other-events",), start_in_code={"startingOffsets": "earliest"}
    )
    land(workspace, other, 2)
    run(workspace, pipeline)
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, "kafka")
    assert (found.flows[0].flow, only(found).verdict.value) == ("main.sales.orders", "SAFE"), only(found).reasons
    go(pipeline, found)
    assert rows_of(workspace)[0] == 17


def two_topics(workspace: FakeWorkspace) -> Pipeline:
    """A flow that reads two topics, 12 rows of each, and has 3 more to read of the second one."""
    for name in ("east", "west"):
        workspace.add_source(name, "kafka")
    flow = Flow("orders", "orders", ("east", "west"), start_in_code={"startingOffsets": "earliest"})
    pipeline = workspace.add_pipeline("sales", datasets=[Dataset("orders")], flows=[flow])
    for name in ("east", "west"):
        land(workspace, workspace.sources[name], 12)
    workspace.clock.advance(minutes=10)
    run(workspace, pipeline)
    broken(workspace, pipeline, workspace.sources["west"])
    return pipeline


def kafka_of_both(workspace: FakeWorkspace, topics: Sequence[str]) -> KafkaState:
    each = [kafka_of(workspace, [topic]) for topic in topics]
    return KafkaState(
        {topic: offsets for state in each for topic, offsets in state.earliest.items()},
        {topic: offsets for state in each for topic, offsets in state.latest.items()},
        True,
        lambda time: {topic: offsets for state in each for topic, offsets in state.at(time).items()},
    )


def found_in_both(workspace: FakeWorkspace, pipeline: Pipeline, sources: dict[str, str] | None) -> RecoverySteps:
    hook = DatabricksPipelinesHook()
    name = "main.sales.orders"
    keys = {f"{topic}.startingOffsets": f"{topic}.offsets" for topic in ("east", "west")}
    queries = warehouse_queries(hook, WAREHOUSE, sleep=lambda _: None)
    readers = Readers(queries, lambda topics: kafka_of_both(workspace, topics))
    about = AboutFlow(sources, keys | {"startingOffsets": "offsets"}, "python", stateful=False)
    return recovery_steps(hook, examine(hook, pipeline.pipeline_id), readers, flows=[name], about={name: about})


@pytest.mark.parametrize("sources", [{}, {"east": "kafka", "west": "kafka"}, {"east": "", "west|w.*": ""}])
def test_each_reported_source_gets_a_position(workspace: FakeWorkspace, sources: dict[str, str]) -> None:
    pipeline = two_topics(workspace)
    positions = found_in_both(workspace, pipeline, sources).flows[0].positions
    assert [(p.verdict.value, p.options) for p in positions] == [
        ("SAFE", {"startingOffsets": '{"east": {"0": 12}}'}),
        ("SAFE", {"startingOffsets": '{"west": {"0": 12}}'}),
    ], [p.reasons for p in positions]


@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        (
            {"east": "kafka"},
            "reports 2 sources (KafkaV2[Subscribe[east]], KafkaV2[Subscribe[west]]), and 1 are known (east)",
        ),
        ({"east": "", "west": "", "north": ""}, "reports 2 sources"),
        ({"west": "kafka", "east": "kafka"}, "KafkaV2[Subscribe[east]] stands where west (kafka) is named"),
        ({"east": "kafka", "lake.raw.orders": "delta"}, "stands where lake.raw.orders (delta) is named"),
        ({"east": "", "lake.raw.orders": ""}, "stands where lake.raw.orders (kafka) is named"),
    ],
)
def test_sources_that_the_newest_batch_does_not_report_are_unknown(
    workspace: FakeWorkspace, sources: dict[str, str], reason: str
) -> None:
    found = found_in_both(workspace, two_topics(workspace), sources)
    for position in found.flows[0].positions:
        assert (position.verdict.value, position.options) == ("UNKNOWN", {})
        assert reason in position.reasons[0]
    assert found.verdict.value == "UNKNOWN"


def test_a_single_source_of_another_name_is_unknown(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "kafka")
    broken(workspace, pipeline, source)
    assert only(steps(workspace, pipeline, "kafka")).verdict.value == "SAFE"
    assert only(steps(workspace, pipeline, "kafka", sources={"other-events": "kafka"})).verdict.value == "UNKNOWN"


def test_the_operator_gives_the_arguments_of_the_reset(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "delta")
    broken(workspace, pipeline, source)
    about = {
        "main.sales.orders": {
            "sources": [NAMES["delta"]],
            "carried_by": {"startingVersion": "orders.startingVersion"},
            "language": "python",
            "keys": ["id"],
            "stateful": False,
        }
    }
    seen = len(workspace.requests)
    found = Task(
        lambda: PipelinePositionsOperator(
            task_id="find", pipeline_id=pipeline.pipeline_id, warehouse_id=WAREHOUSE, about=about, poll_interval=0.001
        )
    ).attempt()
    assert {r.method for r in workspace.requests[seen:] if "/sql/" not in r.path} == {"GET"}
    assert found["flows"] == ["main.sales.orders"]
    step = found["steps"][0]
    assert step["failure"].startswith("[STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA]")
    assert step["carried"] == {"by": "configuration", "keys": {"orders.startingVersion": "12"}}
    for words in ("1. **Identify.**", "2. **Position**", "3. **Carried**", "4. **Reset**", "5. **Verify**"):
        assert words in found["markdown"]
    reset = {name: found[name] for name in ("flows", "starting_positions", "configuration", "parameters")}
    Task(
        lambda: ResetCheckpointOperator(
            task_id="reset", pipeline_id=pipeline.pipeline_id, mode="apply", poll_interval=0.001, **reset
        )
    ).attempt()
    counted = Task(
        lambda: TableCheckOperator(task_id="check", tables=found["checks"], warehouse_id=WAREHOUSE, poll_interval=0.001)
    ).attempt()
    assert counted["tables"]["main.sales.orders"] == {"rows": 15, "doubled": 0}


def test_sql_flows_get_parameters(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "delta")
    pipeline.flows["orders"].language = "sql"
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, "delta", language="sql")
    assert (found.parameters, found.configuration) == ({"orders.startingVersion": "12"}, {})
    assert found.verdict.value == "UNKNOWN"
    assert "only this update has the parameter orders.startingVersion" in found.plan.reasons[0]
    pipeline.parameters = {"orders.startingVersion": "12"}
    assert steps(workspace, pipeline, "delta", language="sql").verdict.value == "SAFE", "later updates have it too"
    pipeline.parameters = {}
    go(pipeline, found)
    assert rows_of(workspace) == (15, 15)
    assert not workspace.asked("PUT")


def test_sql_flows_that_read_the_configuration(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "files")
    pipeline.flows["orders"].language = "sql"
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, "files", language="sql", carried_in="configuration", margin=timedelta(0))
    assert (found.verdict.value, found.parameters, list(found.configuration)) == ("SAFE", {}, ["orders.modifiedAfter"])
    go(pipeline, found)
    run(workspace, pipeline)
    assert rows_of(workspace) == (15, 15)


def test_keys_that_nobody_has_said_the_code_reads(workspace: FakeWorkspace) -> None:
    pipeline, source = made(workspace, "delta")
    broken(workspace, pipeline, source)
    found = steps(workspace, pipeline, "delta", carried_by={})
    assert (only(found).verdict.value, found.verdict.value) == ("SAFE", "UNKNOWN")
    assert found.configuration == {"orders.startingVersion": "12"}
    assert "see that the deployed code reads them" in found.to_markdown()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"about": {"nosuch": {}}}, "about names flow nosuch, which is not reset"),
        ({"about": {"main.sales.orders": {"colour": "red"}}}, "about has 'main.sales.orders'"),
        ({"about": "no json"}, "about is 'no json'"),
        ({"about": {"main.sales.orders": {"target": "upsert"}}}, "target is 'upsert'"),
        ({"about": {"main.sales.orders": {"language": "scala"}}}, "the language of flow main.sales.orders is 'scala'"),
        ({"margin": "soon"}, "margin is 'soon'"),
        ({"margin": -1.0}, "margin is -1.0"),
    ],
)
def test_bad_input(workspace: FakeWorkspace, given: dict[str, Any], message: str) -> None:
    pipeline, source = made(workspace, "delta")
    broken(workspace, pipeline, source)
    with pytest.raises(AirflowFailException, match=message):
        Task(lambda: PipelinePositionsOperator(task_id="find", pipeline_id=pipeline.pipeline_id, **given)).attempt()


def test_nothing_has_failed(workspace: FakeWorkspace) -> None:
    pipeline, _ = made(workspace, "delta")
    with pytest.raises(AirflowFailException, match="no flow of its newest update has failed"):
        Task(lambda: PipelinePositionsOperator(task_id="find", pipeline_id=pipeline.pipeline_id)).attempt()


def random_history(workspace: FakeWorkspace, seed: int) -> dict[str, Any]:
    """A random life of a flow, a recovery from the position that is found, and what became of the rows."""
    chance = random.Random(seed)
    kind: Kind = chance.choice(["kafka", "delta", "files"])
    workspace.sources.clear()
    workspace.pipelines.clear()
    source = workspace.add_source(NAMES[kind], kind)
    start = {"startingOffsets": "earliest"} if kind == "kafka" else {}
    schema = f"s{seed}"
    pipeline = workspace.add_pipeline(
        "sales",
        schema=schema,
        datasets=[Dataset("orders")],
        flows=[Flow("orders", "orders", (NAMES[kind],), start_in_code=start)],
        history_names_batches=chance.random() < 0.7,
        progress_as_text=chance.random() < 0.3,
    )
    for _ in range(chance.randrange(1, 6)):
        land(workspace, source, chance.randrange(0, 5))
        workspace.clock.advance(minutes=chance.choice([0, 1, 30, 90]))
        pipeline.progress_lost = {"orders"} if chance.random() < 0.3 else set()
        if chance.random() < 0.15:
            # Rows that arrive while the update runs, before or after the flow reads.
            pipeline.when[chance.choice(["INITIALIZING", "RUNNING"])] = lambda p: land(workspace, source, 1)
        run(workspace, pipeline)
    if chance.random() < 0.3:
        pipeline.events.metrics.clear()
    if chance.random() < 0.1:
        source.recreate()
    elif chance.random() < 0.15:
        workspace.tables.execute(f"DELETE FROM main.{schema}.orders WHERE id < 'o0002'")
    before = [row["id"] for row in workspace.tables.rows(f"main.{schema}.orders")]
    broken(workspace, pipeline, source, unread=chance.randrange(0, 5)) if source.rows or before else None
    if pipeline.flows["orders"].checkpoint is None:
        return {"verdict": "nothing"}
    margin = chance.choice([None, timedelta(0), 30 * MINUTES])
    found = steps(workspace, pipeline, kind, margin=margin)
    position = only(found)
    known = {"verdict": position.verdict.value, "kind": kind, "how": position.how, "seed": seed}
    if position.verdict.value not in ("SAFE", "WILL_DUPLICATE"):
        return known
    unsure = any(j.verdict.value == "UNKNOWN" for j in position.judgements)
    go(pipeline, found)
    ids = [row["id"] for row in workspace.rows(f"main.{schema}.orders")]
    lost = {row.values["id"] for row in source.kept()} - set(ids)
    doubled = len(ids) - len(set(ids))
    forecast = max((position.again or {}).values(), default=0)
    return known | {"lost": len(lost), "doubled": doubled, "forecast": forecast, "unsure": unsure}


def see(found: dict[str, Any]) -> None:
    if found["verdict"] not in ("SAFE", "WILL_DUPLICATE"):
        return
    assert found["lost"] == 0 or found["unsure"], found
    assert found["doubled"] <= found["forecast"], found
    if found["verdict"] == "SAFE":
        assert (found["lost"], found["doubled"]) == (0, 0), found


def test_safe_is_never_wrong_in_random_histories(workspace: FakeWorkspace) -> None:
    found = [random_history(workspace, seed) for seed in range(25)]
    for each in found:
        see(each)
    assert {"SAFE", "WILL_DUPLICATE", "UNKNOWN"} <= {each["verdict"] for each in found}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_safe_is_never_wrong_in_many_random_histories(
    workspace: FakeWorkspace, capsys: pytest.CaptureFixture[str]
) -> None:
    counted: dict[str, int] = {}
    for seed in range(1000, 1500):
        each = random_history(workspace, seed)
        workspace.requests.clear()
        see(each)
        counted[each["verdict"]] = counted.get(each["verdict"], 0) + 1
    with capsys.disabled():
        print(f"\npositions of {sum(counted.values())} random histories: {counted}")
