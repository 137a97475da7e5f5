"""``chain``: several streams that read each other's tables, or that one application runs, rewound and undone together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.changing import rest_rule, show_plan
from airflow_ckpt_provider.cli.spark_submit import restore_by_command
from airflow_ckpt_provider.cli.verbs.rewind import guards_of, specifier_of
from airflow_ckpt_provider.recovery.chains.apply import apply_chain
from airflow_ckpt_provider.recovery.chains.naming import stream_of
from airflow_ckpt_provider.recovery.chains.plan import ChainPlan
from airflow_ckpt_provider.recovery.chains.planning import plan_chain
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.recovery.chains.undo import undo_chain
from airflow_ckpt_provider.sinks.sink import Sink


def chain(call: Call) -> Answer:
    """Rewind the streams, or undo that."""
    args = call.args
    if not args.stream:
        raise UsageError("no stream is named", hint="name each: --stream NAME=CHECKPOINT,sink=SINK")
    streams = _streams(call)
    return _undo(call, streams) if args.action == "undo" else _rewind(call, streams)


def _streams(call: Call) -> tuple[ChainStream, ...]:
    args = call.args
    repository = call.places(args.repository, role="repository") if args.repository else None

    def sink(name: str, app_id: str | None) -> Sink:
        return Sink.named(
            name,
            lambda uri: call.places(uri, role="sink"),
            app_id=app_id,
            storage_options=dict(args.sink_option),
            by_spark=restore_by_command(args.spark_submit, uri=None) if args.spark_submit else None,
        )

    return tuple(
        stream_of(
            text,
            open_checkpoint=lambda uri: call.places(uri, role="checkpoint"),
            named_sink=sink,
            repository=repository,
        )
        for text in args.stream
    )


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
    made, outcome = apply_chain(
        streams,
        plan,
        accept=args.accept,
        fingerprint=args.fingerprint,
        rest=lambda checkpoint: rest_rule(call, checkpoint),
        stop_running=args.stop_running,
        made_by=call.made_by,
        reason=args.reason,
        on_plan=lambda made: show_plan(call, made.to_markdown(), done=made.already_done),
    )
    if call.screen and not outcome.already_done:
        call.screen.print(terminal.title(f"Chain {made.plan_id}: the streams stand at one boundary"))
        rows = [(part.name, f"stands at batch {rewind.batch_id}; start it") for part, rewind in made.rewinds]
        rows.append(("undo it", f"{made.undo_command}, until one of them has run"))
        call.screen.print(terminal.facts(rows))
    return Answer(outcome.to_json())


def _undo(call: Call, streams: tuple[ChainStream, ...]) -> Answer:
    args = call.args
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
