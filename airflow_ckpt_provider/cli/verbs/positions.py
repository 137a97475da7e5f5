"""``positions``: where a new checkpoint has to start so that nothing is lost."""

from __future__ import annotations

import json

from rich.console import Console
from rich.text import Text

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.cli import terminal
from airflow_ckpt_provider.cli.calling import Answer, Call, UsageError
from airflow_ckpt_provider.cli.kafka_config import configuration
from airflow_ckpt_provider.guards.mirror_syncs import MirrorNames
from airflow_ckpt_provider.recovery.positions.asking import Question, ask, partitions_of
from airflow_ckpt_provider.recovery.positions.logs import ReadableLogs, logs_of_backup, logs_of_checkpoint
from airflow_ckpt_provider.recovery.positions.mirror import MIRROR_TIMEOUT, Mirror
from airflow_ckpt_provider.recovery.positions.position import SourcePosition
from airflow_ckpt_provider.recovery.positions.positions import StartingPositions, put_seeds
from airflow_ckpt_provider.verdict import Verdict


def positions(call: Call) -> Answer:
    """Work out starting positions."""
    args = call.args
    question = Question(args.batch, args.to_datetime, args.by_duration)
    if sum(value is not None for value in (args.batch, args.to_datetime, args.by_duration)) > 1:
        raise UsageError("--batch, --to-datetime and --by-duration exclude each other", hint="give one of them")
    mirror = _mirror(call)
    found = ask(
        _logs(call),
        question,
        kafka_partitions=partitions_of(dict(args.partitions)) or None,
        tables={source: call.places(uri, role="table") for source, uri in args.table},
        mirror=mirror,
    )
    if args.seed is not None:
        found = put_seeds(found, call.places(args.seed, role="seed"))
    if call.screen:
        _show(found, call.screen)
    return Answer(found.to_json(), findings=found.verdict is not Verdict.SAFE)


def _mirror(call: Call) -> Mirror | None:
    """The mirror that the options describe; clients are loaded only where one is given."""
    args = call.args
    if args.mirrored_from is None:
        if args.kafka_config or args.old_kafka_config or args.mirrored_to:
            raise UsageError(
                "--kafka-config, --old-kafka-config and --mirrored-to need --mirrored-from",
                hint="give the alias of the old cluster in MirrorMaker 2 too, or leave them out",
            )
        return None
    if args.kafka_config is None:
        raise UsageError(
            "--mirrored-from needs --kafka-config", hint="give a file with the configuration of the new cluster"
        )
    from airflow_ckpt_provider.guards.kafka_client import KafkaClient

    def cluster(file: str) -> KafkaClient:
        return KafkaClient(configuration(file), timeout=MIRROR_TIMEOUT)

    return Mirror(
        MirrorNames(args.mirrored_from, args.mirrored_to, args.replication_policy, args.replication_separator),
        new=cluster(args.kafka_config),
        old=cluster(args.old_kafka_config) if args.old_kafka_config else None,
        location=args.offset_syncs_location,
        margin=args.timestamp_margin,
    )


def _logs(call: Call) -> ReadableLogs:
    """The logs of the checkpoint, or of a backup where a repository is given."""
    args = call.args
    if args.repository is None:
        if args.backup_id is not None or args.name is not None:
            raise UsageError(
                "--backup-id and --name need --repository", hint="give the repository too, or leave them out"
            )
        if args.checkpoint is None:
            raise UsageError("neither CHECKPOINT nor --repository is given", hint="give one of them")
        return logs_of_checkpoint(call.places(args.checkpoint, role="checkpoint"))
    if args.checkpoint is not None:
        raise UsageError("CHECKPOINT and --repository exclude each other", hint="give one of them")
    repository = Repository.open(call.places(args.repository, role="repository"))
    return logs_of_backup(repository, repository.manifest(args.backup_id or "latest", name=args.name))


def _show(found: StartingPositions, screen: Console) -> None:
    after = f"after batch {found.batch_id}" if found.batch_id is not None else "by the sources' own clocks"
    screen.print(terminal.title(f"New checkpoint of {found.origin}"))
    screen.print(Text.assemble((f"It starts {after}  ", "bold"), terminal.verdict(found.verdict)))
    rows: list[tuple[str, str | Text]] = []
    if found.batch_time:
        name = "planned" if found.batch_id is not None else "from"
        rows.append((name, f"{terminal.moment(found.batch_time)}, {terminal.ago(found.batch_time)}"))
    rows += [("note", note) for note in found.notes]
    rows += [(f"set {key}", value) for key, value in found.conf.items()]
    if rows:
        screen.print(terminal.facts(rows))
    for source in found.sources:
        _show_source(source, screen)
    screen.print()
    screen.print(terminal.title("What a new checkpoint means"))
    screen.print(terminal.facts((warning.code, warning.message) for warning in found.warnings))
    if found.unread:
        screen.print()
        screen.print(terminal.title("Could not be read"))
        screen.print(terminal.findings(f"{u.path}: {u.reason}" for u in found.unread))


def _show_source(source: SourcePosition, screen: Console) -> None:
    screen.print()
    head = (f"Source {source.source} ({source.kind})  ", "bold")
    screen.print(Text.assemble(head, terminal.verdict(source.verdict)))
    rows: list[tuple[str, str | Text]] = [
        (f".option({json.dumps(key)})", value) for key, value in source.options.items()
    ]
    if not source.options:
        rows.append(("options", "none"))
    rows += [("", reason) for reason in source.reasons]
    for alternative in source.alternatives:
        for key, value in alternative.options.items():
            rows.append((f"or {key}", value))
        rows.append(("", alternative.use))
    screen.print(terminal.facts(rows))
