"""A sink by its name in Unity Catalog: judged by DESCRIBE HISTORY where its log cannot be read, restored by the warehouse.

The table is one of the fake workspace, with real rows and versions. What Delta's streaming sink does is repeated here: a batch
that the table remembers of its query is skipped silently, and RESTORE leaves that memory standing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_ckpt_provider.lakeflow import queries
from airflow_ckpt_provider.operators.rewind import CheckpointRewindOperator
from airflow_ckpt_provider.operators.undo import CheckpointUndoOperator
from airflow_ckpt_provider.storage.opening import open_location
from tests.fake_databricks import WAREHOUSE, FakeWorkspace
from tests.fake_databricks.errors import ApiError
from tests.fake_databricks.tables import SqlFailed
from tests.support.backups import stream
from tests.support.checkpoints import plant
from tests.support.command_line import Finished, run
from tests.support.delta_batches import batches_in, delta_table
from tests.support.every_run import of_these
from tests.support.lakeflow_shell import shell as shell

NAME = "main.sales.orders"
NEWEST = 6
COLUMNS = {"batch": "BIGINT", "value": "BIGINT"}


class Story:
    """A query that has written batches 0 to 6, and the table."""

    def __init__(self, workspace: FakeWorkspace, place: Path) -> None:
        self.workspace, self.place = workspace, place
        self.checkpoint = place / "orders"
        plant(open_location(str(self.checkpoint)), stream(NEWEST))
        self.tables = workspace.tables
        self.tables.create(NAME, COLUMNS)
        self.at("/nowhere")
        self.memory: dict[str, int] = {}
        self.first_id = self.query_id
        self.run(range(NEWEST + 1), value=1)

    def at(self, location: str, **about: str) -> None:
        """Where Unity Catalog says that the table lies, and what else it says."""
        self.tables.catalog[NAME] = {"table_type": "MANAGED", "storage_location": location, **about}

    @property
    def query_id(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])

    def run(self, batches: Sequence[int], *, value: int, query_id: str | None = None) -> None:
        """Write batches as Delta's sink does: one that the table remembers is skipped silently."""
        query_id = query_id or self.query_id
        for batch in batches:
            if batch > self.memory.get(query_id, -1):
                about = {"outputMode": "Append", "queryId": query_id, "epochId": str(batch)}
                self.tables.append(NAME, [{"batch": batch, "value": value}] * 2, "STREAMING UPDATE", about)
                self.memory[query_id] = batch

    def others(self, name: str = NAME, operation: str = "WRITE") -> None:
        """Somebody else writes a row."""
        self.tables.append(name, [{"batch": 99, "value": 99}], operation, {"mode": "Append"})

    def rows(self) -> Counter[tuple[int, int]]:
        return Counter((row["batch"], row["value"]) for row in self.tables.rows(NAME))

    def rewind(self, *more: object, sink: object = NAME, apply: bool = True) -> Finished:
        go = ("--query-is-stopped", "--quiet-for", 0, "--accept", "source_loss", "--apply") if apply else ()
        how = ("--sink", sink, "--sink-policy", "rollback", "--warehouse", WAREHOUSE)
        return run("rewind", self.checkpoint, "--to-batch", 3, *how, *go, *more, "--json")

    def undo(self, *more: object) -> Finished:
        how = ("--sink", NAME, "--warehouse", WAREHOUSE, "--query-is-stopped", "--quiet-for", 0)
        return run("undo", self.checkpoint, *how, *more, "--json")

    @property
    def restores(self) -> list[str]:
        said = [str(s.body["statement"]) for s in self.workspace.statements.all.values()]
        return [statement for statement in said if statement.startswith("RESTORE")]


@pytest.fixture
def story(workspace: FakeWorkspace, shell: Path, monkeypatch: pytest.MonkeyPatch) -> Story:
    monkeypatch.setattr(queries, "_FIRST", 0.001)
    return Story(workspace, shell)


def exactly(batches: range, value: int) -> Counter[tuple[int, int]]:
    return Counter({(batch, value): 2 for batch in batches})


