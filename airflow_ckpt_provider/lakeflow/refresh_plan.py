"""The full refresh: tables are emptied and filled again from what their sources still have, with or without a copy before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.lakeflow.examine import Examined, reset_forbidden, room_step
from airflow_ckpt_provider.lakeflow.flows import qualified
from airflow_ckpt_provider.lakeflow.plan import PipelinePlan, guard_judgements
from airflow_ckpt_provider.lakeflow.request import FIELDS, FULL_REFRESH, FULL_REFRESH_BY_PATH, RESET, StartRequest
from airflow_ckpt_provider.lakeflow.tables import APPEND_ONCE, TableRecovery
from airflow_ckpt_provider.lakeflow.updates import COMPLETED
from airflow_ckpt_provider.lakeflow.workspace import Workspace
from airflow_ckpt_provider.verdict import Verdict

#: What becomes of the copies: kept, dropped once the counts agree, or kept for so many days.
KEEP, DROP = "keep", "drop_when_verified"
#: Fields of a start that change tables by themselves -> what they do, in words.
_NOT_JUDGED = {
    "rewind_spec": "takes tables and checkpoints back to a time too, which is not judged here: leave it out, and use "
    "PipelineRewindOperator",
    "replace_where_overrides": "makes flows replace rows of their tables by another predicate: which rows are deleted is "
    "not known",
}


def wiped_tables(examined: Examined, request: StartRequest, given: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the full names of the tables that the refresh empties: what is selected, what the user names, or every table.

    :param given: full names, as the user gives them. They stand for what is selected by a shorter name, and hide nothing else.
    """
    # What no stream feeds is computed again each time: nothing of it can be lost.
    streams = [flow.dataset for flow in examined.flows.flows.values() if flow.dataset and flow.streaming is not False]
    names = [*given, *(request.body.get(FULL_REFRESH) or ())]
    if request.body.get("full_refresh") or not names:
        names += streams
    full = [
        qualified(name, examined.spec)
        for name in names
        if name in given or not any(each.endswith(f".{name}") for each in given)
    ]
    return tuple(dict.fromkeys(full))


def judge_refresh(
    workspace: Workspace, examined: Examined, request: StartRequest, tables: Sequence[str], guard_report: Any = None
) -> list[Judgement]:
    """Judge what an update empties, whichever operator or field asks for it; nothing for one that empties nothing.

    :param tables: full names of the tables.
    :param guard_report: what a guard found of the sources; without it nobody knows what they still have.
    """
    if not request.empties or request.dry_run:
        return []
    found = guard_judgements(guard_report)
    if not found:
        names = ", ".join(tables) or "the tables"
        found.append(
            Judgement(
                Verdict.UNKNOWN,
                f"{names}: emptied by a full refresh, and it is not known whether the sources still have all that the tables "
                "hold: what is older than their retention is lost; give the report of a guard (guard_report) to "
                "PipelineRefreshOperator",
            )
        )
    if request.body.get("full_refresh") and not (examined.flows.complete and examined.flows.flows):
        found.append(
            Judgement(
                Verdict.UNKNOWN,
                "full_refresh empties every table, and the newest events need not name all of them: only those named here are "
                "judged and copied; name all in full_refresh_selection instead",
            )
        )
    if request.body.get(FULL_REFRESH_BY_PATH):
        paths = ", ".join(map(str, request.body[FULL_REFRESH_BY_PATH]))
        found.append(
            Judgement(Verdict.UNKNOWN, f"it is not known which tables the code in {paths} fills: all are emptied")
        )
    found += [
        Judgement(
            Verdict.WILL_FAIL,
            f"table {name} has pipelines.reset.allowed=false: somebody wants its rows to stay; reset its flow instead",
        )
        for name in reset_forbidden(workspace, tables, examined.spec)
    ]
    return found


def judge_other_fields(request: StartRequest) -> list[Judgement]:
    """Judge fields of the body whose effect no plan shows: they are passed through, and ask for acceptance."""
    if request.dry_run:
        return []
    found = [f"{name} of body {effect}" for name, effect in _NOT_JUDGED.items() if request.body.get(name)]
    found += [
        f"{name} of body is not known here: nobody has judged what the update does with it"
        for name in request.body
        if name not in FIELDS
    ]
    return [Judgement(Verdict.UNKNOWN, reason) for reason in found]


