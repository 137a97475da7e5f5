"""``rewind``: rewinding with state and sink."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from airflow_ckpt_provider.backup.beside import repository_at, repository_for_change
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.stream_names import stream_name
from airflow_ckpt_provider.change.plan import undo_command
from airflow_ckpt_provider.change.stopping import stop_plan_and_apply
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.changing import how_to_apply, repository_place, show_plan, sinks_of
from airflow_ckpt_provider.cli.guard_options import declared_options
from airflow_ckpt_provider.cli.kafka_config import configuration
from airflow_ckpt_provider.cli.offsets import in_words
from airflow_ckpt_provider.cli.options import warn_of
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.fleet.options import merged
from airflow_ckpt_provider.guards.delta_log import is_delta_table
from airflow_ckpt_provider.guards.registry import Guard, GuardSettings, installed_guards
from airflow_ckpt_provider.recovery.query_ids import read_query_ids
from airflow_ckpt_provider.recovery.rewind.apply import RewindOutcome, apply_rewind
from airflow_ckpt_provider.recovery.rewind.plan import RewindPlan
from airflow_ckpt_provider.recovery.rewind.planning import plan_rewind, reachable
from airflow_ckpt_provider.recovery.rewind.specifier import KINDS, Specifier
from airflow_ckpt_provider.recovery.rewind.targets import RewindTarget
from airflow_ckpt_provider.sinks.delta_history import read_table_history
from airflow_ckpt_provider.sinks.policy import SinkPolicy
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.streams.parameters import guard_options
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.units import format_time
from airflow_ckpt_provider.verdict import Verdict


def rewind(call: Call) -> Answer:
    """Rewind to a batch or a time, or say what that would do."""
    args = call.args
    if args.list and (others := [each for each in ("apply", *KINDS) if _is_given(call, each)]):
        raise UsageError(f"--list and {_option(others[0])} exclude each other", hint="give one of them")
    checkpoint = Checkpoint.at(call.places(args.checkpoint, role="checkpoint"))
    place = repository_place(call, checkpoint.location)
    if args.list:
        return _list(call, checkpoint, place)
    specifier = specifier_of(call)
    sink = sinks_of(call)
    settings: dict[str, Any] = {
        "sink": sink,
        "sink_exit": [_policy(chosen) for chosen in args.sink_policy] or None,
        "repository": place,
        "name": args.name,
        "exact_replay": args.exact_replay,
        "backup": args.backup_id,
        "guards": guards_of(call),
        "downstream": [call.places(uri, role="checkpoint") for uri in args.downstream],
    }

    def plan(seal_id: str | None) -> RewindPlan:
        made = plan_rewind(checkpoint, specifier, seal_id=seal_id, **settings)
        show_plan(call, made.to_markdown(), done=made.already_done)
        return made

    if not args.apply:
        made = plan(None)
        return Answer(made.to_json(), findings=specifier.kind == "to_current" and made.verdict is not Verdict.SAFE)
    repository = repository_for_change(place, checkpoint.location)
    _, outcome = stop_plan_and_apply(
        checkpoint.location,
        repository,
        plan,
        partial(apply_rewind, checkpoint=checkpoint, repository=repository, sink=sink),
        change=RewindPlan.kind,
        stop_running=args.stop_running,
        accept=args.accept,
        **how_to_apply(call, checkpoint.location),
    )
    _show(call, outcome, repository)
    return Answer(outcome.to_json())


def _policy(chosen: str | None) -> SinkPolicy | None:
    if chosen == SinkPolicy.ACCEPT.value:
        warn_of("--sink-exit accept", "--sink-policy keep, and --accept with the word that the plan prints")
    return None if chosen in (None, "keep") else SinkPolicy(chosen)


def guards_of(call: Call, stream: Stream | None = None) -> tuple[Guard, ...]:
    """All installed guards, with what a stream declares; that of Kafka asks the brokers of ``--kafka-config``.

    :param stream: the stream; ``None``: the one that the command names, if it does.
    """
    declared = guard_options(stream) if stream else declared_options(call)
    kafka = {"kafka": {"config": configuration(call.args.kafka_config)}} if call.args.kafka_config else {}
    return installed_guards(GuardSettings(options=merged(declared, kafka)))


def specifier_of(call: Call) -> Specifier:
    """Where to go, of the options that say it.

    :raises UsageError: not exactly one of them is given.
    """
    given = [kind for kind in KINDS if _is_given(call, kind)]
    if len(given) != 1:
        options = ", ".join(map(_option, KINDS))
        said = f"{len(given)} of them were" if given else "none was"
        raise UsageError(f"where to? {said} given of {options}", hint="give exactly one, or --list")
    kind = given[0]
    value = getattr(call.args, kind)
    if kind == "from_file":
        try:
            return Specifier(kind, sys.stdin.read() if value == "-" else Path(value).read_text(encoding="utf-8"))
        except (OSError, ValueError) as e:
            raise RefusedError(f"--from-file {value} cannot be read: {e}", hint="give a file on this machine") from e
    return Specifier(kind, "" if value is True else str(value))


def _is_given(call: Call, name: str) -> bool:
    value = getattr(call.args, name, None)
    return value is not None and value is not False  # batch 0 is a target


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _list(call: Call, checkpoint: Checkpoint, place: Location) -> Answer:
    repository = repository_at(place, checkpoint.location)
    targets = reachable(checkpoint, repository, name=call.args.name)
    versions = _table_versions(call, checkpoint, repository)
    if call.screen:
        call.screen.print(terminal.title(f"Batches that {checkpoint.location} can be rewound to"))
        call.screen.print(_table(targets, versions))
    listed = [{**target.to_json(), **_versions_json(versions, target.batch_id)} for target in targets]
    return Answer({"checkpoint": checkpoint.location.uri, "targets": listed})


def _versions_json(versions: dict[str, dict[int, int]], batch_id: int) -> dict[str, Any]:
    """The version of the only table that holds a batch; of several tables the versions by table."""
    if len(versions) > 1:
        return {"table_versions": {name: of_table.get(batch_id) for name, of_table in versions.items()}}
    return {"table_version": next(iter(versions.values()), {}).get(batch_id)}


def _table_versions(call: Call, checkpoint: Checkpoint, repository: Repository | None) -> dict[str, dict[int, int]]:
    """Delta table -> batch -> the version that holds it, for each sink that is one."""
    sinks = [sink for sink in sinks_of(call) if sink.place is not None and is_delta_table(sink.place)]
    histories = {sink.name: read_table_history(sink.place) for sink in sinks if sink.place is not None}
    if not histories:
        return {}
    query_id = checkpoint.progress().query_id
    ids = read_query_ids(
        query_id,
        place=checkpoint.location,
        repository=repository,
        name=stream_name(repository, checkpoint.location, call.args.name, query_id=query_id),
        app_ids=[sink.app_id for sink in sinks],
        histories=histories.values(),
        tree=checkpoint.tree(),
    )
    found: dict[str, dict[int, int]] = {}
    for sink in sinks if ids else ():
        own = ids.known_as(sink.app_id) if ids else None
        lineage = histories[sink.name].lineage() or ()
        batches = ((own.batch_in(commit), commit.version) for commit in lineage) if own else ()
        found[sink.name] = {batch: version for batch, version in batches if batch is not None}
    return found


def _table(targets: list[RewindTarget], versions: dict[str, dict[int, int]]) -> Table:
    table = Table(box=None, pad_edge=False)
    more = [f"version of {name}" for name in versions] if len(versions) > 1 else ["table version"] * len(versions)
    for column in ("batch", "ended by (UTC)", "offsets", "watermark (UTC)", *more, "where", "replay"):
        table.add_column(column)
    for target in targets:
        ended = format_time(target.ended) if target.ended else "not known"
        again = "exact" if target.replays else "again"
        offsets = "\n".join(in_words(source) for source in target.sources)
        watermark = format_time(datetime.fromtimestamp(target.watermark_ms / 1000, UTC)) if target.watermark_ms else ""
        version = [str(of_table.get(target.batch_id, "")) for of_table in versions.values()]
        cells = (str(target.batch_id), ended, offsets, watermark, *version, target.where, again)
        table.add_row(*map(Text, cells))
    return table


def _show(call: Call, outcome: RewindOutcome, repository: Repository) -> None:
    if not call.screen or outcome.already_done:
        return
    call.screen.print(terminal.title(f"{outcome.checkpoint} is at batch {outcome.batch_id}"))
    rows = [("deleted", terminal.count(outcome.deleted, "file"))]
    if outcome.written:
        rows.append(("written", terminal.count(outcome.written, "file")))
    if outcome.table_version is not None:
        rows.append(("table", f"rolled back in version {outcome.table_version}"))
    rows += [("sink", f"{sink['uri']}: {_back(sink['table_version'])}") for sink in outcome.sinks]
    if outcome.kept:
        rows.append(("kept", outcome.kept))
    rows.append(("next", f"start the query: it continues with batch {outcome.batch_id + 1}"))
    call.screen.print(terminal.facts(rows))
    undo = undo_command(outcome.checkpoint, outcome.plan_id, repository, call.args.sink)
    terminal.next_command(call.screen, "To undo it, until the query has run (needs --query-is-stopped)", undo)


def _back(version: int | None) -> str:
    return "no commit was needed" if version is None else f"rolled back in version {version}"