FIXED = exactly(range(4), 1) + exactly(range(4, NEWEST + 1), 2)


def test_back_forward_and_back_again_row_exact(story: Story) -> None:
    """The control: without the new query id the table skips the replay, and its rows are missing."""
    before = story.rows()
    planned = story.rewind(apply=False)
    assert planned.code == 0, planned.err
    document = planned.document
    assert document["sink"]["kind"] == "unity"
    assert document["sink"]["rollback"]["how"].startswith(f"RESTORE TABLE {NAME} TO VERSION AS OF 4 by Unity Catalog")
    assert any("judged by DESCRIBE HISTORY, and rolled back by RESTORE TABLE" in note for note in document["notes"])
    assert story.restores == []
    done = story.rewind()
    assert done.code == 0, done.err
    assert story.rows() == exactly(range(4), 1)
    assert story.query_id != story.first_id
    undone = story.undo()
    assert undone.code == 0, undone.err
    assert (story.rows(), story.query_id) == (before, story.first_id)
    again = story.rewind()
    assert again.code == 0, again.err
    assert story.restores == [f"RESTORE TABLE `main`.`sales`.`orders` TO VERSION AS OF {v}" for v in (4, 7, 4)]
    story.run(range(4, NEWEST + 1), value=2, query_id=story.first_id)
    assert story.rows() == exactly(range(4), 1), "the control: the old id is skipped"
    story.run(range(4, NEWEST + 1), value=2)
    assert story.rows() == FIXED


@pytest.mark.slow
def test_by_an_airflow_connection(story: Story) -> None:
    about: dict[str, Any] = {
        "checkpoint": str(story.checkpoint),
        "sink": NAME,
        "databricks_conn_id": "databricks_default",
        "warehouse_id": WAREHOUSE,
        "query_is_stopped": True,
        "quiet_for": 0,
    }
    rewind = CheckpointRewindOperator(
        task_id="rewind",
        to="to_batch",
        value=3,
        sink_policy="rollback",
        accept=["source_loss"],
        mode="apply",
        **about,
    )
    assert rewind.execute({})["outcome"]["batch_id"] == 3
    assert story.rows() == exactly(range(4), 1)
    CheckpointUndoOperator(task_id="undo", **about).execute({})
    assert story.rows() == exactly(range(NEWEST + 1), 1)


def test_a_log_that_can_be_read_is_read(story: Story) -> None:
    """Where the location can be read, the table is a sink as any other, and no warehouse is asked."""
    table = delta_table(story.place / "table", range(NEWEST + 1), app_id=story.query_id)
    story.at(table.uri)
    done = story.rewind()
    assert done.code == 0, done.err
    assert f"{NAME} lies at {table.uri} (Unity Catalog)" in done.out or not story.workspace.statements.all
    assert batches_in(table) == sorted([*range(4), *range(4)])
    assert story.query_id == story.first_id
    assert story.workspace.statements.all == {}


@pytest.mark.slow
def test_a_table_whose_catalog_keeps_its_commits_is_never_judged_by_its_log(story: Story) -> None:
    table = delta_table(story.place / "table", range(NEWEST + 1), app_id=story.query_id)
    story.at(table.uri)
    story.tables.properties[NAME] = {"delta.feature.catalogManaged": "supported"}
    found = story.rewind(apply=False).document
    assert found["sink"]["kind"] == "unity"
    assert any("catalogManaged: its newest versions may not be in its log" in note for note in found["notes"])