def judge_reset_besides(request: StartRequest) -> list[Judgement]:
    """Judge the reset of checkpoints in an update that was meant for something else."""
    if not request.body.get(RESET) or request.dry_run:
        return []
    flows = ", ".join(map(str, request.body[RESET]))
    return [
        Judgement(
            Verdict.UNKNOWN,
            f"the checkpoints of {flows} are reset too, and it is not known where they begin to read: without a position they "
            "write all that their sources still have again; give them to ResetCheckpointOperator with starting_positions",
        )
    ]


def plan_pipeline_refresh(
    workspace: Workspace,
    examined: Examined,
    request: StartRequest,
    tables: Sequence[TableRecovery],
    *,
    guard_report: Any = None,
    clean_up: str = KEEP,
    on_active_update: str = "fail",
    wait_for: str | None = COMPLETED,
) -> PipelinePlan:
    """Plan a full refresh; reads only.

    :param tables: what is emptied, and how it is kept and brought back.
    :param guard_report: what a guard found of the sources; without it nobody knows what they still have.
    :param clean_up: what becomes of the copies.
    :raises RefusedError: nothing is selected, or what is asked for cannot be.
    """
    everything = bool(request.body.get("full_refresh"))
    if not request.empties:
        raise RefusedError(
            "neither full_refresh nor full_refresh_selection is given: nothing would be refreshed in full",
            hint="name the tables in full_refresh_selection, or give full_refresh=True for all of them",
        )
    room = room_step(examined, on_active_update, wait_for)
    kept = [table for table in tables if table.backup]
    if kept and wait_for != COMPLETED and any(table.backfill for table in kept):
        raise RefusedError(
            "a backfill begins when the refresh is complete", hint="give wait_for='COMPLETED', or leave backfill out"
        )
    judgements = (
        [Judgement(Verdict.SAFE, "a dry run (validate_only): no table is emptied")]
        if request.dry_run
        else judge_refresh(workspace, examined, request, [table.table for table in tables], guard_report)
    )
    judgements += judge_reset_besides(request)
    judgements += judge_other_fields(request)
    names = ", ".join(table.table for table in tables) or "every table"
    steps = [room]
    steps += [
        f"copy {t.table} to {t.backup}: {markdown.code(t.copy)}, with its row count and version recorded" for t in kept
    ]
    emptied = "every table" if everything else names
    steps.append(
        f"start an update that only validates the code (validate_only): {emptied} keep their rows"
        if request.dry_run
        else f"start an update that empties {emptied} and reads the sources again"
    )
    steps.append(f"follow it until it is {wait_for}" if wait_for else "do not wait for it")
    for table in kept:
        if table.backfill == APPEND_ONCE:
            steps.append(f"add the flow shown below to the pipeline's code: it brings {table.backup} back once")
        elif table.backfill:
            steps.append(f"bring back what {table.table} lacks: {markdown.code(table.bring_back)}")
        if table.backfill:
            steps.append(f"count what {table.table} lacks of {table.backup}, and what it has twice")
    if kept:
        steps.append(_kept_for(clean_up))
    warnings = examined.warnings()
    if not kept and not request.dry_run:
        warnings.append(
            f"no copy is kept: {names} cannot be brought back (backup='deep_clone' keeps one)"
            if not everything or tables
            else "no copy is kept (backup='deep_clone' keeps one)"
        )
    warnings.append("tables that read the emptied ones as streams fail until they are refreshed in full too")
    return PipelinePlan(
        kind="pipeline-refresh",
        pipeline_id=examined.pipeline_id,
        pipeline_name=examined.name,
        calls=(("POST", f"2.0/pipelines/{examined.pipeline_id}/updates", request.body),),
        steps=tuple(steps),
        judgements=tuple(judgements),
        warnings=tuple(warnings),
        rows=(*examined.rows(), ("empties", "every table" if everything else names)),
        facts={
            "tables": [{"table": t.table, "backup": t.backup or None, "backfill": t.backfill or None} for t in tables],
            "snippets": [t.snippet for t in kept if t.backfill == APPEND_ONCE],
            "clean_up": clean_up,
        },
        dry_run=request.dry_run,
        emptied=tuple(table.table for table in tables),
        specification=examined.specification,
    )


def _kept_for(clean_up: str) -> str:
    if clean_up == KEEP:
        return "keep the copies"
    if clean_up == DROP:
        return "drop the copies once the counts agree"
    return f"keep the copies for {clean_up} days, and drop older ones of the same tables once the counts agree"
