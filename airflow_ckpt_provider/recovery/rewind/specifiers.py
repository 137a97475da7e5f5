"""Where to rewind to, in the words of ``kafka-consumer-groups --reset-offsets``, resolved to one committed batch.

A target out of range is refused with the range, never moved to the nearest one.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_ckpt_provider.checkpoint.source_offsets import KafkaOffset
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.rewind.specifier import KINDS, Specifier
from airflow_ckpt_provider.recovery.rewind.targets import RewindTarget, chosen, span
from airflow_ckpt_provider.units import format_time, is_number, parse_duration, parse_time


@dataclass(frozen=True, slots=True)
class Resolved:
    """The batch a specifier means.

    :param target: the batch.
    :param notes: what the person who asked should know, such as by how many records it differs from what was asked for.
    """

    target: RewindTarget
    notes: tuple[str, ...] = ()


def resolve(
    specifier: Specifier, targets: Sequence[RewindTarget], *, newest: int, now: datetime | None = None
) -> Resolved:
    """Find the batch.

    :param specifier: where to.
    :param targets: reachable batches, ascending.
    :param newest: the newest committed batch of the checkpoint.
    :param now: the present, for ``by_duration``.
    :raises RefusedError: the value cannot be read, or no reachable batch fits it.
    """
    reachable = list(targets)
    if not reachable:
        raise RefusedError(
            "no batch can be rewound to: the checkpoint has no committed batch with everything it needs",
            hint="restore a backup (`airflow-ckpt restore`), or rewind to one (--repository)",
        )
    kind, value = specifier.kind, specifier.value
    if kind == "to_batch":
        return Resolved(chosen(reachable, _number(value, "--to-batch")))
    if kind == "shift_by":
        return _shifted(reachable, _number(value, "--shift-by"), newest)
    if kind == "to_earliest":
        return Resolved(reachable[0])
    if kind in ("to_latest", "to_current"):
        return Resolved(chosen(reachable, newest))
    if kind == "to_datetime":
        return _ended_by(reachable, parse_time(value), value)
    if kind == "by_duration":
        return _ended_by(reachable, _ago(now or datetime.now(UTC), value), f"{value} ago")
    if kind == "from_file":
        return _at_offsets(reachable, kafka_offsets(value))
    raise RefusedError(f"{kind} is not a way to say where to", hint=f"use one of {', '.join(KINDS)}")


def kafka_offsets(content: str) -> dict[str, dict[int, int]]:
    """Read ``topic,partition,offset`` lines as ``kafka-consumer-groups --export`` writes them (a group in front is left out).

    :raises RefusedError: a line is none.
    """
    offsets: dict[str, dict[int, int]] = {}
    for number, row in enumerate(csv.reader(io.StringIO(content)), 1):
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        *_, topic, partition, offset = ["", "", "", *cells]
        if not (topic and is_number(partition) and is_number(offset)):
            raise RefusedError(f"line {number} is not topic,partition,offset: {','.join(row)[:80]!r}")
        offsets.setdefault(topic.strip('"'), {})[int(partition)] = int(offset)
    if not offsets:
        raise RefusedError("the file holds no offsets", hint="one line for each partition: topic,partition,offset")
    return offsets


def _ago(now: datetime, text: str) -> datetime:
    try:
        return now - parse_duration(text)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _number(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RefusedError(f"{option} {text!r} is not a whole number") from None


def _shifted(targets: list[RewindTarget], by: int, newest: int) -> Resolved:
    if newest + by < 0:
        raise RefusedError(
            f"--shift-by {by} from batch {newest} is before the first batch; reachable: {span(targets)}",
            hint="use a smaller number, or --to-earliest",
        )
    return Resolved(chosen(targets, newest + by))


def _ended_by(targets: list[RewindTarget], when: datetime, asked: str) -> Resolved:
    timed = [(t, t.ended) for t in targets if t.ended]
    if not timed:
        raise RefusedError("no reachable batch has a time", hint="continuous mode logs none; use --to-batch")
    before = [t for t, ended in timed if ended <= when]
    if not before:
        first, ended = timed[0]
        raise RefusedError(
            f"no reachable batch had ended at {asked} ({format_time(when)}); the oldest, batch {first.batch_id}, ended "
            f"at {format_time(ended)}",
            hint="choose a later time, or rewind to an older backup (--repository)",
        )
    if when > datetime.now(UTC):
        raise RefusedError(
            f"{asked} is in the future", hint="choose a time in the past; to change nothing use --to-current"
        )
    return Resolved(max(before, key=lambda t: t.batch_id))


def _at_offsets(targets: list[RewindTarget], wanted: dict[str, dict[int, int]]) -> Resolved:
    """The newest batch that is nowhere beyond the offsets asked for."""
    ranked = [(t, ends) for t in targets if (ends := _kafka_ends(t))]
    if not ranked:
        raise RefusedError("no reachable batch has offsets of Kafka", hint="use another way to say where to")
    known = {(topic, p) for topic, ps in ranked[-1][1].items() for p in ps}
    strange = sorted({(topic, p) for topic, ps in wanted.items() for p in ps} - known)
    if strange:
        raise RefusedError(
            f"the stream does not read {strange[0][0]}-{strange[0][1]}",
            hint=f"it reads {', '.join(f'{topic}-{p}' for topic, p in sorted(known))}",
        )
    fitting = [
        (t, ends)
        for t, ends in ranked
        if all(ends.get(topic, {}).get(p, 0) <= offset for topic, ps in wanted.items() for p, offset in ps.items())
    ]
    if not fitting:
        raise RefusedError(
            f"every reachable batch is beyond those offsets; reachable: {span(targets)}",
            hint="rewind to an older backup (--repository), or start a new checkpoint at these offsets",
        )
    target, ends = fitting[-1]
    notes = tuple(
        f"{topic}-{p}: batch {target.batch_id} ends at {ends.get(topic, {}).get(p, 0)}, {offset - ends.get(topic, {}).get(p, 0)} "
        f"records before the offset asked for ({offset})"
        for topic, ps in sorted(wanted.items())
        for p, offset in sorted(ps.items())
        if ends.get(topic, {}).get(p, 0) != offset
    )
    return Resolved(target, notes)


def _kafka_ends(target: RewindTarget) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for source in target.sources:
        if isinstance(source.offset, KafkaOffset):
            for topic, partitions in source.offset.partitions.items():
                found.setdefault(topic, {}).update(partitions)
    return found
