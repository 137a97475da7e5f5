"""Refresh tables of a Lakeflow pipeline in full: behind a guard, with a copy before, and what the copy alone has brought back."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.lakeflow.carrying_out import make_room_and_check
from airflow_ckpt_provider.lakeflow.examine import FAIL, STOP, WAIT, Examined, examine, names_of
from airflow_ckpt_provider.lakeflow.refresh_plan import DROP, KEEP, plan_pipeline_refresh, wiped_tables
from airflow_ckpt_provider.lakeflow.request import FULL_REFRESH, REFRESH, StartRequest
from airflow_ckpt_provider.lakeflow.table_copies import EMPTIED_BY, TableCopies
from airflow_ckpt_provider.lakeflow.tables import (
    APPEND_ONCE,
    BACKFILLS,
    COPIES,
    DEEP_CLONE,
    TableRecovery,
    backup_name,
)
from airflow_ckpt_provider.lakeflow.updates import COMPLETED, JOB_TASK, RUNNING
from airflow_ckpt_provider.operators.change_operator import APPLY, PLAN
from airflow_ckpt_provider.operators.fields import flag, mapping, one_of, required, seconds, text
from airflow_ckpt_provider.operators.pipeline_change import PipelineChangeOperator
from airflow_ckpt_provider.operators.run_identity import made_by
from airflow_ckpt_provider.operators.warehouse import Warehouse, is_deferral_timeout, wait_for_statement

if TYPE_CHECKING:
    from airflow.sdk import Context


class PipelineRefreshOperator(PipelineChangeOperator):
    """Empty tables and fill them again from their sources, once the loss that it may mean is known or accepted.

    Refuses where a source guard says that data older than the retention would be lost, or where nobody knows, unless that
    verdict is accepted. With ``backup="deep_clone"`` every table is copied first; ``backfill`` brings back the rows that only the
    copy has; then both are counted. Plans only, unless ``mode="apply"``; planning sends nothing but GET. A retry finds the
    update that was started, and takes no second copy of a table that is empty by now.

    The result is that of ``ResetCheckpointOperator`` and ``backups``, ``backfill``, ``verification``, ``snippets``, ``dropped``.

    Parameters of pipeline and update: see :class:`~.pipeline_change.PipelineChangeOperator`.

    .. code-block:: python

        PipelineRefreshOperator(
            task_id="refresh",
            pipeline_name="customers",
            full_refresh_selection=["customers"],
            backup="deep_clone",
            backfill="merge",
            keys={"customers": ["id"]},
            warehouse_id="8f2d",
        )

    .. seealso:: :doc:`/howto/lakeflow-refresh`

    :param full_refresh_selection: tables to empty. (templated)
    :param full_refresh: empty every table. (templated)
    :param guard_report: the XCom of a source guard, or several by name. (templated)
    :param backup: ``"deep_clone"``: copy the tables before, with their history; ``"ctas"``: by ``CREATE TABLE AS SELECT``,
        where the workspace refuses the clone; ``None``: do not. (templated)
    :param tables: full names of tables that are selected by shorter ones, or by path; ``None``: what is selected is in the
        pipeline's catalog and schema. What is selected or emptied besides is in the plan all the same. (templated)
    :param warehouse_id: SQL warehouse for copies and counts. (templated)
    :param keys: table -> columns that identify its rows. (templated)
    :param backfill: ``"merge"``: by ``keys``, also for AUTO CDC; ``"insert"``: whole rows that the table lacks;
        ``"append_once"``: shows the flow that does it in the pipeline; ``None``: nothing is brought back. (templated)
    :param backfill_where: table -> SQL predicate for the rows of the copy that are brought back. (templated)
    :param job_id: the job that runs the pipeline: the refresh goes through it. (templated)
    :param clean_up: ``"keep"`` the copies, ``"drop_when_verified"``, or a number of days. (templated)
    """

    template_fields: Sequence[str] = (
        *PipelineChangeOperator.template_fields,
        "full_refresh_selection",
        "full_refresh",
        "guard_report",
        "backup",
        "tables",
        "warehouse_id",
        "keys",
        "backfill",
        "backfill_where",
        "job_id",
        "clean_up",
    )

    def __init__(
        self,
        *,
        full_refresh_selection: Sequence[str] | str | None = None,
        full_refresh: bool | str = False,
        guard_report: Mapping[str, Any] | str | None = None,
        backup: Literal["deep_clone", "ctas"] | str | None = None,
        tables: Sequence[str] | str | None = None,
        warehouse_id: str | None = None,
        keys: Mapping[str, Sequence[str]] | None = None,
        backfill: Literal["merge", "insert", "append_once"] | str | None = None,
        backfill_where: Mapping[str, str] | None = None,
        job_id: int | str | None = None,
        clean_up: str | int = KEEP,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.full_refresh_selection = full_refresh_selection
        self.full_refresh = full_refresh
        self.guard_report = guard_report
        self.backup = backup
        self.tables = tables
        self.warehouse_id = warehouse_id
        self.keys = keys
        self.backfill = backfill
        self.backfill_where = backfill_where
        self.job_id = job_id
        self.clean_up = clean_up

    def _run(self, context: Context) -> dict[str, Any]:
        apply = one_of(self.mode, "mode", (PLAN, APPLY)) == APPLY
        room = one_of(self.on_active_update, "on_active_update", (FAIL, WAIT, STOP))
        given = text(self.wait_for)
        wait_for = one_of(given, "wait_for", (COMPLETED, RUNNING)) if given else None
        clean_up = self._clean_up()
        request = StartRequest.of(
            {
                "full_refresh": flag(self.full_refresh, "full_refresh"),
                FULL_REFRESH: list(names_of(self.full_refresh_selection, "full_refresh_selection")),
                REFRESH: list(names_of(self.refresh_selection, "refresh_selection")),
            },
            mapping(self.body, "body"),
            **({"expected_cause": JOB_TASK} if text(self.job_id) else {}),
        )
        job_id = text(self.job_id)
        about = {"apply": apply, "waits": wait_for is not None, "dry_run": request.dry_run}
        self._asks_for(request.body, text(self.backup), text(self.backfill), **about)
        kept = self._kept.data

        def planned() -> None:
            examined = examine(self.workspace, self._pipeline_id())
            taken_over = {} if request.dry_run else self._taken_over()
            tables = self._tables(context, examined, request, taken_over)
            if "tables" in kept and [each[0] for each in kept["tables"]] == [table.table for table in tables]:
                tables = self._kept_tables()  # copies may have been made of them, by their names
            plan = plan_pipeline_refresh(
                self.workspace,
                examined,
                request,
                tables,
                guard_report=self.guard_report,
                clean_up=clean_up,
                on_active_update=room,
                wait_for=wait_for,
            )
            kept.setdefault("copies", taken_over)
            plan = replace(plan, warnings=(*plan.warnings, *map(_taken_over_words, taken_over, taken_over.values())))
            plan = self._planned_through_job(context, plan, job_id, request)
            self._planned(plan, apply=apply, accept=self.accept, fingerprint=self.fingerprint)
            kept["tables"] = [[t.table, t.backup, list(t.keys), t.where, t.backfill, t.by] for t in tables]

        if "tables" not in kept:
            planned()
            if not apply:
                return self._found(self._kept_tables())
        check = make_room_and_check(self._as_run(context), "refresh", room, planned)
        copies = self._copies(self._kept_tables())
        self._see_that_nothing_ran_since(copies)

        def check_again() -> None:
            check()
            self._see_that_nothing_ran_since(copies)

        how = self._through_job(context, job_id, request) if job_id else {}
        how["check"] = check_again
        if copies.tables:
            how["prepared"] = copies
        update_id = self._start(context, "refresh", request, on_active_update=room, **how)
        self._follow(context, "refresh", update_id, wait_for)
        for table in copies.tables:
            copies.bring_back(table, settle=lambda: self.start_retry_policy.sleep(self.start_retry_policy.settle))
        result = self._found(self._kept_tables())
        wrong = [v for v in result["verification"] if not v["ok"]]
        if wrong:
            if "ti" in context:
                context["ti"].xcom_push(key="return_value", value=result)
            raise AirflowFailException(
                f"the counts do not agree after the refresh: {wrong}\n"
                f"HINT: the copies are kept ({', '.join(t.backup for t in copies.tables)}): compare, and bring back what lacks"
            )
        return result | {"dropped": copies.drop(clean_up, now=datetime.now(UTC))}

    def _left(self) -> tuple[dict[str, Any], str]:
        tables = self._kept_tables()
        copies = ", ".join(t.backup for t in self._copies(tables).tables)
        words = f"\nCopies of the tables as they were before: {copies}. An attempt after a clear brings the rows back from them."
        return self._found(tables), words if copies else ""

    def _taken_over(self) -> dict[str, Any]:
        """What this task found, before it was cleared, of tables that its update may have emptied since: a second copy of such a
        table would lack its rows.
        """
        kept = self._kept.before or self._kept.data
        if "ended" in kept:
            return {}
        by, found = self._begun_before("refresh"), {}
        for table, facts in (kept.get("copies") or {}).items():
            if "rows" in facts and (by or EMPTIED_BY in facts):
                copy = {key: facts[key] for key in ("version", "backup", "rows", "former") if key in facts}
                found[table] = copy | {EMPTIED_BY: by or facts[EMPTIED_BY]}
        return found

    def _see_that_nothing_ran_since(self, copies: TableCopies) -> None:
        """See that no update of others may have written a table since it was emptied.

        :raises RefusedError: one has.
        """
        if self._kept.notes("refresh").load():
            return
        for table in copies.tables:
            by = copies.emptied_by(table)
            newest = next(self.workspace.iter_updates(self._pipeline_id()), {}).get("update_id") if by else None
            if newest and newest not in by:
                raise RefusedError(
                    f"{table.table} may have been emptied after it was copied, and update {newest} of others ran since: "
                    f"{table.backup} has the rows of before, and no copy has the new ones",
                    hint=f"bring back what {table.table} lacks of {table.backup} by SQL; start a new run to refresh again",
                )

    def _kept_tables(self) -> list[TableRecovery]:
        return [TableRecovery(t, b, tuple(k), *more) for t, b, k, *more in self._kept.data["tables"]]

    def _found(self, tables: Sequence[TableRecovery]) -> dict[str, Any]:
        copies = self._copies(tables)
        snippets = [table.snippet for table in copies.tables if table.backfill == APPEND_ONCE]
        dry_run = bool((self._kept.data.get("plan") or {}).get("dry_run"))
        mode = {"mode": "dry_run"} if dry_run and self._has_begun() else {}
        return {
            **self._result(),
            **mode,
            "dry_run": dry_run,
            **copies.to_json(),
            "snippets": snippets,
            "dropped": [],
        }

    def _clean_up(self) -> str:
        given = text(self.clean_up) or KEEP
        return given if given.isdigit() else one_of(given, "clean_up", (KEEP, DROP))

    def _tables(
        self, context: Context, examined: Examined, request: StartRequest, taken_over: Mapping[str, Any]
    ) -> list[TableRecovery]:
        backup, backfill = (None, None) if request.dry_run else (text(self.backup), text(self.backfill))
        if backup:
            one_of(backup, "backup", COPIES)
            required(self.warehouse_id, "warehouse_id")
        if backfill:
            one_of(backfill, "backfill", BACKFILLS)
            if not backup:
                raise RefusedError(
                    "a backfill needs a copy to bring rows back from",
                    hint="give backup='deep_clone' or 'ctas', or leave backfill out",
                )
        names = wiped_tables(examined, request, names_of(self.tables, "tables"))
        if backup and not names:
            raise RefusedError("it is not known which tables are emptied", hint="give tables=[catalog.schema.table, …]")
        keys, where = mapping(self.keys, "keys"), mapping(self.backfill_where, "backfill_where")
        strange = sorted({*keys, *where} - {*names, *(name.rpartition(".")[2] for name in names)})
        if strange:
            raise RefusedError(f"table {strange[0]} is not emptied", hint=f"tables: {', '.join(names)}")
        day, token = self._stamp(context)
        return [
            TableRecovery(
                name,
                (taken_over.get(name) or {}).get("backup", backup_name(name, day, token)) if backup else "",
                names_of(keys.get(name, keys.get(name.rpartition(".")[2])), "keys"),
                str(where.get(name, where.get(name.rpartition(".")[2])) or ""),
                backfill or "",
                backup or DEEP_CLONE,
            )
            for name in names
        ]

    def _stamp(self, context: Context) -> tuple[str, str]:
        """What names the copies: the same for all attempts, so that a second one finds them."""
        run: Any = context.get("dag_run")
        began = getattr(run, "run_after", None) or getattr(run, "start_date", None) or datetime.now(UTC)
        who = made_by(context) or str(time.time_ns())
        return f"{began:%Y%m%d}", hashlib.sha256(f"{who}/{self._kept.life}".encode()).hexdigest()[:8]

    # ---- around the update ------------------------------------------------------------------------------------------

    def _copies(self, tables: Sequence[TableRecovery]) -> TableCopies:
        sql = Warehouse(self.workspace, text(self.warehouse_id) or "", self._kept, self._wait_for_statement)
        facts = self._kept.data.setdefault("copies", {})
        return TableCopies(sql, tables, facts, self._kept.keep, blank=self._kept.blank_retry)

    def _wait_for_statement(self, statement_id: str, *, here: bool = False) -> None:
        in_time = wait_for_statement(
            statement_id,
            conn_id=required(self.databricks_conn_id, "databricks_conn_id"),
            caller=type(self).__name__,
            end_time=self._end_time,
            poll_interval=seconds(self.poll_interval, "poll_interval").total_seconds(),
            hand_over=(lambda trigger: self._hand_over(trigger, None)) if self.deferrable and not here else None,
        )
        if not in_time:
            self._too_late(f"statement {statement_id} has not ended")

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """As Airflow does it; where the wait for a statement has taken too long, say so."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except AirflowException as e:
            if is_deferral_timeout(e):
                self._too_late("a statement or an update has not ended")
            raise

    def execute_complete(self, context: Context, event: dict[str, Any], carried: dict[str, Any]) -> dict[str, Any]:
        """Continue where the trigger has stopped: that of an update, or that of a statement, which is read again."""
        if "statement_id" in event:
            event = {"status": "done", "message": "", "hint": None}
        return super().execute_complete(context, event, carried)


def _taken_over_words(table: str, facts: Mapping[str, Any]) -> str:
    return f"{table} may have been emptied before the clear: it is not copied again, and {facts['backup']} has its rows"