@pytest.mark.parametrize(
    ("what", "said", "next_step"),
    of_these(
        [
            ({"table_type": "VIEW"}, "is a view", "name the table that the query writes to"),
            ({"table_type": "METRIC_VIEW"}, "is a metric view", "name the table"),
            ({"table_type": "MATERIALIZED_VIEW"}, "is a materialized view", "pipelines"),
            ({"table_type": "STREAMING_TABLE"}, "is a streaming table", "airflow-ckpt pipelines"),
            ({"table_type": "FOREIGN"}, "is a foreign table", "in the system that keeps it"),
            ({"table_type": "SOMETHING"}, "of the type SOMETHING", "name a Delta table"),
            ({"data_source_format": "ICEBERG"}, "of the format ICEBERG", f"iceberg:{NAME}"),
            ({"data_source_format": "PARQUET"}, "of the format PARQUET", "name a Delta table"),
            ({"pipeline_id": "p-1"}, "is written by pipeline p-1", "airflow-ckpt pipelines"),
        ],
        ({"table_type": "VIEW"}, "is a view", "name the table that the query writes to"),
    ),
)
def test_what_is_no_table_of_a_query(story: Story, what: dict[str, str], said: str, next_step: str) -> None:
    story.at("/nowhere", **what)
    finished = story.rewind()
    assert finished.code != 0
    assert said in finished.err
    assert next_step in finished.err
    assert story.restores == []


@pytest.mark.parametrize(
    ("sink", "said", "next_step"),
    of_these(
        [
            ("main.sales.nothing", "Table 'main.sales.nothing' does not exist", "UNDROP"),
            ("sales.orders", "has 2 parts", "CATALOG.SCHEMA.TABLE"),
            ("unity:sales", "does not name a table", "unity:main.sales.orders"),
            ("main.secret.orders", "User does not have USE SCHEMA", "grant the login USE CATALOG"),
            ("spark:sales.orders", "nothing is configured that knows tables by spark:", "--spark-submit"),
        ],
        ("main.secret.orders", "User does not have USE SCHEMA", "grant the login USE CATALOG"),
    ),
)
def test_names_that_are_not_found(story: Story, sink: str, said: str, next_step: str) -> None:
    story.workspace.hidden.add("main.secret.orders")
    finished = story.rewind(sink=sink)
    assert finished.code != 0
    assert said in finished.err
    assert next_step in finished.err


