"""``rewind`` and ``undo``: going back with state and sink, and taking that back."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.set_aside import default_repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.kafka_config import configuration
from airflow_ckpt_provider.cli.offsets import in_words
from airflow_ckpt_provider.cli.spark_submit import restore_by_command
from airflow_ckpt_provider.errors import RepositoryError
from airflow_ckpt_provider.guards.delta_log import is_delta_table
from airflow_ckpt_provider.guards.registry import Guard, GuardSettings, installed_guards
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.reset.undo import reset_to_undo, undo_reset
from airflow_ckpt_provider.recovery.rewind.apply import RewindOutcome, stop_plan_and_apply
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind, reachable
from airflow_ckpt_provider.recovery.rewind.specifiers import KINDS, Specifier
from airflow_ckpt_provider.recovery.rewind.targets import RewindTarget
from airflow_ckpt_provider.recovery.rewind.undo import undo_rewind
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.report import SinkPolicy
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location


def rewind(call: Call) -> Answer:
    """Go back to a batch or a time, or say what that would do."""
    args = call.args
    checkpoint = Checkpoint.at(call.places(args.checkpoint, role="checkpoint"))
    place = _repository_place(call, checkpoint)
    if args.list:
        return _list(call, checkpoint, place)
    specifier = _specifier(call)
    sink = _sink(call)
    settings: dict[str, Any] = {
        "sink": sink,
        "sink_exit": SinkPolicy(args.sink_exit) if args.sink_exit else None,
        "repository": place,
        "name": args.name,
        "exact_replay": not args.fresh,
        "backup": args.backup,
        "guards": _guards(call),
        "downstream": [call.places(uri, role="checkpoint") for uri in args.downstream],
    }

    def plan(under: str | None) -> RewindPlan:
        made = plan_rewind(checkpoint, specifier, under=under, **settings)
        if call.screen:
            call.screen.print(terminal.plan(made.to_markdown()))
            call.screen.print()
        return made

    if not args.apply:
        made = plan(None)
        if call.screen and not made.already_done:
            call.screen.print("Nothing was changed: this is a plan. [bold]--apply[/bold] carries it out.")
        return Answer(made.to_json())
    _, outcome = stop_plan_and_apply(
        checkpoint,
        Repository.open_or_create(place),
        plan,
        sink=sink,
        stop_running=args.stop_running,
        quiet_for=args.quiet_for,
        made_by=call.made_by,
        reason=args.reason,
        accept_source_loss=args.accept_source_loss,
        accept_foreign_loss=args.accept_foreign_loss,
    )
    _show(call, outcome)
    return Answer(outcome.to_json())


def undo(call: Call) -> Answer:
    """Take a rewind or a reset back."""
    args = call.args
    checkpoint = Checkpoint.at(call.places(args.checkpoint, role="checkpoint"))
    repository = Repository.open(_repository_place(call, checkpoint))
    about = {"made_by": call.made_by, "reason": args.reason}
    plan = reset_to_undo(checkpoint.location, repository, args.plan)
    if plan:
        outcome = undo_reset(plan, checkpoint.location, repository, **about)
    else:
        outcome = undo_rewind(checkpoint, repository, plan_id=args.plan, sink=_sink(call), **about)
    if call.screen:
        what = "had been taken back before" if outcome.already_done else "is taken back"
        call.screen.print(terminal.title(f"{'Reset' if plan else 'Rewind'} {outcome.plan_id} {what}"))
        rows = [("put back", terminal.count(outcome.put_back, "file"))]
        if outcome.table_version is not None:
            rows.append(("table", f"forward again in version {outcome.table_version}"))
        call.screen.print(terminal.facts(rows))
    return Answer(outcome.to_json())


def _repository_place(call: Call, checkpoint: Checkpoint) -> Location:
    given = call.args.repository
    return call.places(given, role="repository") if given else default_repository(checkpoint.location)


def _sink(call: Call) -> Sink:
    args = call.args
    return Sink.named(
        args.sink,
        lambda uri: call.places(uri, role="sink"),
        app_id=args.txn_app_id,
        storage_options=dict(args.sink_option),
        by_spark=restore_by_command(args.spark_submit, uri=args.spark_sink) if args.spark_submit else None,
    )


def _guards(call: Call) -> tuple[Guard, ...]:
    kafka = {"config": configuration(call.args.kafka_config)} if call.args.kafka_config else {}
    return installed_guards(GuardSettings(options={"kafka": kafka}))


def _specifier(call: Call) -> Specifier:
    args = call.args
    given = [kind for kind in KINDS if getattr(args, kind) not in (None, False)]
    if len(given) != 1:
        options = ", ".join(f"--{kind.replace('_', '-')}" for kind in KINDS)
        said = f"{len(given)} of them were" if given else "none was"
        raise UsageError(f"where to? {said} given of {options}", hint="give exactly one, or --list")
    kind = given[0]
    value = getattr(args, kind)
    if kind == "from_file":
        return Specifier(kind, sys.stdin.read() if value == "-" else Path(value).read_text())
    return Specifier(kind, "" if value is True else str(value))


def _list(call: Call, checkpoint: Checkpoint, place: Location) -> Answer:
    try:
        repository = Repository.open(place)
    except RepositoryError:
        if call.args.repository:
            raise
        repository = None
    targets = reachable(checkpoint, repository, name=call.args.name)
    versions = _table_versions(call, checkpoint, repository)
    if call.screen:
        call.screen.print(terminal.title(f"Batches that {checkpoint.location} can go back to"))
        call.screen.print(_table(targets, versions))
    listed = [{**target.to_json(), "table_version": versions.get(target.batch_id)} for target in targets]
    return Answer({"checkpoint": checkpoint.location.uri, "targets": listed})


def _table_versions(call: Call, checkpoint: Checkpoint, repository: Repository | None) -> dict[int, int]:
    """Batch -> version of the Delta table that holds it, where the sink is one."""
    sink = _sink(call)
    if sink.place is None or not is_delta_table(sink.place):
        return {}
    history = read_table_history(sink.place)
    ids = read_query_ids(
        checkpoint.progress().query_id,
        place=checkpoint.location,
        repository=repository,
        name=call.args.name or checkpoint.location.name,
        app_id=sink.app_id,
        history=history,
        tree=checkpoint.tree(),
    )
    batches = ((ids.batch_in(commit), commit.version) for commit in history.lineage() or ()) if ids else ()
    return {batch: version for batch, version in batches if batch is not None}


def _table(targets: list[RewindTarget], versions: dict[int, int]) -> Table:
    table = Table(box=None, pad_edge=False)
    more = ["table version"] if versions else []
    for column in ("batch", "ended by (UTC)", "offsets", "watermark (UTC)", *more, "where", "replay"):
        table.add_column(column)
    for target in targets:
        ended = f"{target.ended:%Y-%m-%d %H:%M:%S}" if target.ended else "not known"
        again = "exact" if target.replays else "anew"
        offsets = "\n".join(in_words(source) for source in target.sources)
        watermark = (
            f"{datetime.fromtimestamp(target.watermark_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
            if target.watermark_ms
            else ""
        )
        version = [str(versions.get(target.batch_id, ""))] if versions else []
        cells = (str(target.batch_id), ended, offsets, watermark, *version, target.where, again)
        table.add_row(*map(Text, cells))
    return table


def _show(call: Call, outcome: RewindOutcome) -> None:
    if not call.screen or outcome.already_done:
        return
    call.screen.print(terminal.title(f"{outcome.checkpoint} stands at batch {outcome.batch_id}"))
    rows = [("deleted", terminal.count(outcome.deleted, "file"))]
    if outcome.written:
        rows.append(("written", terminal.count(outcome.written, "file")))
    if outcome.table_version is not None:
        rows.append(("table", f"rolled back in version {outcome.table_version}"))
    rows += [
        ("kept", str(outcome.kept)),
        ("next", f"start the query: it goes on with batch {outcome.batch_id + 1}"),
        ("take it back", f"airflow-ckpt undo {outcome.checkpoint} --plan {outcome.plan_id}, until the query has run"),
    ]
    call.screen.print(terminal.facts(rows))
