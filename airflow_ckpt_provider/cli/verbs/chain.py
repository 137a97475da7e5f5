"""``chain``: several streams that read each other's tables, or that one application runs, changed and undone together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from airflow_ckpt_provider.backup.records import new_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.sets import LATEST_SET, create_set
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.changing import engines_of, rest_rule, show_plan
from airflow_ckpt_provider.cli.kafka_config import observing
from airflow_ckpt_provider.cli.spark_submit import restore_by_command
from airflow_ckpt_provider.cli.verbs.rewind import guards_of, specifier_of
from airflow_ckpt_provider.fleet.application import application_streams
from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.naming import stream_of
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan
from airflow_ckpt_provider.recovery.chains.planning import plan_chain
from airflow_ckpt_provider.recovery.chains.set_restore import plan_set_restore, restore_set
from airflow_ckpt_provider.recovery.chains.stream import ChainStream, named_streams
from airflow_ckpt_provider.recovery.chains.undo import undo_chain
from airflow_ckpt_provider.recovery.rewind.specifier import KINDS
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import repository_of_all

#: Option -> the actions that take it.
_OF_ACTIONS = {
    **dict.fromkeys(("begins_with", "downstream", *KINDS), ("rewind",)),
    "set": ("backup", "restore"),
    "tag": ("backup",),
    "replace": ("restore",),
    "plan": ("undo",),
    "fingerprint": ("rewind", "restore"),
    "kafka_config": ("rewind", "backup"),
    "accept": ("rewind", "restore", "undo"),
    "stop_running": ("rewind", "restore", "undo"),  # an undo has its own word for it
}


def chain(call: Call) -> Answer:
    """Do what the action says to the streams."""
    args = call.args
    if bool(args.stream) == bool(args.application):
        raise UsageError(
            "both streams and an application are given" if args.stream else "no stream is named",
            hint="name each: --stream NAME=CHECKPOINT,sink=SINK; or all that are declared: --application NAME",
        )
    given = call.places(args.repository, role="repository") if args.repository else None
    declared = call.streams(args.streams).of_application(args.application) if args.application else ()
    _refuse_options_of_others(call)
    streams = named_streams(_streams(call, given) if args.stream else _of_application(call, declared, given))
    if args.action in ("backup", "restore"):
        return _OF_SETS[args.action](call, streams, _repository(call, declared, given))
    return _undo(call, streams) if args.action == "undo" else _rewind(call, streams)


def _refuse_options_of_others(call: Call) -> None:
    """See that the action takes each option that is given: passed over, a restore to a time was one of the newest set.

    :raises UsageError: it does not take one.
    """
    args = call.args
    values = {name: getattr(args, name, None) for name in _OF_ACTIONS}
    given = [name for name, value in values.items() if value is not None and value is not False and value != []]
    given += [] if args.exact_replay else ["no_exact_replay"]
    for name in given:
        actions = _OF_ACTIONS.get(name, ("rewind",))
        if args.action not in actions:
            option = "--from" if name == "begins_with" else f"--{name.replace('_', '-')}"
            raise UsageError(
                f"chain {args.action} takes no {option}", hint=f"it is for: {', '.join(actions)}; leave it out"
            )


def _streams(call: Call, repository: Location | None) -> tuple[ChainStream, ...]:
    return tuple(
        stream_of(
            text,
            open_checkpoint=lambda uri: call.places(uri, role="checkpoint"),
            named_sink=lambda name, app_id: _sink(call, name, app_id, None, {}),
            repository=repository,
        )
        for text in call.args.stream
    )


def _of_application(call: Call, declared: Sequence[Stream], repository: Location | None) -> tuple[ChainStream, ...]:
    return application_streams(
        declared,
        open_checkpoint=lambda uri, conn_id: call.places(uri, role="checkpoint", conn_id=conn_id),
        open_repository=lambda uri, conn_id: call.places(uri, role="repository", conn_id=conn_id),
        named_sink=lambda _, sink, conn_id: _sink(call, sink.sink, sink.txn_app_id, conn_id, sink.options),
        repository=repository,
        guards=lambda stream: guards_of(call, stream),
    )


def _sink(call: Call, name: str, app_id: str | None, conn_id: str | None, options: Mapping[str, str]) -> Sink:
    args = call.args
    return Sink.named(
        name,
        lambda uri: call.places(uri, role="sink", conn_id=conn_id),
        app_id=app_id,
        storage_options={**options, **dict(args.sink_option)},
        by_spark=restore_by_command(args.spark_submit, uri=None) if args.spark_submit else None,
        engines=engines_of(call, [name]),
    )


def _repository(call: Call, declared: Sequence[Stream], given: Location | None) -> Repository:
    """The repository of a set: the one that is given, else the one that all streams declare."""
    if given is None:
        uri, conn_id = repository_of_all(declared) if declared else (None, None)
        if uri is None:
            raise UsageError("no repository is named", hint="name the one that holds the set: --repository")
        given = call.places(uri, role="repository", conn_id=conn_id)
    return Repository.open(given)


def _backup(call: Call, streams: Sequence[ChainStream], repository: Repository) -> Answer:
    args = call.args
    set_id = args.set or new_plan_id()
    if call.screen:  # a run that is killed is resumed by it
        call.screen.print(terminal.title(f"Set {set_id} of {terminal.count(len(streams), 'stream')}"))
    with terminal.progress_bar("Backing up") as on_progress:
        made = create_set(
            {stream.name: Checkpoint.at(stream.checkpoint) for stream in streams},
            repository,
            set_id=set_id,
            tags=dict(args.tag),
            reason=args.reason,
            made_by=call.made_by,
            on_progress=on_progress,
            observe=observing(args.kafka_config),
        )
    if call.screen:
        rows = [(name, f"{m.backup_id}, batch {m.batch_id}") for name, m in made.backups.items()]
        call.screen.print(terminal.facts(rows))
    return Answer(made.to_json(), findings=not made.is_whole)


def _restore(call: Call, streams: Sequence[ChainStream], repository: Repository) -> Answer:
    args = call.args
    asked = {"set_id": args.set or LATEST_SET, "replace_there": args.replace}
    if not args.apply:
        made = plan_set_restore(streams, repository, **asked)
        show_plan(call, made.to_markdown(), done=made.already_done)
        return Answer(made.to_json())
    made, outcome = restore_set(streams, repository, **asked, **_how(call))
    if call.screen and not outcome.already_done:
        call.screen.print(terminal.title(f"Set {made.set_id} is restored"))
        rows = [(part.name, f"is at batch {part.batch_id}; start it") for part in made.parts]
        call.screen.print(terminal.facts(rows))
        terminal.next_command(
            call.screen,
            "To undo it, until one of them has run (needs --query-is-stopped)",
            made.undo_command,
        )
    return Answer(outcome.to_json())


_OF_SETS = {"backup": _backup, "restore": _restore}


def _how(call: Call) -> dict[str, Any]:
    """What carrying a plan over several streams out takes."""
    args = call.args
    return {
        "accept": args.accept,
        "fingerprint": args.fingerprint,
        "rest": lambda checkpoint: rest_rule(call, checkpoint),
        "stop_running": args.stop_running,
        "made_by": call.made_by,
        "reason": args.reason,
        "on_plan": lambda made: show_plan(call, made.to_markdown(), done=made.already_done),
    }


def _rewind(call: Call, streams: tuple[ChainStream, ...]) -> Answer:
    args = call.args
    specifier, guards = specifier_of(call), guards_of(call)
    look_in = [call.places(uri, role="checkpoint") for uri in args.downstream]

    def plan(chain_id: str | None) -> ChainPlan:
        return plan_chain(
            streams,
            specifier,
            begins_with=args.begins_with,
            exact_replay=args.exact_replay,
            guards=guards,
            look_in=look_in,
            chain_id=chain_id,
        )

    if not args.apply:
        made = plan(None)
        show_plan(call, made.to_markdown(), done=made.already_done)
        return Answer(made.to_json())
    made, outcome = apply_chain(streams, plan, **_how(call))
    if call.screen and not outcome.already_done:
        call.screen.print(terminal.title(f"Chain {made.plan_id}: the streams are at one boundary"))
        rows = [(part.name, f"is at batch {rewind.batch_id}; start it") for part, rewind in made.rewinds]
        call.screen.print(terminal.facts(rows))
        terminal.next_command(
            call.screen,
            "To undo it, until one of them has run (needs --query-is-stopped)",
            made.undo_command,
        )
    return Answer(outcome.to_json())


def _undo(call: Call, streams: tuple[ChainStream, ...]) -> Answer:
    args = call.args
    if args.stop_running:
        raise UsageError("an undo does not stop queries", hint="stop them, then leave --stop-running out")
    outcome = undo_chain(
        streams,
        plan_id=args.plan,
        accept=args.accept,
        rest=lambda checkpoint: rest_rule(call, checkpoint),
        made_by=call.made_by,
        reason=args.reason,
    )
    if call.screen:
        what = "had been undone before" if outcome.already_done else "is undone"
        call.screen.print(terminal.title(f"Chain {outcome.plan_id} {what}"))
        call.screen.print(terminal.facts([(each["name"], _put_back(each)) for each in outcome.streams]))
    return Answer(outcome.to_json())


def _put_back(outcome: Mapping[str, Any]) -> str:
    version = outcome["table_version"]
    table = "" if version is None else f", its table is forward again in version {version}"
    return f"{terminal.count(outcome['put_back'], 'file')} put back{table}"