@pytest.mark.slow
def test_a_name_that_is_a_directory_too(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(story.place)
    (story.place / NAME).mkdir()
    (story.place / NAME / "part").write_text("x")
    finished = story.rewind()
    assert "is a directory here, and may be the name of a table" in finished.err
    assert f"./{NAME}" in finished.err
    assert story.rewind(sink=f"unity:{NAME}", apply=False).code == 0


@pytest.mark.slow
def test_several_catalogs_may_know_it(story: Story) -> None:
    finished = story.rewind("--spark-submit", "spark-submit")
    assert "may be a table of several catalogs" in finished.err
    assert f"unity:{NAME} or spark:{NAME}" in finished.err


@pytest.mark.slow
def test_a_name_that_nothing_is_configured_for(story: Story) -> None:
    finished = run("rewind", story.checkpoint, "--to-batch", 3, "--sink", NAME, "--sink-policy", "rollback")
    assert "looks like the name of a table, and nothing is configured that knows it" in finished.err
    assert "--warehouse" in finished.err


@pytest.mark.slow
def test_no_warehouse(story: Story) -> None:
    finished = run("rewind", story.checkpoint, "--to-batch", 3, "--sink", f"unity:{NAME}", "--sink-policy", "rollback")
    assert "no SQL warehouse is named" in finished.err
    assert "--warehouse" in finished.err


# What a history does not show


def verdict(story: Story, *more: object, batch: int = NEWEST) -> dict[str, Any]:
    how = ("--sink", NAME, "--warehouse", WAREHOUSE)
    found: dict[str, Any] = run("rewind", story.checkpoint, "--to-batch", batch, *how, *more, "--json").document["sink"]
    return found


def test_all_is_told(story: Story) -> None:
    assert verdict(story)["verdict"] == "SAFE"
    assert verdict(story, batch=3)["verdict"] == "WILL_SKIP"


def test_a_write_of_nobody_known_may_be_a_foreach_batch_of_the_query(story: Story) -> None:
    story.others()
    found = verdict(story)
    assert found["verdict"] == "UNKNOWN"
    assert "may be" in found["reasons"][-1] or "foreachBatch of the query" in found["reasons"][-1]


def test_a_txn_app_id_is_not_told(story: Story) -> None:
    found = verdict(story, "--txn-app-id", "orders")
    assert found["verdict"] == "UNKNOWN"
    assert "does not name the txnAppId" in " ".join(found["reasons"])
    assert story.rewind("--txn-app-id", "orders").code != 0
    assert story.restores == []


@pytest.mark.parametrize("kept", of_these([3, 6], 6))
def test_a_history_that_retention_has_cut_off(story: Story, kept: int) -> None:
    """Batch 3 is in version 4: with versions 3 on its rows are told, with versions 6 on nothing of it is."""
    story.tables.history[NAME] = [v for v in story.tables.history[NAME] if v.number >= kept]
    if kept == 3:
        assert story.rewind().code == 0
        assert story.rows() == exactly(range(4), 1)
        return
    finished = story.rewind()
    assert finished.code != 0
    assert "begins at version 6" in finished.err
    assert story.restores == []


@pytest.mark.slow
def test_a_batch_without_a_query_id(story: Story) -> None:
    """Whether Databricks names query and batch of every STREAMING UPDATE is not established."""
    story.tables.append(NAME, [{"batch": 7, "value": 1}], "STREAMING UPDATE", {"outputMode": "Append"})
    assert verdict(story)["verdict"] == "UNKNOWN"
    assert "names neither query nor batch of version 8" in story.rewind().err
    assert story.restores == []


@pytest.mark.slow
def test_an_append_only_table(story: Story) -> None:
    story.tables.properties[NAME] = {"delta.appendOnly": "true"}
    assert "append-only" in story.rewind().err
    assert story.restores == []


@pytest.mark.slow
def test_settings_that_a_restore_takes_back_have_to_be_accepted(story: Story) -> None:
    story.tables.replace(NAME, story.tables.rows(NAME), "SET TBLPROPERTIES")
    refused = story.rewind()
    assert "foreign_loss" in refused.err
    assert "SET TBLPROPERTIES of version 8" in refused.err
    assert story.rewind("--accept", "foreign_loss").code == 0


# Enemies


def after_plan(story: Story, do: Any) -> None:
    """Something happens after the plan was made: with the first statement of the second look."""
    looks = {"left": 2}

    def seen(statement: Any) -> None:
        if "DESCRIBE DETAIL" in str(statement):
            looks["left"] -= 1
            if looks["left"] == 0:
                do()

    execute = story.tables.execute

    def watched(statement: str, *args: Any) -> Any:
        seen(statement)
        return execute(statement, *args)

    story.tables.execute = watched  # type: ignore[method-assign]


@pytest.mark.parametrize("what", of_these(["renamed", "made again", "written"], "made again"))
def test_the_table_of_the_plan_is_not_there_any_more(story: Story, what: str) -> None:
    def other() -> None:
        if what == "written":
            story.others()
            return
        if what == "renamed":
            story.tables.rename(NAME, "main.sales.old_orders")
        else:
            story.tables.drop(NAME)
        story.tables.create(NAME, COLUMNS)
        for batch in range(NEWEST + 1):
            about = {"queryId": story.first_id, "epochId": str(batch)}
            story.tables.append(NAME, [{"batch": batch, "value": 5}] * 2, "STREAMING UPDATE", about)

    after_plan(story, other)
    finished = story.rewind()
    assert finished.code != 0
    said = {"written": "somebody wrote into it (version 8 (WRITE by etl@example.com"}.get(what, "is another table now")
    assert said in finished.err
    assert story.restores == []
    assert story.query_id == story.first_id


@pytest.mark.parametrize("puts_back", of_these([True, False], True))
def test_somebody_writes_at_the_moment_of_the_restore(story: Story, puts_back: bool) -> None:
    """RESTORE takes no condition: the lost rows are given back, and the writer is named."""
    times = []

    def between(name: str) -> None:
        times.append(name)
        if len(times) == 1:
            story.others()
        elif not puts_back:
            raise SqlFailed("[CANNOT_RESTORE] the warehouse is gone")

    story.tables.before_change = between
    before = story.rows()
    finished = story.rewind()
    assert finished.code != 0
    assert "somebody wrote version 8 (WRITE by etl@example.com" in finished.err
    assert story.query_id == story.first_id
    if puts_back:
        assert story.rows() == before + Counter({(99, 99): 1})
        story.tables.before_change = lambda name: None
        assert story.rewind("--accept", "foreign_loss").code == 0
        return
    assert "RESTORE TABLE main.sales.orders TO VERSION AS OF 8" in finished.err
    assert "sealed" in run("status", story.checkpoint).out
    again = story.rewind()
    assert again.code != 0
    assert "took out rows that somebody wrote just before" in again.err, "what was changed must not be denied"
    undone = story.undo()
    assert undone.code != 0
    assert "took out rows that somebody wrote just before" in undone.err
    story.tables.before_change = lambda name: None
    story.tables.execute("RESTORE TABLE main.sales.orders TO VERSION AS OF 8")
    undone = story.undo()
    assert undone.code == 0, undone.err
    assert story.rows() == before + Counter({(99, 99): 1})
    assert "sealed" not in run("status", story.checkpoint).out


@pytest.mark.slow
def test_maintenance_in_between_is_no_writer(story: Story) -> None:
    def optimize(name: str) -> None:
        story.tables.before_change = lambda name: None
        story.tables.replace(NAME, story.tables.rows(NAME), "OPTIMIZE")

    story.tables.before_change = optimize
    assert story.rewind().code == 0
    story.tables.replace(NAME, story.tables.rows(NAME), "OPTIMIZE")
    assert story.undo().code == 0
    assert story.rows() == exactly(range(NEWEST + 1), 1)


@pytest.mark.slow
def test_an_undo_refuses_where_somebody_wrote_since(story: Story) -> None:
    assert story.rewind().code == 0
    story.others()
    finished = story.undo()
    assert finished.code != 0
    assert "was written to since rewind" in finished.err
    assert story.restores == [story.restores[0]]


@pytest.mark.slow
def test_a_clone_is_another_table(story: Story) -> None:
    """A clone has a history of its own, without the query: what it holds is not known."""
    story.tables.execute(f"CREATE TABLE main.sales.copy CLONE {NAME}")
    story.tables.catalog["main.sales.copy"] = {"table_type": "MANAGED", "storage_location": "/nowhere"}
    finished = story.rewind(sink="main.sales.copy")
    assert finished.code != 0
    assert "the table has no commit of the query" in finished.err
    assert story.restores == []


@pytest.mark.slow
@pytest.mark.parametrize("carried_out", [True, False])
def test_a_lost_answer_to_the_restore(story: Story, carried_out: bool) -> None:
    """The statement was sent, and its answer was lost. The history shows whether it was carried out; if not, it may still be."""
    statements = story.workspace.statements
    post, lost = statements.post, []

    def cut_off(body: dict[str, Any]) -> dict[str, Any]:
        if not body["statement"].startswith("RESTORE") or lost:
            return post(body)
        lost.append(post(body))
        statement = statements.all[lost[0]["statement_id"]]
        while carried_out and statement.state in ("PENDING", "RUNNING"):
            statements._step(statement)
        raise ApiError(504, "DEADLINE_EXCEEDED", "Timed out waiting for the upstream server.")

    statements.post = cut_off  # type: ignore[method-assign]
    finished = story.rewind()
    assert len(story.restores) == 1
    assert (finished.code == 0) is carried_out, finished.err
    if not carried_out:
        assert any(story.checkpoint.glob("offsets/*")), "nothing is removed"
        assert "sealed" in run("status", story.checkpoint).out
        # It still waits: an undo that let the query run would lose what this writes until then.
        refused = story.undo()
        assert refused.code != 0
        assert "one that was sent may still wait or run" in refused.err
        assert "sealed" in run("status", story.checkpoint).out
        late = statements.all[lost[0]["statement_id"]]
        while late.state in ("PENDING", "RUNNING"):
            statements._step(late)
        again = story.rewind()
        assert again.code == 0, again.err
        assert len(story.restores) == 1, "it was carried out after all"
    assert story.rows() == exactly(range(4), 1)
    story.run(range(4, NEWEST + 1), value=2)
    assert story.rows() == FIXED
