"""PipelineRefreshOperator: the guard, the copy before, what is brought back, the counts, and the clean-up."""

from __future__ import annotations

import time
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferralError, TaskDeferred

from airflow_ckpt_provider.errors import UnknownStartError
from airflow_ckpt_provider.hooks.databricks_pipelines import DatabricksPipelinesHook
from airflow_ckpt_provider.operators.pipeline_refresh import PipelineRefreshOperator
from tests.fake_databricks import WAREHOUSE, Dataset, FakeWorkspace, Flow, samples, statements
from tests.fake_databricks.pipelines import Pipeline
from tests.support.attempts import Killed, Task

TABLE = "main.customers.customers"
LANDING = "/landing/customers"
ALL = sorted([*(f"c{n:03d}" for n in range(6)), *(f"old{n}" for n in range(3))])
SAFE = {"verdict": "SAFE", "reasons": []}
LOST = {"verdict": "WILL_LOSE", "reasons": ["files 0 to 2 were deleted"]}
COPY = {"backup": "deep_clone", "warehouse_id": WAREHOUSE}


def refresh(pipeline: Pipeline, **fields: Any) -> PipelineRefreshOperator:
    about: dict[str, Any] = {"pipeline_id": pipeline.pipeline_id, "full_refresh_selection": ["customers"]}
    about |= {"guard_report": SAFE, "mode": "apply", "poll_interval": 0.001}
    return PipelineRefreshOperator(task_id="refresh", **{**about, **fields})


@pytest.fixture
def pipeline(workspace: FakeWorkspace) -> Pipeline:
    """Three of the six files that the table was made of are gone."""
    found = samples.customers(workspace)
    workspace.sources[LANDING].expire_before(3)
    return found


def ids(workspace: FakeWorkspace, table: str = TABLE) -> list[str]:
    return sorted(str(row["id"]) for row in workspace.rows(table))


