"""The first ``streams.yaml``, from checkpoints that were found."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from airflow_ckpt_provider.backup.names import is_name
from airflow_ckpt_provider.streams.schema import MODELINE

_PLAIN = re.compile(r"[A-Za-z_/][\w./:@+=-]*")


def first_file(found: Mapping[str, str], *, root: str, repository: str | None, schema: str) -> str:
    """Write the text of a first file: what is known, and comments for what a person adds.

    :param found: name of each stream -> its checkpoint.
    :param root: where they were looked for.
    :param repository: where their backups go; ``None``: a person fills it in.
    :param schema: path or URL of the JSON Schema.
    """
    shared = _shared(found)
    kept = (
        f"  repository: {_text(repository)}"
        if repository
        else "  # repository: s3://backups/streams    # where the backups go"
    )
    lines = [
        f"{MODELINE}{schema}",
        f"# {len(found)} stream{'' if len(found) == 1 else 's'} below {root}, found by airflow-ckpt streams init.",
        "# Next: fill in what is commented out and true for your streams, then run: airflow-ckpt streams check",
        "defaults:",
        *([f"  checkpoint: {_text(shared)}"] if shared else []),
        kept,
        "  # storage_conn_id: aws_default       # Airflow connection to the stores; no secrets in this file",
        "  # kafka_conn_id: kafka_default       # where streams read from Kafka",
        "  # max_downtime: 24h                  # the sources have to keep what is unread for so long",
        "  # objectives: {rpo: 1h, rto: 15m, restorable_for: 30d}",
        "  # retention: {hourly: 48, daily: 30}  # which backups are kept; all where it is left out",
        "  # stop: ./stop.sh {stream}           # how a stream is stopped and started, for restore, rewind and upgrade",
        "  # start: ./start.sh {stream}",
        "  backup: {create: true}               # makes the repository in an empty place; remove it afterwards",
        "streams:",
    ]
    for number, (name, checkpoint) in enumerate(found.items()):
        lines.append(f"  {_text(name)}:")
        if not shared:
            lines.append(f"    checkpoint: {_text(checkpoint)}")
        if not number:
            lines.append("    # sinks: [s3://lake/tables/orders]   # what the query writes to; all of it")
            lines.append("    # sources: {kafka: {conn_id: kafka_prod}}")
            lines.append("    # driver: {progress_log: s3://lake/logs/orders.jsonl}")
    return "\n".join(lines) + "\n"


def free_name(name: str, taken: Mapping[str, str]) -> str:
    """A name that a stream can have, and none has yet.

    :param name: the name that it would have.
    :param taken: the names that are given.
    """
    plain = re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._=-]", "-", name)).lstrip(".-=") or "stream"
    found, number = plain, 2
    while found in taken or not is_name(found):
        found, number = f"{plain}-{number}", number + 1
    return found


def _shared(found: Mapping[str, str]) -> str | None:
    """The pattern of all checkpoints, where they differ in the name of the stream alone."""
    patterns = {
        checkpoint.removesuffix(name) + "{stream}"
        for name, checkpoint in found.items()
        if checkpoint.endswith(f"/{name}")
    }
    whole = len(patterns) == 1 and all(checkpoint.endswith(f"/{name}") for name, checkpoint in found.items())
    return patterns.pop() if whole else None


def _text(value: str) -> str:
    """A text as YAML: plain where no other reader could take it for something else."""
    words = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    return (
        value
        if _PLAIN.fullmatch(value.replace("{stream}", "stream")) and value.lower() not in words
        else json.dumps(value)
    )
