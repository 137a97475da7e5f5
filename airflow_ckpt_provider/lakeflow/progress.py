"""How far a flow has read, as the event log's ``stream_progress`` events tell it.

Such an event is Spark's ``StreamingQueryProgress`` of one batch. Spark reports a batch after its output was written, so
everything below ``endOffset`` is in the table. A batch after it may have been written too: the event of the last one can be
missing. The vendor marks these events EVOLVING; that the interface returns them is not established, the event log table has
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_ckpt_provider.checkpoint.source_offsets import DeltaOffset, KafkaOffset, Offset, parse_offset
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.lakeflow.flows import bare

STREAM_PROGRESS = "stream_progress"
#: How descriptions begin -> kind.
_KINDS = {"KafkaV2[": "kafka", "KafkaSource[": "kafka", "DeltaSource[": "delta", "CloudFiles": "files"}
_IN_BRACKETS = re.compile(r"\[(.*)\]\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """One source of a batch.

    :param description: Spark's words for it, such as ``KafkaV2[Subscribe[orders]]``.
    :param end: where the batch ended; ``None`` where it is void, cut off, or cannot be read.
    :param cut: the event log has shortened it.
    """

    description: str
    end: Offset | None
    cut: bool = False

    @property
    def kind(self) -> str:
        """``kafka``, ``delta`` or ``files``, by the offset or the description; empty where neither shows."""
        if isinstance(self.end, KafkaOffset | DeltaOffset):
            return self.end.kind
        found = (kind for words, kind in _KINDS.items() if self.description.startswith(words))
        return next(found, "")

    @property
    def place(self) -> str:
        """What the description has in brackets, such as a directory; empty where it has none."""
        found = _IN_BRACKETS.search(self.description)
        return found[1] if found else ""

    @property
    def name(self) -> str:
        """Its topics, or else its place or description."""
        if isinstance(self.end, KafkaOffset):
            return ",".join(sorted(self.end.partitions))
        return self.place or self.description


@dataclass(frozen=True, slots=True)
class FlowProgress:
    """The newest batch of a flow that was reported.

    :param flow: its name, as the event has it.
    :param update_id: the update that ran it.
    :param time: of the event, in UTC, by the workspace's clock.
    :param query_id: id of the checkpoint; empty if it is not reported.
    :param batch_id: number of the newest batch that is known to be written; ``None`` if it is not reported.
    :param sources: in the order of the query.
    :param operators: names of its stateful operators.
    """

    flow: str
    update_id: str
    time: datetime
    query_id: str
    batch_id: int | None
    sources: tuple[SourceProgress, ...]
    operators: tuple[str, ...] = ()


def progress_of(event: Mapping[str, Any]) -> FlowProgress | None:
    """Read an event; ``None`` where it is none of progress, or has another shape than the one that is known."""
    if event.get("event_type") != STREAM_PROGRESS:
        return None
    origin, details = _object(event.get("origin")), _object(event.get("details"))
    found = _object(details.get(STREAM_PROGRESS))
    progress = _object(found.get("progress") or found.get("progress_json"))
    time = moment(event.get("timestamp"))
    sources = progress.get("sources")
    if not origin.get("flow_name") or time is None or not isinstance(sources, list):
        return None
    batch = progress.get("batchId")
    if isinstance(batch, int) and not any(_moved(_object(each)) for each in sources):
        # A trigger that found nothing reports the number of a batch that has not run.
        batch -= 1
    return FlowProgress(
        str(origin["flow_name"]),
        str(origin.get("update_id") or ""),
        time,
        str(progress.get("id") or ""),
        batch if isinstance(batch, int) else None,
        tuple(_source(_object(each)) for each in sources),
        tuple(str(_object(each).get("operatorName") or "?") for each in progress.get("stateOperators") or ()),
    )


def newest_progress(events: Iterable[Mapping[str, Any]], flow: str) -> FlowProgress | None:
    """Return the newest progress of a flow among events in any order.

    :param flow: its name; without catalog and schema it is compared with the bare names of the events.
    """
    found = [progress for progress in map(progress_of, events) if progress and same_flow(progress.flow, flow)]
    return max(found, key=lambda progress: progress.time, default=None)


def same_flow(shown: str, given: str) -> bool:
    """Whether an event's name of a flow is the one that is given."""
    return shown == given or ("." not in given and bare(shown) == bare(given))


def moment(text: Any) -> datetime | None:
    """Read a time of the workspace, in UTC; ``None`` where it is none."""
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def _moved(source: Mapping[str, Any]) -> bool:
    """Whether a batch read something of a source; where offsets are cut, its rows tell."""
    rows = source.get("numInputRows")
    if isinstance(rows, int) and rows > 0:
        return True
    cut = source.get("startOffsetTruncated") or source.get("endOffsetTruncated")
    return not cut and _object(source.get("startOffset")) != _object(source.get("endOffset"))


def _source(source: Mapping[str, Any]) -> SourceProgress:
    cut = bool(source.get("endOffsetTruncated"))
    end = source.get("endOffset")
    description = str(source.get("description") or "")
    if end is None or cut:
        return SourceProgress(description, None, cut)
    try:
        return SourceProgress(description, parse_offset(end if isinstance(end, str) else json.dumps(end)))
    except ValueError:
        return SourceProgress(description, None, cut=True)


def _object(value: Any) -> Mapping[str, Any]:
    """An object that may come as JSON text, even twice."""
    for _ in range(2):
        if isinstance(value, str):
            try:
                value = load_json(value)
            except ValueError:
                return {}
    return value if isinstance(value, Mapping) else {}