def test_loss_is_refused_unless_accepted_in_so_many_words(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    with pytest.raises(
        AirflowFailException, match="the verdict is WILL_LOSE: source guard: files 0 to 2 were deleted"
    ) as no:
        Task(lambda: refresh(pipeline, guard_report=LOST)).attempt()
    assert "accept='WILL_LOSE'" in str(no.value)
    with pytest.raises(AirflowFailException, match="it is not known whether the sources still have all"):
        Task(lambda: refresh(pipeline, guard_report=None)).attempt()
    with pytest.raises(AirflowFailException, match="accept is 'yes'"):
        Task(lambda: refresh(pipeline, guard_report=LOST, accept="yes")).attempt()
    assert ids(workspace) == ALL
    Task(lambda: refresh(pipeline, guard_report=LOST, accept="WILL_LOSE")).attempt()
    assert ids(workspace) == [each for each in ALL if each not in ("c000", "c001", "c002")]


@pytest.mark.parametrize("events", ["too many", "none"])
def test_all_tables_of_which_not_all_are_known(workspace: FakeWorkspace, pipeline: Pipeline, events: str) -> None:
    everything: dict[str, Any] = {"full_refresh": True, "full_refresh_selection": None}
    assert Task(lambda: refresh(pipeline, mode="plan", **everything)).attempt()["plan"]["verdict"] == "SAFE"
    if events == "none":  # they are older than the workspace keeps them
        pipeline.events.events.clear()
    for _ in range(2001 if events == "too many" else 0):
        pipeline.events.note("user_action", "somebody read it")
    with pytest.raises(AirflowFailException, match="the newest events need not name all of them"):
        Task(lambda: refresh(pipeline, **everything)).attempt()
    assert ids(workspace) == ALL
    Task(lambda: refresh(pipeline, accept="UNKNOWN", **everything)).attempt()
    assert ids(workspace) != ALL


@pytest.mark.parametrize("skipped", [None, {}, "", {"inner": None}], ids=repr)
def test_a_guard_that_was_skipped_is_not_safe(workspace: FakeWorkspace, pipeline: Pipeline, skipped: Any) -> None:
    plan = Task(lambda: refresh(pipeline, mode="plan", guard_report={"orders": SAFE, "customers": skipped})).attempt()
    assert plan["plan"]["verdict"] == "UNKNOWN"
    assert plan["plan"]["reasons"][0].startswith("source guard of customers")
    assert "no report: see why its task has returned none" in plan["plan"]["reasons"][0]


def test_nothing_selected(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    with pytest.raises(AirflowFailException, match="neither full_refresh nor full_refresh_selection is given"):
        Task(lambda: refresh(pipeline, full_refresh_selection=[])).attempt()


def test_a_plan_sends_nothing_but_get(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    workspace.requests.clear()
    result = Task(lambda: refresh(pipeline, mode="plan", backfill="insert", clean_up=30, **COPY)).attempt()
    assert {request.method for request in workspace.requests} == {"GET"}
    assert result["backups"][0]["table"] == TABLE
    assert result["backups"][0]["rows"] is None
    steps = " ".join(result["plan"]["steps"])
    assert "DEEP CLONE `main`.`customers`.`customers` WITH HISTORY ``" in steps
    assert "EXCEPT ALL" in steps
    assert "keep the copies for 30 days" in steps


@pytest.mark.parametrize(
    ("way", "deferrable"),
    [
        ("insert", False),
        ("merge", True),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("insert", True), ("merge", False))),
    ],
)
def test_backup_and_backfill(workspace: FakeWorkspace, pipeline: Pipeline, way: str, deferrable: bool) -> None:
    keys = {"keys": {TABLE: ["id"]}} if way == "merge" else {}
    task = Task(
        lambda: refresh(
            pipeline, guard_report=LOST, accept="WILL_LOSE", backfill=way, deferrable=deferrable, **COPY, **keys
        )
    )
    result = task.attempt()
    assert ids(workspace) == ALL
    (backup,) = result["backups"]
    assert backup["rows"] == len(ALL)
    assert backup["version"] >= 1
    assert ids(workspace, backup["backup"]) == ALL
    assert result["verification"] == [
        {
            "table": TABLE,
            "backup_rows": 9,
            "rows_after_refresh": 6,
            "brought_back": 3,
            "rows": 9,
            "missing": 0,
            "doubled": 0,
            "ok": True,
        }
    ]
    assert result["dropped"] == []


def test_through_a_job(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    job = workspace.add_job("nightly", pipeline)
    result = Task(lambda: refresh(pipeline, job_id=job.job_id)).attempt()
    assert result["plan"]["calls"][0]["body"]["pipeline_params"] == {"full_refresh_selection": ["customers"]}
    assert (result["state"], pipeline.updates[-1].cause) == ("COMPLETED", "JOB_TASK")
    assert len(ids(workspace)) == 6


def test_everything_but_what_is_computed_anew_is_copied(workspace: FakeWorkspace) -> None:
    workspace.add_source("raw", "delta")
    pipeline = workspace.add_pipeline(
        "sales",
        datasets=[Dataset("bronze"), Dataset("totals")],
        flows=[Flow("bronze", "bronze", ("raw",)), Flow("totals", "totals", ("bronze",), kind="materialized")],
    )
    pipeline.start({})
    pipeline.advance()
    made = lambda: refresh(pipeline, full_refresh_selection=None, full_refresh=True, mode="plan", **COPY)  # noqa: E731
    assert [each["table"] for each in Task(made).attempt()["backups"]] == ["main.sales.bronze"]


def test_append_once_is_shown(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    result = Task(lambda: refresh(pipeline, backfill="append_once", **COPY)).attempt()
    (snippet,) = result["snippets"]
    compile(snippet, "snippet", "exec")
    assert 'target="customers", once=True' in snippet
    assert f'spark.read.table("{result["backups"][0]["backup"]}")' in snippet
    assert result["verification"] == []


def test_auto_cdc_target_gets_no_older_version(workspace: FakeWorkspace) -> None:
    pipeline = samples.orders(workspace)
    workspace.sources["orders-events"].expire_before(10)
    before = {row["id"]: row["value"] for row in workspace.rows("main.orders.latest")}
    result = Task(
        lambda: refresh(
            pipeline,
            full_refresh_selection=["bronze", "silver", "latest"],
            backfill="merge",
            keys={"bronze": ["id", "position"], "silver": ["id", "position"], "latest": ["id"]},
            **COPY,
        )
    ).attempt()
    assert all(each["ok"] for each in result["verification"])
    assert {row["id"]: row["value"] for row in workspace.rows("main.orders.latest")} == before


def test_a_predicate_limits_what_is_brought_back(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    result = Task(
        lambda: refresh(pipeline, backfill="insert", backfill_where={"customers": "id <> 'c001'"}, **COPY)
    ).attempt()
    assert ids(workspace) == [each for each in ALL if each != "c001"]
    assert result["verification"][0]["ok"]


def test_counts_that_do_not_agree(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    def doubled(pipeline: Pipeline) -> None:
        workspace.tables.execute(f"INSERT INTO {TABLE} SELECT * FROM {TABLE} WHERE id = 'c004'")

    pipeline.when["COMPLETED"] = doubled
    task = Task(
        lambda: refresh(pipeline, backfill="merge", keys={TABLE: ["id"]}, clean_up="drop_when_verified", **COPY)
    )
    with pytest.raises(AirflowFailException, match=r"the counts do not agree.*'doubled': 1") as failed:
        task.attempt()
    assert "the copies are kept" in str(failed.value)
    (backup,) = task.pushed["return_value"]["backups"]
    assert ids(workspace, backup["backup"]) == ALL


def test_clean_up(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    workspace.tables.execute(
        f"CREATE TABLE main.customers.customers__ckpt_20200101_0a1b2c3d DEEP CLONE {TABLE} WITH HISTORY"
    )
    workspace.tables.execute(f"CREATE TABLE main.customers.customers__ckpt_of_mine DEEP CLONE {TABLE} WITH HISTORY")
    first = Task(lambda: refresh(pipeline, backfill="insert", clean_up="30", **COPY)).attempt()
    assert first["dropped"] == ["main.customers.customers__ckpt_20200101_0a1b2c3d"]
    assert ids(workspace, "main.customers.customers__ckpt_of_mine") == ALL
    second = Task(
        lambda: refresh(pipeline, backfill="insert", clean_up="drop_when_verified", **COPY), run_id="manual__2"
    ).attempt()
    assert second["dropped"] == [second["backups"][0]["backup"]]
    assert not workspace.tables.exists(second["dropped"][0])
    assert ids(workspace, first["backups"][0]["backup"]) == ALL


def test_old_copies_that_the_warehouse_lists_in_several_parts(
    workspace: FakeWorkspace, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "CHUNK_ROWS", 2)
    old = [f"main.customers.customers__ckpt_2020010{day}_0a1b2c3d" for day in range(1, 6)]
    for copy in old:
        workspace.tables.execute(f"CREATE TABLE {copy} DEEP CLONE {TABLE} WITH HISTORY")
    result = Task(lambda: refresh(pipeline, backfill="insert", clean_up="30", **COPY)).attempt()
    assert sorted(result["dropped"]) == old


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"backfill": "insert"}, "a backfill needs a copy"),
        ({"backup": "shallow", "warehouse_id": WAREHOUSE}, "backup is 'shallow'"),
        ({"backup": "deep_clone"}, "warehouse_id is empty"),
        ({**COPY, "backfill": "merge"}, "a backfill by MERGE needs the columns"),
        ({**COPY, "backfill": "insert", "keys": {TABLE: ["id"]}}, "INSERT would put older versions"),
        ({**COPY, "keys": {"orders": ["id"]}}, "table orders is not emptied"),
        ({**COPY, "backfill": "insert", "wait_for": None}, "a backfill begins when the refresh is complete"),
        ({"clean_up": "sometimes"}, "clean_up is 'sometimes'"),
        ({**COPY, "tables": ["a`b.c"]}, "is no name of a table"),
        ({**COPY, "warehouse_id": "nowhere"}, "nowhere"),
    ],
)
def test_bad_input(workspace: FakeWorkspace, pipeline: Pipeline, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(AirflowFailException, match=words):
        Task(lambda: refresh(pipeline, **fields)).attempt()
    assert len(pipeline.updates) == 1
    assert ids(workspace) == ALL


def test_a_table_that_must_not_be_reset(workspace: FakeWorkspace) -> None:
    workspace.add_source("raw", "delta")
    pipeline = workspace.add_pipeline(
        "kept",
        schema="customers",
        datasets=[Dataset("customers", properties={"pipelines.reset.allowed": "false"})],
        flows=[Flow("customers", "customers", ("raw",))],
    )
    with pytest.raises(AirflowFailException, match=r"table main.customers.customers has pipelines.reset.allowed=false"):
        Task(lambda: refresh(pipeline)).attempt()


def test_a_copy_that_fails_stops_the_refresh(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    workspace.tables.refuse["DEEP CLONE"] = "[NO_SPACE] the bucket is full"
    with pytest.raises(AirflowFailException, match="the bucket is full"):
        Task(lambda: refresh(pipeline, **COPY)).attempt()
    assert len(pipeline.updates) == 1


@pytest.mark.parametrize("took_effect", [False, True])
def test_an_insert_whose_answer_was_lost(workspace: FakeWorkspace, pipeline: Pipeline, took_effect: bool) -> None:
    def fault() -> None:
        workspace.fault("POST", r"/statements$", nth=3, cut=True, took_effect=took_effect)

    pipeline.when["COMPLETED"] = lambda _: fault()
    result = Task(lambda: refresh(pipeline, backfill="insert", **COPY)).attempt()
    assert ids(workspace) == ALL
    assert result["verification"][0]["ok"]


def test_killed_anywhere(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    """The worker dies before every write of its memory in turn: one refresh, one copy that is whole, every row once."""
    task = Task(lambda: refresh(pipeline, backfill="merge", keys={TABLE: ["id"]}, **COPY))
    assert task.store
    left = [0]

    def kill() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    task.store.before = kill
    deaths = 0
    while True:
        left[0] = deaths
        try:
            result = task.attempt()
        except Killed:
            deaths += 1
        else:
            break
    assert deaths > 5
    assert len(pipeline.updates) == 2
    assert ids(workspace) == ALL
    assert ids(workspace, result["backups"][0]["backup"]) == ALL
    assert result["backups"][0]["rows"] == len(ALL)


def test_a_dry_run_copies_nothing(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    result = Task(lambda: refresh(pipeline, body={"validate_only": True}, **COPY)).attempt()
    assert (result["mode"], result["dry_run"], result["backups"]) == ("dry_run", True, [])
    assert not workspace.asked("POST", "/sql/statements")


def test_checkpoints_that_are_reset_besides_are_judged(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    body = {"reset_checkpoint_selection": [samples.INCREMENTAL]}
    plan = Task(lambda: refresh(pipeline, body=body, mode="plan", guard_report={"verdict": "SAFE"})).attempt()["plan"]
    assert plan["verdict"] == "UNKNOWN"
    assert "are reset too" in " ".join(plan["reasons"])


def test_a_workspace_that_refuses_clones(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    workspace.tables.clones_of_pipelines = False
    about = {"warehouse_id": WAREHOUSE}
    with pytest.raises(AirflowFailException, match="not supported as source or target tables for CLONE"):
        Task(lambda: refresh(pipeline, backup="deep_clone", **about)).attempt()
    assert not workspace.asked("POST", "/updates")
    result = Task(lambda: refresh(pipeline, backup="ctas", **about), run_id="second").attempt()
    assert result["backups"][0]["rows"] == 9


def test_a_table_that_changes_while_it_is_copied(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
    execute = workspace.tables.execute

    def meanwhile(statement: str, *args: Any) -> Any:
        found = execute(statement, *args)
        if "DEEP CLONE" in statement:
            workspace.tables.append(TABLE, [{"id": "theirs"}])
        return found

    workspace.tables.execute = meanwhile  # type: ignore[method-assign]
    with pytest.raises(AirflowFailException, match="was changed while it was copied"):
        Task(lambda: refresh(pipeline, **COPY)).attempt()
    assert not workspace.asked("POST", "/updates")


class TestWhatIsEmptied:
    """All of it is in the plan, and all of it is copied, whichever argument names it."""

    @pytest.fixture
    def pipeline(self, workspace: FakeWorkspace) -> Pipeline:
        flows = [Flow(name, name, ("events",)) for name in ("orders", "customers", "latest")]
        workspace.add_source("events", "kafka").add(samples.BEGIN, id="e0")
        made = workspace.add_pipeline("sales", datasets=[Dataset(flow.name) for flow in flows], flows=flows)
        made.start({})
        made.advance()
        return made

    def emptied(self, pipeline: Pipeline, **fields: Any) -> set[str]:
        plan = Task(lambda: refresh(pipeline, mode="plan", **COPY, **fields)).attempt()["plan"]
        copied = {step.partition(" to ")[0].removeprefix("copy ") for step in plan["steps"] if step.startswith("copy ")}
        assert copied == {table["table"] for table in plan["tables"]}
        return {table.removeprefix("main.sales.") for table in copied}

    @pytest.mark.parametrize(
        ("fields", "emptied"),
        [
            ({"full_refresh_selection": ["orders"]}, {"orders"}),
            (
                {"full_refresh_selection": ["orders", "customers"], "tables": ["main.sales.orders"]},
                {"orders", "customers"},
            ),
            ({"full_refresh_selection": ["orders"], "tables": ["main.sales.orders"]}, {"orders"}),
            ({"full_refresh_selection": ["orders"], "tables": ["other.place.orders"]}, {"other.place.orders"}),
            ({"full_refresh_selection": [], "body": {"full_refresh_selection": ["customers"]}}, {"customers"}),
            ({"full_refresh_selection": ["orders"], "body": {"full_refresh": True}}, {"orders", "customers", "latest"}),
            (
                {"full_refresh_selection": [], "full_refresh": True, "tables": ["main.sales.orders"]},
                {"orders", "customers", "latest"},
            ),
        ],
    )
    def test_of_a_refresh(self, pipeline: Pipeline, fields: dict[str, Any], emptied: set[str]) -> None:
        assert self.emptied(pipeline, **fields) == emptied

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({"rewind_spec": {"rewind_timestamp": "2026-08-20T00:00:00Z"}}, "use PipelineRewindOperator"),
            ({"replace_where_overrides": [{"flow_name": "orders"}]}, "which rows are deleted is not known"),
            ({"new_field": False}, "new_field of body is not known here"),
        ],
    )
    def test_fields_whose_effect_nobody_has_judged(self, pipeline: Pipeline, body: dict[str, Any], words: str) -> None:
        plan = Task(lambda: refresh(pipeline, mode="plan", body=body)).attempt()["plan"]
        assert plan["verdict"] == "UNKNOWN"
        assert words in " ".join(plan["reasons"])
        with pytest.raises(AirflowFailException, match="the verdict is UNKNOWN"):
            Task(lambda: refresh(pipeline, body=body)).attempt()
        dry = Task(lambda: refresh(pipeline, mode="plan", body={**body, "validate_only": True})).attempt()["plan"]
        assert dry["verdict"] == "SAFE"


def test_a_statement_that_takes_too_long_is_not_cancelled_and_the_next_attempt_finds_it(
    workspace: FakeWorkspace, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow ends the wait before the vendor's trigger would cancel the statement."""
    how: dict[str, Any] = {"guard_report": LOST, "accept": "WILL_LOSE", "deferrable": True, "timeout": 60, **COPY}
    task = Task(lambda: refresh(pipeline, **how))
    step = workspace.statements._step
    monkeypatch.setattr(workspace.statements, "_step", lambda statement: None)
    with pytest.raises(TaskDeferred) as deferred:
        refresh(pipeline, **how).execute(task.context())  # type: ignore[arg-type]
    assert deferred.value.trigger.end_time > time.time() + 3000
    resumed = refresh(pipeline, **how)
    with pytest.raises(AirflowException, match="not within 60 s: a statement or an update has not ended"):
        resumed.resume_execution("__fail__", {"error": "Trigger timeout"}, task.context())  # type: ignore[arg-type]
    with pytest.raises(TaskDeferralError):
        resumed.resume_execution("__fail__", {"error": "Trigger failure"}, task.context())  # type: ignore[arg-type]
    monkeypatch.setattr(workspace.statements, "_step", step)
    (first,) = workspace.statements.all.values()
    assert first.state == "PENDING", "not cancelled"
    assert task.attempt()["state"] == "COMPLETED"
    assert first.state == "SUCCEEDED", "the next attempt has waited for it"


class TestRowsThatCameAfterTheCopy:
    """They are in a newer copy, or nothing is emptied: their source does not have them any more."""

    @staticmethod
    def an_ordinary_update(workspace: FakeWorkspace, pipeline: Pipeline) -> None:
        source = workspace.sources[LANDING]
        samples.land(source, 2)
        pipeline.when["COMPLETED"] = lambda _: source.expire_before(source.end)
        pipeline.start({}, cause="JOB_TASK")

    @pytest.mark.parametrize("clean_up", ["keep", "drop_when_verified"])
    def test_before_a_retry(self, workspace: FakeWorkspace, pipeline: Pipeline, clean_up: str) -> None:
        task = Task(lambda: refresh(pipeline, backfill="insert", clean_up=clean_up, **COPY))
        workspace.fault("POST", "/updates$", status=503, count=3)
        with pytest.raises(UnknownStartError):
            task.attempt()
        self.an_ordinary_update(workspace, pipeline)
        pipeline.advance()
        before = ids(workspace)
        result = task.attempt()
        assert (ids(workspace), len(before)) == (before, len(ALL) + 2)
        assert result["verification"][0]["backup_rows"] == len(before)
        assert len(result["dropped"]) == (0 if clean_up == "keep" else 2), "the older copy too"
        assert not any(map(workspace.tables.exists, result["dropped"]))

    @pytest.mark.parametrize("deferrable", [False, True])
    def test_while_another_update_was_waited_for(
        self, workspace: FakeWorkspace, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, deferrable: bool
    ) -> None:
        send, conflicts = DatabricksPipelinesHook.start_update, []

        def busy(hook: Any, pipeline_id: str, body: Any) -> str:
            if not conflicts:
                conflicts.append(True)
                self.an_ordinary_update(workspace, pipeline)
            return send(hook, pipeline_id, body)

        monkeypatch.setattr(DatabricksPipelinesHook, "start_update", busy)
        result = Task(
            lambda: refresh(pipeline, backfill="insert", on_active_update="wait", deferrable=deferrable, **COPY)
        ).attempt()
        assert conflicts
        assert len(ids(workspace)) == len(ALL) + 2
        assert result["verification"][0]["ok"]

    def test_between_the_last_check_and_the_start(
        self, workspace: FakeWorkspace, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A worker that was suspended there: its update is stopped before it has emptied anything."""
        send = DatabricksPipelinesHook.start_update

        def suspended(hook: Any, pipeline_id: str, body: Any) -> str:
            self.an_ordinary_update(workspace, pipeline)
            pipeline.advance()
            return send(hook, pipeline_id, body)

        monkeypatch.setattr(DatabricksPipelinesHook, "start_update", suspended)
        with pytest.raises(AirflowFailException, match=r"ran between the last check .* what it wrote is in no copy"):
            Task(lambda: refresh(pipeline, backfill="insert", **COPY)).attempt()
        pipeline.advance()
        assert pipeline.updates[-1].state == "CANCELED"
        assert len(ids(workspace)) == len(ALL) + 2

    def test_an_attempt_whose_update_is_seen_late(self, workspace: FakeWorkspace, pipeline: Pipeline) -> None:
        """It is our own refresh that has changed the table: no copy of the empty table, and no second refresh."""
        task = Task(lambda: refresh(pipeline, backfill="insert", **COPY))
        assert task.store
        workspace.fault("POST", "/updates$", status=503, count=3)
        with pytest.raises(UnknownStartError):
            task.attempt()
        asked = workspace.tables.execute

        def late(statement: str, *args: Any) -> Any:
            workspace.tables.execute = asked  # type: ignore[method-assign]
            pipeline.start({"full_refresh_selection": ["customers"]})
            pipeline.advance()
            return asked(statement, *args)

        workspace.tables.execute = late  # type: ignore[method-assign]
        result = task.attempt()
        assert (result["found"], len(pipeline.updates)) == ("search", 2)
        assert ids(workspace) == ALL
