"""Positions that are found: what the event log, histories, files and offsets tell, and the rows that a reset from there gives."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from airflow_ckpt_provider.guards.delta_start import TABLE_READ
from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.lakeflow.evidence import KafkaState
from airflow_ckpt_provider.lakeflow.examine import examine
from airflow_ckpt_provider.lakeflow.gathering import Readers
from airflow_ckpt_provider.lakeflow.queries import warehouse_queries
from airflow_ckpt_provider.lakeflow.recovery_steps import AboutFlow, RecoverySteps, recovery_steps
from tests.fake_databricks import WAREHOUSE, Dataset, FakeWorkspace, Flow
from tests.fake_databricks.pipelines import Pipeline
from tests.fake_databricks.sources import Kind
from tests.fake_databricks.tables import Version
from tests.support.found_positions import OPTIONS, broken, go, kafka_of, land, made, only, rows_of, run, steps


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
