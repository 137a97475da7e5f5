"""Changes of sources: count, order, kind, and what they read as far as offsets show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from airflow_ckpt_provider.checkpoint.query_shape import QueryShape, SourceShape
from airflow_ckpt_provider.units import is_number
from airflow_ckpt_provider.upgrade.compatibility import kinds
from airflow_ckpt_provider.upgrade.compatibility.change import Change

_UNKNOWN = "unknown"
_MORE_FILES = "describe it where all of its directories have files, and without maxFilesPerTrigger; or rehearse it"
_READS = {"kafka": kinds.SOURCE_TOPICS, "delta": kinds.SOURCE_TABLE, "file": kinds.SOURCE_PATH}


def source_changes(old: QueryShape, new: QueryShape) -> Iterator[Change]:
    """Compare the sources by their place in the plan, as Spark does; named ones (Spark 4.2) by name.

    :param old: of the checkpoint.
    :param new: of the new code.
    """
    before, now = old.sources, new.sources
    if len(before) != len(now):
        said = f"{len(before)} in the checkpoint ({_listed(before)}), {len(now)} in the new code ({_listed(now)})"
        yield Change(kinds.SOURCES_COUNT, "sources", said)
        return
    identities = [(s.kind, s.reads) for s in before], [(s.kind, s.reads) for s in now]
    known = all(s.kind != _UNKNOWN and s.reads for s in (*before, *now))
    named = any(not is_number(s.source) for s in before)
    if known and not named and identities[0] != identities[1] and Counter(identities[0]) == Counter(identities[1]):
        yield Change(
            kinds.SOURCES_ORDER, "sources", f"{_listed(before)} in the checkpoint, {_listed(now)} in the new code"
        )
        return
    by_name = {s.source: s for s in now}
    if set(by_name) != {s.source for s in before}:
        said = f"{_listed(before)} in the checkpoint, {_listed(now)} in the new code"
        yield Change(kinds.SOURCES_NAMES, "sources", said)
    for was in before:
        if was.source in by_name:
            yield from _of_one(was, by_name[was.source])


def _of_one(was: SourceShape, now: SourceShape) -> Iterator[Change]:
    subject = f"source {was.source}"
    if was.kind == now.kind == _UNKNOWN:
        yield Change(kinds.SOURCE_UNKNOWN, subject, f"{subject} has offsets of a kind that is not known here")
    elif _UNKNOWN in (was.kind, now.kind):
        # A source without an offset yet has no kind either.
        yield Change(kinds.SOURCE_UNKNOWN, subject, f"{subject} was {was.kind} and is {now.kind}")
    elif was.kind != now.kind:
        yield Change(kinds.SOURCE_KIND, subject, f"{subject} was {was.kind} and is {now.kind}")
    elif not (was.reads and now.reads):
        where = "the new code" if was.reads else "the checkpoint"
        yield Change(
            kinds.SOURCE_UNKNOWN, subject, f"what {subject} ({was.kind}) reads is not shown by an offset of {where}"
        )
    elif was.reads != now.reads:
        said = f"{subject} ({was.kind}) read {', '.join(was.reads)} and reads {', '.join(now.reads)}"
        if was.kind == "file" and _within(was, now):
            yield Change(kinds.SOURCE_UNKNOWN, subject, f"{said} as far as its files show", _MORE_FILES)
        else:
            yield Change(_READS[was.kind], subject, said)


def _within(was: SourceShape, now: SourceShape) -> bool:
    """Whether one of two directories is in the other: known is what the files have in common that were read, a part perhaps."""
    (before,), (after,) = ((f"{directory}/" for directory in source.reads) for source in (was, now))
    return before.startswith(after) or after.startswith(before)


def _listed(sources: tuple[SourceShape, ...]) -> str:
    return ", ".join(" ".join((s.source, s.kind, *s.reads)) for s in sources) or "none"
