"""``inspect``: what is in a checkpoint, and what Spark will do at its next start."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from airflow_ckpt_provider.change.plan import sink_command
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.inspection import Inspection
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.resume import ResumePoint
from airflow_ckpt_provider.checkpoint.usage import DirectoryUsage, PartitionUsage, Spread
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call
from airflow_ckpt_provider.cli.offsets import in_words
from airflow_ckpt_provider.errors import command
from airflow_ckpt_provider.storage.location import Location


def inspect(call: Call) -> Answer:
    """Inspect a checkpoint."""
    location = call.places(call.args.checkpoint, role="checkpoint")
    found = Checkpoint.at(location).inspect()
    behind = _behind(location, call.args.kafka_config) if call.args.kafka_config else {}
    if call.screen:
        _show(found, behind, call.screen)
    return Answer({**found.to_json(), "behind": behind}, findings=bool(found.findings))


def _behind(location: Location, kafka_config: str) -> dict[str, int | None]:
    """How many records of each Kafka source the next start has before it; ``None`` where a partition does not show."""
    from airflow_ckpt_provider.cli.kafka_config import configuration
    from airflow_ckpt_provider.guards.kafka import KafkaGuard
    from airflow_ckpt_provider.guards.query import from_checkpoint
    from airflow_ckpt_provider.guards.registry import GuardSettings

    guard = KafkaGuard(GuardSettings(options={"kafka": {"config": configuration(kafka_config)}}))
    behind: dict[str, int | None] = {}
    for source in from_checkpoint(location).sources:
        if guard.recognises(source):
            parts = [part.facts.get("behind") for part in guard.judge(source).parts]
            behind[source.name] = None if None in parts else sum(count or 0 for count in parts)
    return behind


def _show(found: Inspection, behind: dict[str, int | None], screen: Console) -> None:
    screen.print(terminal.title(found.progress.uri))
    screen.print(terminal.facts(_facts(found)))
    screen.print()
    screen.print(_headline(found))
    screen.print(terminal.facts(_next(found)))
    _show_sources(found.resume, behind, screen)
    _show_state(found, screen)
    _show_usage(found, screen)
    if found.findings:
        screen.print()
        screen.print(terminal.title("Findings"))
        screen.print(terminal.findings(found.findings))


def _facts(found: Inspection) -> list[tuple[str, str | Text]]:
    p = found.progress
    rows: list[tuple[str, str | Text]] = [
        ("query id", p.query_id or Text("none: metadata is missing", style="red")),
        ("batches", _batches(p)),
    ]
    if p.batch_time:
        rows.append(("last planned", f"{terminal.moment(p.batch_time)}, {terminal.ago(p.batch_time)}"))
    rows.append(("holds", f"{terminal.count(found.files, 'file')}, {terminal.size(found.bytes)}"))
    if p.seal:
        rows.append(("seal", Text(f"{p.seal.path}: {p.seal.sentence}", style="yellow")))
    return rows


def _batches(p: Progress) -> str:
    logged = "none logged" if p.latest_logged is None else f"{p.latest_logged} logged"
    committed = "none committed" if p.latest_committed is None else f"{p.latest_committed} committed"
    return f"{logged}, {committed}, gap {p.gap}"


def _headline(found: Inspection) -> Text:
    resume = found.resume
    what = f"batch {resume.batch_id} {'again, as it was planned' if resume.replay else 'on new data'}"
    said = f" runs {what}  "
    if found.progress.seal:
        # What the seal alone is about is among the reasons of the logs.
        is_whole = len(found.findings) <= 1
        said = f" Unsealed, it runs {what}  " if is_whole else " A change may be unfinished: do not start it  "
    start = "Sealed: no Spark starts." if found.progress.seal else "At its next start Spark"
    return Text.assemble((start, "bold"), said, terminal.verdict(found.verdict))


def _next(found: Inspection) -> list[tuple[str, str | Text]]:
    resume, uri = found.resume, found.progress.uri
    rows: list[tuple[str, str | Text]] = []
    if resume.watermark_ms:
        rows.append(("watermark", terminal.moment(datetime.fromtimestamp(resume.watermark_ms / 1000, UTC))))
    if found.progress.seal:
        rows.append(("next", f"{command('status', uri)} --repository REPOSITORY"))
    elif found.findings:
        rows.append(("next", command("doctor", uri)))
    elif resume.replay:
        may = f"may have rows of batch {resume.batch_id}: foreachBatch, foreach and Kafka write them again"
        rows.append(("sink", f"{may}; {sink_command(uri)} judges it"))
    return rows


def _show_sources(resume: ResumePoint, behind: dict[str, int | None], screen: Console) -> None:
    # Before the first batch the sources decide where they start; a replay of batch 0 knows its end only.
    sources = resume.start_offsets or resume.end_offsets
    if not sources:
        return
    starts = {s.source: in_words(s) for s in resume.start_offsets}
    ends = {s.source: in_words(s) for s in resume.end_offsets}
    more = [*(["to"] if resume.replay else []), *(["behind>"] if behind else [])]
    shown = terminal.table("source!", "kind!", "from", *more)
    for source in sources:
        row = [source.source, source.kind, starts.get(source.source, "its own start")]
        row += [ends.get(source.source, "")] if resume.replay else []
        row += [_records(behind.get(source.source))] if behind else []
        shown.add_row(*map(Text, row))
    screen.print()
    screen.print(shown)


def _records(count: int | None) -> str:
    return "?" if count is None else f"{count:,}"


def _show_state(found: Inspection, screen: Console) -> None:
    if not found.operators:
        return
    shown = terminal.table("state", "stores", "partitions>", "version>", "provider")
    for operator in found.operators:
        provider = (operator.provider or "?").rpartition(".")[2].removesuffix("StateStoreProvider")
        shown.add_row(
            Text(f"{operator.operator_id} {operator.name or ''}".rstrip()),
            Text("\n".join(operator.stores)),
            str(operator.partitions),
            str(found.resume.state_versions.get(operator.operator_id, "")),
            Text(provider),
        )
    screen.print()
    screen.print(shown)


def _show_usage(found: Inspection, screen: Console) -> None:
    if found.directories:
        shown = terminal.table("directory", "files>", "bytes>", "batches")
        for directory in found.directories:
            shown.add_row(
                Text(directory.path), f"{directory.files:,}", terminal.size(directory.bytes), _batches_of(directory)
            )
        screen.print()
        screen.print(shown)
    stores: dict[tuple[int, str], list[PartitionUsage]] = {}
    for usage in found.partitions:
        stores.setdefault((usage.operator, usage.store), []).append(usage)
    if not stores:
        return
    shown = terminal.table("store", "bytes>", "keys>", "by partition: min, median, max>", "of>", "skew>")
    for (operator, store), usages in stores.items():
        keys = {usage.partition: usage.keys for usage in usages if usage.keys is not None}
        known = len(keys) == len(usages)
        spread = Spread.of(keys if known else {usage.partition: usage.bytes for usage in usages})
        words = (lambda number: f"{number:,.0f}") if known else (lambda number: terminal.size(int(number)))
        shown.add_row(
            Text(f"{operator} {store}"),
            terminal.size(sum(usage.bytes for usage in usages)),
            _keys(usages) if known else "?",
            ", ".join(map(words, (spread.smallest, spread.median, spread.largest))),
            "keys" if known else "bytes",
            f"{spread.skew:.1f}",
        )
    screen.print()
    screen.print(shown)


def _batches_of(directory: DirectoryUsage) -> str:
    if directory.oldest_batch is None:
        return ""
    return f"{directory.oldest_batch} to {directory.newest_batch}"


def _keys(usages: list[PartitionUsage]) -> str:
    """All keys, and as of which state version where that is not the newest."""
    versions = sorted({usage.keys_at_version for usage in usages if usage.keys_at_version is not None})
    span = f"{versions[0]}" if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
    return f"{sum(usage.keys or 0 for usage in usages):,} at version {span}"
