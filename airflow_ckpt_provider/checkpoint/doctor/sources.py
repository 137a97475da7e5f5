"""Checks of ``sources/<n>/``: the log of a file source has to reach as far as the offsets, and not beyond."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_ckpt_provider.checkpoint.doctor import kinds
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination
from airflow_ckpt_provider.checkpoint.findings import Finding, Severity
from airflow_ckpt_provider.checkpoint.logs import batch_id_of, parse_object, split_log
from airflow_ckpt_provider.checkpoint.offsets import OffsetEntry
from airflow_ckpt_provider.checkpoint.sources import SOURCES, is_read, log_ends, source_closure
from airflow_ckpt_provider.errors import MissingFileError, UnreadableLogError

#: A file source logs its files, then the batch its offset: killed in between, it leaves one entry more.
_LEGAL = 1


def source_logs(seen: Examination) -> Iterator[Finding]:
    """12: a file source's log that is not as the newest readable offsets say."""
    entry = seen.newest
    if entry is None or seen.is_continuous:
        return
    try:
        needed = {file.path for file in source_closure(seen.tree, entry)}
    except (MissingFileError, UnreadableLogError) as e:
        yield Finding(kinds.SOURCE_LOG_INCOMPLETE, e.path, e.message, entry.batch_id)
    else:
        torn = torn_entries(seen) if seen.contents else {}
        torn = {path: why for path, why in torn.items() if path in needed and is_read(path, needed)}
        for path, why in sorted(torn.items())[:1]:
            more = f" (and {len(torn) - 1} more)" if len(torn) > 1 else ""
            yield Finding(kinds.SOURCE_LOG_INCOMPLETE, path, why + more, entry.batch_id)
    if (
        seen.latest_committed is None or seen.latest_committed <= entry.batch_id
    ):  # else offsets were lost, which is said
        yield from _leftovers(seen, entry)


def torn_entries(seen: Examination) -> dict[str, str]:
    """Path -> what is wrong, of entries in the logs of file sources that cannot be read."""
    torn = {}
    for source in log_ends(seen.tree, seen.newest) if seen.newest else ():
        for name, file in sorted(seen.tree.files(f"{SOURCES}/{source}").items()):
            if batch_id_of(name.removesuffix(".compact")) is None:
                continue
            if why := torn_entry(seen.tree.read(file), path=file.path):
                torn[file.path] = why
    return torn


def torn_entry(data: bytes, *, path: str) -> str | None:
    """What is wrong with an entry in the log of a file source, or ``None``."""
    try:
        _, lines = split_log(data, path=path, batch_id=None, known=frozenset({1}))
        for line in lines:
            parse_object(line, path=path, batch_id=None)
    except UnreadableLogError as e:
        return e.message
    return None


def _leftovers(seen: Examination, entry: OffsetEntry) -> Iterator[Finding]:
    for source, last in sorted(log_ends(seen.tree, entry).items()):
        names = seen.tree.files(f"{SOURCES}/{source}")
        ids = sorted({i for n in names if (i := batch_id_of(n.removesuffix(".compact"))) is not None and i > last})
        if len(ids) > _LEGAL:
            yield Finding(
                kinds.SOURCE_LOG_INCOMPLETE,
                f"{SOURCES}/{source}/{ids[0]}",
                f"{SOURCES}/{source} has {len(ids)} entries beyond the offsets of batch {entry.batch_id}",
                entry.batch_id,
                {"entries": len(ids)},
                effect="Takes the files of all of them in one batch, whatever maxFilesPerTrigger says. None is lost.",
                remedy="Harmless for most queries. `--repair` removes them where it cuts back to an older batch.",
                level=Severity.WARNING,
            )
