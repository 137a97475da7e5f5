"""``guard``: one verdict for a whole query, before anything is started."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.guard_options import declared_options, options_of_guards
from airflow_ckpt_provider.cli.kafka_config import configuration
from airflow_ckpt_provider.fleet.options import merged
from airflow_ckpt_provider.guards.query import guard_query
from airflow_ckpt_provider.guards.registry import GuardSettings
from airflow_ckpt_provider.guards.report import GuardReport, SourceReport
from airflow_ckpt_provider.units import format_duration
from airflow_ckpt_provider.upgrade.preflight import query_to_guard
from airflow_ckpt_provider.verdict import Verdict

#: Parts of a source that the table shows.
_SHOWN = 20


def guard(call: Call) -> Answer:
    """Judge a checkpoint, a backup, or offsets."""
    args = call.args
    if not (args.checkpoint or args.repository or args.offsets):
        raise UsageError("nothing to guard was given", hint="give CHECKPOINT, --repository or --offsets")
    query = query_to_guard(
        checkpoint=call.places(args.checkpoint, role="checkpoint") if args.checkpoint else None,
        repository=Repository.open(call.places(args.repository, role="repository")) if args.repository else None,
        name=args.name,
        backup_id=args.backup_id,
        offsets=args.offsets,
        name_is_declared=_is_declared(call),
    )
    if args.source is not None:
        query = query.one(args.source)
    settings = _settings(call)
    query.refuse_other_sources(settings.options)
    report = guard_query(query, settings)
    if call.screen and args.markdown:
        call.screen.print(report.to_markdown(), soft_wrap=True)
    elif call.screen:
        _show(report, call.screen)
    return Answer(report.to_json(), findings=report.verdict is not Verdict.SAFE)


def _is_declared(call: Call) -> bool:
    """Whether the name is that of the stream that the command names."""
    stream: str | None = getattr(call.args, "stream", None)
    return stream is not None and call.args.name == call.streams(call.args.streams).named(stream).repository_name


def _settings(call: Call) -> GuardSettings:
    args = call.args
    options = merged(declared_options(call), options_of_guards(args.option))
    kafka = options.setdefault("kafka", {})
    if args.kafka_config:
        kafka["config"] = configuration(args.kafka_config)
    if args.read_committed:
        kafka["isolation_level"] = "read_committed"
    downtime = args.max_downtime
    return GuardSettings(
        fail_on_data_loss=not args.ignore_data_loss,
        max_downtime=downtime,
        buffer=args.buffer if downtime is not None else 0.0,
        options=options,
    )


def _show(report: GuardReport, screen: Console) -> None:
    screen.print(Text.assemble((report.subject, "bold"), "  ", terminal.verdict(report.verdict)))
    rows = [("next batch", str(report.batch_id))] if report.batch_id is not None else []
    if down := report.down_in_words:
        rows.append(("down for", f"{down} from now on"))
    if rows:
        screen.print(terminal.facts(rows))
    if report.judgements:
        screen.print(terminal.findings(j.reason for j in report.judgements))
    for source in report.sources:
        _show_source(source, screen)


def _show_source(source: SourceReport, screen: Console) -> None:
    screen.print()
    screen.print(
        Text.assemble((f"source {source.source} ({source.kind})", "bold"), "  ", terminal.verdict(source.verdict))
    )
    rows = [("lost already", "not known" if source.lost is None else f"{source.lost:,}")]
    if source.seconds_left is not None:
        rows.append(("still there for", f"at least {format_duration(source.seconds_left)}"))
    screen.print(terminal.facts(rows))
    for judgement in source.judgements:
        mark = "  · " if judgement.verdict is Verdict.SAFE else "  ✗ "
        screen.print(Text(mark + judgement.reason, style="" if judgement.verdict is Verdict.SAFE else "red"))
    if not source.parts:
        return
    # The worst first; of many that are fine, a few.
    parts = sorted(source.parts, key=lambda part: part.verdict is Verdict.SAFE)
    columns = [c for c in ("offset", "earliest", "latest", "behind", "lost") if any(c in p.facts for p in parts)]
    shown = terminal.table("part!", "verdict!", *(f"{column}>" for column in columns), "at least>")
    for part in parts[:_SHOWN]:
        left = part.facts.get("seconds_left")
        cells = [_number(part.facts.get(column)) for column in columns]
        shown.add_row(part.name, terminal.verdict(part.verdict), *cells, "" if left is None else format_duration(left))
    screen.print(shown)
    if len(parts) > _SHOWN:
        screen.print(f"  {len(parts) - _SHOWN} more; --json has them all", style="dim")


def _number(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
