"""Whether the report of a source guard is about what a starting position names: that topic from that offset on, that table.

A report about something else says nothing of the position, however good it is. Kafka: the report has each partition, and no
others of its topics, and the broker still has the offset. Delta: the report is about the table that the flow reads, or was given
under the name of the flow, and reaches the version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_ckpt_provider.guards.kafka_verdicts import EARLIEST, LATEST
from airflow_ckpt_provider.json_text import load_json, load_rendered
from airflow_ckpt_provider.units import is_number

#: Options of Kafka's reader with offsets, and with times, of each partition.
OFFSETS, TIMES = "startingOffsets", "startingOffsetsByTimestamp"


def reports_by_name(report: Any) -> dict[str, Any]:
    """A guard's report as the XCom of its task, or several by name; a single one has an empty name.

    :param report: the report, several, or nothing; or their JSON.
    :raises ValueError: it is text, and no JSON.
    """
    if isinstance(report, str) and report:
        report = load_rendered(report)
    if isinstance(report, Mapping) and report and "verdict" not in report:
        return {str(name): each for name, each in report.items()}
    return {"": report} if report else {}


def is_asked(report: Any, flow: str, options: Mapping[str, str], read: Sequence[str]) -> bool:
    """Whether a guard has asked for what a position begins with.

    :param report: a guard's report, or several: see :func:`reports_by_name`.
    :param flow: the flow.
    :param options: the position's options of its reader.
    :param read: names of what the position is for: its source, or all that the flow reads if that is one.
    """
    named = list(_sources(report))
    by = next((name for name in (OFFSETS, TIMES) if options.get(name, "").lstrip().startswith("{")), None)
    if by is not None:
        return _has_offsets([source for _, source in named], options[by], by_time=by == TIMES)
    version = options.get("startingVersion", "").strip()
    if not is_number(version):
        return False  # a time, of which a report does not say which version it means
    of_table = [source for name, source in named if name in (flow, *read) or str(source.get("table")) in read]
    return any(_reaches(source, int(version)) for source in of_table)


def _sources(report: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All sources of all reports, each with the name under which its report was given; empty for a single one."""
    for name, each in reports_by_name(report).items():
        sources = each.get("sources") if isinstance(each, Mapping) else None
        for source in sources if isinstance(sources, Sequence) else ():
            if isinstance(source, Mapping):
                yield name, source


def _has_offsets(sources: Sequence[Mapping[str, Any]], given: str, *, by_time: bool) -> bool:
    try:
        wanted = {
            (str(topic), str(number)): at
            for topic, partitions in load_json(given).items()
            for number, at in partitions.items()
        }
    except (ValueError, AttributeError):
        return False
    topics = {topic for topic, _ in wanted}
    parts = [part for source in sources for part in _parts(source) if part.get("topic") in topics]
    seen = {(str(part["topic"]), str(part.get("partition"))): part for part in parts}
    if not wanted or seen.keys() != wanted.keys():
        return False
    return all(_has_time(seen[key], at) if by_time else _has_offset(seen[key], at) for key, at in wanted.items())


def _parts(source: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts = source.get("parts")
    return [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, Sequence) else []


def _has_offset(part: Mapping[str, Any], offset: Any) -> bool:
    earliest, latest = part.get("earliest"), part.get("latest")
    if not isinstance(earliest, int) or not isinstance(latest, int) or not isinstance(offset, int):
        return False
    return offset in (EARLIEST, LATEST) or earliest <= offset <= latest


def _has_time(part: Mapping[str, Any], time: Any) -> bool:
    """Nothing of a partition has been deleted: only then no record of that time or later is known to be missing."""
    return isinstance(time, int) and part.get("earliest") == 0 and isinstance(part.get("latest"), int)


def _reaches(source: Mapping[str, Any], version: int) -> bool:
    first, latest = source.get("start_version"), source.get("latest_version")
    return isinstance(first, int) and isinstance(latest, int) and first <= version <= latest + 1
