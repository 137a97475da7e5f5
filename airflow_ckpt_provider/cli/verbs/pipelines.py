"""``pipelines``: Lakeflow pipelines of Databricks from a shell: the operators' plans, carried out by the same core."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.advisor.failures import why_it_failed
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.changing import show_plan
from airflow_ckpt_provider.cli.databricks_client import DatabricksClient, open_client
from airflow_ckpt_provider.cli.earlier_run import EarlierRun, forgotten, outcome
from airflow_ckpt_provider.cli.pipeline_notes import FileMemos
from airflow_ckpt_provider.cli.pipeline_words import in_shell, words_of_the_shell
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.lakeflow.blocking_run import BlockingRun, UpdateFailedError
from airflow_ckpt_provider.lakeflow.carrying_out import Keys, carry_out_reset, carry_out_rewind, make_room_and_check
from airflow_ckpt_provider.lakeflow.examine import examine
from airflow_ckpt_provider.lakeflow.flows import qualified
from airflow_ckpt_provider.lakeflow.following import Memory, Progress, look, looking
from airflow_ckpt_provider.lakeflow.found_position import Terms
from airflow_ckpt_provider.lakeflow.gathering import Readers
from airflow_ckpt_provider.lakeflow.plan import PipelinePlan
from airflow_ckpt_provider.lakeflow.positions import positions_of
from airflow_ckpt_provider.lakeflow.queries import warehouse_queries
from airflow_ckpt_provider.lakeflow.read_on import newest_ended
from airflow_ckpt_provider.lakeflow.recovery_steps import AboutFlow, recovery_steps
from airflow_ckpt_provider.lakeflow.refresh_plan import plan_pipeline_refresh, wiped_tables
from airflow_ckpt_provider.lakeflow.request import FULL_REFRESH, REFRESH, RESET, StartRequest
from airflow_ckpt_provider.lakeflow.reset_plan import Merged, plan_pipeline_reset
from airflow_ckpt_provider.lakeflow.rewind_plan import plan_pipeline_rewind, rewind_datasets, rewind_spec, rewind_time
from airflow_ckpt_provider.lakeflow.settings import (
    changed_by,
    merge_configuration,
    needed_until,
    put_back_configuration,
)
from airflow_ckpt_provider.lakeflow.tables import TableRecovery
from airflow_ckpt_provider.lakeflow.updates import configuration_of
from airflow_ckpt_provider.verdict import Verdict

#: Action -> options that only it, or it and others, take.
_TAKES = {
    "flow": ("positions", "reset"),
    "refresh": ("reset", "refresh", "rewind"),
    "empty": ("refresh",),
    "everything": ("refresh",),
    "positions": ("reset",),
    "set": ("reset",),
    "parameter": ("reset",),
    "configuration_after": ("reset",),
    "about": ("positions",),
    "margin": ("positions",),
    "warehouse": ("positions",),
    "kafka_config": ("positions",),
    "guard_report": ("reset", "refresh"),
    "to": ("rewind",),
    "timezone": ("rewind",),
    "dataset": ("rewind",),
    "no_replay": ("rewind",),
    "changed_by": ("put-back",),
    "validate_only": ("reset", "refresh"),
    "accept": ("reset", "refresh", "rewind"),
    "fingerprint": ("reset", "refresh", "rewind"),
    "forget": ("reset", "refresh", "rewind"),
    "apply": ("reset", "refresh", "rewind", "put-back"),
}


def pipelines(call: Call) -> Answer:
    """List pipelines, or inspect or change one."""
    args = call.args
    for option, actions in _TAKES.items():
        if getattr(args, option) and args.action not in actions:
            flag = "--" + option.replace("_", "-")
            raise UsageError(f"{flag} is not for {args.action}", hint=f"it is for {', '.join(actions)}")
    with words_of_the_shell():
        return _answer(call)


def _answer(call: Call) -> Answer:
    args = call.args
    if args.action == "list":
        return _list(call, open_client(args.profile))
    if not args.pipeline:
        raise UsageError(f"pipelines {args.action} needs a PIPELINE", hint="give its id or its name")
    client = open_client(args.profile)
    verbs: dict[str, Callable[[Call, DatabricksClient, str], Answer]] = {
        "flows": _flows,
        "positions": _positions,
        "reset": _reset,
        "refresh": _refresh,
        "rewind": _rewind,
        "put-back": _put_back,
    }
    return verbs[args.action](call, client, client.find(args.pipeline))


def _list(call: Call, client: DatabricksClient) -> Answer:
    found = list(client.iter_pipelines(call.args.pipeline or ""))
    if call.screen:
        table = terminal.table("pipeline", "id!", "state", "health", "newest update")
        for each in found:
            newest: dict[str, Any] = next(iter(each.get("latest_updates") or ()), {})
            table.add_row(
                str(each.get("name") or ""),
                str(each.get("pipeline_id")),
                str(each.get("state") or ""),
                str(each.get("health") or ""),
                f"{newest.get('state', '')} {newest.get('creation_time', '')}".strip(),
            )
        call.screen.print(table)
    keys = ("pipeline_id", "name", "state", "health")
    return Answer({"pipelines": [{key: each.get(key) for key in keys} for each in found]})


def _flows(call: Call, client: DatabricksClient, pipeline_id: str) -> Answer:
    examined = examine(client, pipeline_id)
    flows: list[dict[str, Any]] = [
        {
            "name": flow.name,
            "table": qualified(flow.dataset, examined.spec) if flow.dataset else None,
            "kind": flow.kind or None,
            "streaming": flow.streaming,
            "sources": list(flow.sources),
        }
        for flow in examined.flows.flows.values()
    ]
    if call.screen:
        call.screen.print(terminal.title(f"Flows of pipeline {examined.name}"))
        table = terminal.table("flow!", "table", "kind", "reads")
        for flow in flows:
            table.add_row(flow["name"], flow["table"] or "", flow["kind"] or "", ", ".join(flow["sources"]))
        call.screen.print(table)
    return Answer(
        {
            "pipeline_id": pipeline_id,
            "pipeline_name": examined.name,
            "state": examined.pipeline.get("state"),
            "complete": examined.flows.complete,
            "flows": flows,
        }
    )


def _positions(call: Call, client: DatabricksClient, pipeline_id: str) -> Answer:
    args = call.args
    kafka = None
    if args.kafka_config:
        from airflow_ckpt_provider.cli.kafka_config import configuration
        from airflow_ckpt_provider.guards.kafka_client import KafkaClient
        from airflow_ckpt_provider.lakeflow.kafka_state import asking

        kafka = asking(KafkaClient(configuration(args.kafka_config)))
    queries = warehouse_queries(client, args.warehouse, interval=min(2.0, args.poll)) if args.warehouse else None
    found = recovery_steps(
        client,
        examine(client, pipeline_id),
        Readers(queries, kafka),
        flows=args.flow,
        about=AboutFlow.from_json(_file(args.about) if args.about else {}),
        terms=Terms(margin=None if args.margin is None else timedelta(seconds=args.margin)),
        made_by=call.made_by,
    )
    if call.screen:
        call.screen.print(terminal.plan(in_shell(found.to_markdown())))
    return Answer(found.to_json(), findings=found.verdict is not Verdict.SAFE)


def _reset(call: Call, client: DatabricksClient, pipeline_id: str) -> Answer:
    args = call.args
    given = _file(args.positions) if args.positions else {}
    if not isinstance(given, dict):
        raise UsageError(f"--positions {args.positions} is no JSON object", hint="give what positions --json printed")
    starting = given.get("starting_positions", {} if "steps" in given else given)
    flows = args.flow or list(given.get("flows") or starting)
    request = StartRequest.of(
        {
            RESET: flows,
            REFRESH: args.refresh,
            "parameters": {**(given.get("parameters") or {}), **dict(args.parameter)},
            "validate_only": args.validate_only,
        }
    )
    values = {**(given.get("configuration") or {}), **dict(args.set)}
    # The same for the same command, so that it finds its own keys again; and for no other.
    by = f"{call.made_by}/{fingerprint_of([pipeline_id, request.body, values])}"
    merged = Merged(values, by, args.configuration_after or "")
    report = _file(args.guard_report) if args.guard_report else None
    as_of = newest_ended(client, pipeline_id)

    def planned() -> PipelinePlan:
        return plan_pipeline_reset(
            client,
            examine(client, pipeline_id),
            request,
            starting_positions=starting,
            guard_report=report,
            on_active_update=args.on_active_update,
            wait_for=args.wait_for,
            merged=merged,
            as_of=as_of,
        )

    keep = merged.kept(positions_of(starting))
    keys = Keys(
        lambda: merge_configuration(client, pipeline_id, values, by, keep=keep, flows=flows),
        lambda: put_back_configuration(client, pipeline_id, by, keep=keep),
    )

    def carry_out(run: BlockingRun, check: Callable[[], None]) -> None:
        carry_out_reset(
            run,
            request,
            keys=keys if values and not request.dry_run else None,
            on_active_update=args.on_active_update,
            wait_for=args.wait_for,
            flows=flows,
            flows_run_for=args.flows_run_for,
            check=check,
        )

    return _carried_out(call, client, planned, ("reset",), carry_out, keys if values else None)


def _refresh(call: Call, client: DatabricksClient, pipeline_id: str) -> Answer:
    args = call.args
    request = StartRequest.of(
        {
            "full_refresh": args.everything,
            FULL_REFRESH: args.empty,
            REFRESH: args.refresh,
            "validate_only": args.validate_only,
        }
    )
    report = _file(args.guard_report) if args.guard_report else None

    def planned() -> PipelinePlan:
        examined = examine(client, pipeline_id)
        return plan_pipeline_refresh(
            client,
            examined,
            request,
            [TableRecovery(name) for name in wiped_tables(examined, request)],
            guard_report=report,
            on_active_update=args.on_active_update,
            wait_for=args.wait_for,
        )

    def carry_out(run: BlockingRun, check: Callable[[], None]) -> None:
        check = make_room_and_check(run, "refresh", args.on_active_update, check)
        update_id = run.start("refresh", request, on_active_update=args.on_active_update, check=check)
        run.follow("refresh", update_id, args.wait_for)

    return _carried_out(call, client, planned, ("refresh",), carry_out)


def _rewind(call: Call, client: DatabricksClient, pipeline_id: str) -> Answer:
    args = call.args
    if not args.to:
        raise UsageError("rewind needs --to", hint="give a time such as 2026-08-21T12:00:00+02:00")
    to, datasets = rewind_time(args.to, args.timezone), rewind_datasets(args.dataset)
    dry_run, rewind = (
        StartRequest.of({"rewind_spec": rewind_spec(to, datasets, dry_run=dry)}) for dry in (True, False)
    )
    replay = None if args.no_replay else StartRequest.of({REFRESH: args.refresh})

    def planned() -> PipelinePlan:
        return plan_pipeline_rewind(
            client,
            examine(client, pipeline_id, with_flows=False),
            rewind,
            dry_run,
            replay,
            to=to,
            on_active_update=args.on_active_update,
            wait_for=args.wait_for,
        )

    return _carried_out(
        call,
        client,
        planned,
        ("dry_run", "rewind", *(["replay"] if replay else [])),
        lambda run, check: carry_out_rewind(
            run,
            dry_run=dry_run,
            rewind=rewind,
            replay=replay,
            on_active_update=args.on_active_update,
            wait_for=args.wait_for,
            check=check,
        ),
    )


def _put_back(call: Call, client: DatabricksClient, pipeline_id: str) -> Answer:
    pipeline = examine(client, pipeline_id, with_flows=False).pipeline
    whose = changed_by(configuration_of(pipeline))
    wanted = call.args.changed_by
    if whose and wanted and wanted != whose:
        raise RefusedError(
            f"pipeline {pipeline_id}: its configuration was changed by {whose}, not by {wanted}",
            hint=f"put it back with --changed-by {whose!r}, if that run is over",
        )
    if call.args.apply and whose and not wanted:
        raise RefusedError(
            f"pipeline {pipeline_id}: its configuration was changed by {whose}",
            hint=f"if that run is over, give --changed-by {whose!r}",
        )
    if not call.args.apply or not whose:
        if call.screen:
            call.screen.print(
                f"Keys of {whose} are in the configuration." if whose else "There are no keys to put back."
            )
        return Answer({"pipeline_id": pipeline_id, "changed_by": whose or None}, findings=bool(whose))
    if wait := needed_until(pipeline):
        found = look(lambda path: client.ask(pipeline_id, path), looking(wait, Memory()))
        if found.progress is Progress.WAITING:
            raise RefusedError(
                f"pipeline {pipeline_id}: its update may still need the keys: {found.message}",
                hint="repeat the command when the update has ended; in a continuous pipeline, when the flows run",
            )
    outcome = put_back_configuration(client, pipeline_id, whose)
    if call.screen:
        call.screen.print(terminal.title(f"Put back: {', '.join(outcome.put_back) or 'nothing'}"))
        call.screen.print(terminal.findings(f"{key} was changed since, and stays" for key in outcome.changed_since))
    return Answer({"pipeline_id": pipeline_id, "changed_by": whose, **outcome.to_json()})


def _carried_out(
    call: Call,
    client: DatabricksClient,
    planned: Callable[[], PipelinePlan],
    steps: Sequence[str],
    carry_out: Callable[[BlockingRun, Callable[[], None]], object],
    keys: Keys | None = None,
) -> Answer:
    """Show a plan; with ``--apply`` see that it may be carried out, and do it; with ``--forget`` remove its notes.

    :param planned: plans, now and again when there is room for the update.
    :param keys: that an earlier run may have merged into the configuration.
    """
    args, plan = call.args, planned()
    if not args.forget:
        show_plan(call, in_shell(plan.to_markdown()))
    if not args.apply and not args.forget:
        return Answer(plan.to_json())
    bodies = [dict(body) for _, _, body in plan.calls]
    memos = FileMemos(fingerprint_of([client.host, plan.pipeline_id, plan.kind, bodies]))
    with memos.locked(), words_of_the_shell(str(memos.path)):
        earlier = EarlierRun.of(memos)
        if args.forget:
            return _forget(call, client, plan, earlier)
        accept = Verdict(args.accept) if args.accept else None
        if earlier and (ended := earlier.ended(client, plan.pipeline_id)):
            return _ended(call, plan, earlier, ended, steps, keys)
        if earlier:
            earlier.may_go_on(plan, steps, accept=accept, fingerprint=args.fingerprint)
            if call.screen:
                call.screen.print("An earlier run of this command has begun; it continues.")
        else:
            plan.check(accept=accept, fingerprint=args.fingerprint)
            memos.approve(plan.fingerprint)
        run = BlockingRun(
            client,
            plan.pipeline_id,
            memos,
            why=lambda ids: why_it_failed(client, plan.pipeline_id, ids),
            interval=args.poll,
            timeout=args.timeout,
        )
        try:
            carry_out(run, lambda: planned().check(accept=accept, fingerprint=args.fingerprint))
        except UpdateFailedError:
            memos.forget()
            raise
        memos.forget()
    last = run.steps[steps[-1]]
    state = last["states"][-1]["state"] if last["states"] else None
    if call.screen:
        call.screen.print(terminal.title(f"Update {last['update_id']} is {state}"))
    return Answer(
        {
            "mode": "dry_run" if plan.dry_run else "apply",
            "plan": plan.to_json(),
            "pipeline_id": plan.pipeline_id,
            "pipeline_name": plan.pipeline_name,
            "update_id": last["update_id"],
            "state": state,
            "updates": run.steps,
        }
    )


def _ended(
    call: Call, plan: PipelinePlan, earlier: EarlierRun, ended: str, steps: Sequence[str], keys: Keys | None
) -> Answer:
    """Say how the update of an earlier run ended meanwhile, and finish that run; nothing is started."""
    if keys:
        keys.put_back()
    earlier.memos.forget()
    found = outcome(earlier, plan, ended, steps)
    if call.screen:
        call.screen.print(terminal.title(f"An earlier run of this command was cut off: {ended}"))
        notes = [f"{step} was not started" for step in found["not_started"]]
        call.screen.print(terminal.findings([*notes, "Nothing was started now: make a new plan to do it again"]))
    # It is not what was asked for now, so it is a finding and no success.
    return Answer(found, findings=True)


def _forget(call: Call, client: DatabricksClient, plan: PipelinePlan, earlier: EarlierRun | None) -> Answer:
    """Remove the notes of an earlier run that was cut off; nothing is started."""
    left = earlier.forget(client, plan, configuration_of(client.ask(plan.pipeline_id))) if earlier else ""
    if call.screen:
        call.screen.print("The note of the earlier run is removed." if earlier else "There is no note of this command.")
        call.screen.print(terminal.findings([left] if left else []))
    return Answer({"pipeline_id": plan.pipeline_id, **forgotten(earlier, left)})


def _file(name: str) -> Any:
    try:
        return load_json(sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise UsageError(f"{name} cannot be read: {e}", hint="give a file of JSON") from e
