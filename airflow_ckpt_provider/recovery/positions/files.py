"""Files: which ones were read is in the source's own log, so a new checkpoint can know them one by one.

Open Spark has no option for it: its streaming file source refuses ``modifiedAfter`` (``option 'modifiedafter' is not allowed in
file stream sources``; only batch reads and Auto Loader take it), and ``maxFileAge`` lets the first batch read everything. But
Spark fills its memory of read files from ``sources/<n>`` at every start, and takes from entry k of that log only files that
bear the number k. So a *seed*, ``sources/<n>/0`` with the read files under a number that no batch has, makes them known and
read by nobody: exact, also for stateful queries. Run on Spark 4.0.0.

``modifiedAfter``, for Auto Loader and batch reads: files modified *after* it (not at it). **The tie rule**: files of the newest
read file's own millisecond may be unread, so the time is a millisecond before it; nothing is lost, and the read files of that
millisecond are read again. They are counted.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from airflow_ckpt_provider.checkpoint.file_source_log import SEEDED, FileSourceLog, LoggedFile
from airflow_ckpt_provider.checkpoint.source_offsets import FileOffset
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.recovery.positions.position import Alternative, Seed, SourcePosition
from airflow_ckpt_provider.verdict import Verdict

AUTO_LOADER = "auto-loader"
_IN_UTC = {"spark.sql.session.timeZone": "UTC"}
_USE_MODIFIED_AFTER = (
    "Auto Loader (format cloudFiles), or a batch read of what is left, in a session whose time zone is UTC (in "
    "others Spark "
    "shifts the time: west of Greenwich files are lost); open Spark's streaming file source refuses the option"
)


def file_position(source: str, log: FileSourceLog, *, directory: str | None = None) -> SourcePosition:
    """Start with the files that were not read.

    :param log: the source's log, divided at the batch.
    :param directory: that of the log in ``sources/``, where the source's name is another one (Spark 4.2).
    """
    files = len(log.read)
    seed = seed_of(directory or source, log.read) if log.read else None
    reasons = []
    verdict, repeats = Verdict.SAFE, dict[str, int]()
    if seed:
        verdict, repeats = Verdict.WILL_DUPLICATE, {"files": files}
        reasons.append(
            f"without {seed.path} in the new checkpoint all {files:,} files that were read are read again; with "
            f"it, none is "
            "and none is lost (airflow-ckpt positions --seed NEW_CHECKPOINT puts it there)"
        )
    if log.unread:
        verdict = Verdict.WILL_DUPLICATE
        reasons += [f"{path}: {reason}; files that it alone named are read again" for path, reason in log.unread]
    alternatives = (modified_after(log),) if log.read else ()
    # Without the log nothing is known of what was read, and a count would be too small.
    counted = None if log.unread and not seed else repeats
    return SourcePosition(
        source, FileOffset.kind, {}, verdict, tuple(reasons), counted, alternatives=alternatives, seed=seed
    )


def seed_of(directory: str, files: tuple[LoggedFile, ...]) -> Seed:
    """Make the seed that lists files as read."""
    lines = (
        json.dumps(
            {"path": f.path, "timestamp": f.modified_ms, "batchId": SEEDED}, separators=(",", ":"), ensure_ascii=False
        )
        for f in files
    )
    return Seed(f"sources/{directory}/0", "\n".join(["v1", *lines]).encode(), len(files))


def modified_after(log: FileSourceLog) -> Alternative:
    """The newest time after which all unread files were modified, as far as the log shows."""
    newest = max(f.modified_ms for f in log.read)
    oldest_unread = min((f.modified_ms for f in log.beyond), default=newest)
    after = min(newest, oldest_unread) - 1
    again = sum(f.modified_ms > after for f in log.read)
    # Taken in the order of their times, no file older than a read one is left. Otherwise (latestFirst, or files that
    # came late with an old time) one may be, which only a listing of the directory could show.
    in_order = all(a.modified_ms <= b.modified_ms for a, b in pairwise(_oldest_by_log_id(log)))
    use = _USE_MODIFIED_AFTER
    if log.unread:
        in_order = False
    if not in_order:
        use += (
            "; the log does not show files in the order of their times (latestFirst, late files, or a damaged log): unread "
            "ones older than the time would be lost"
        )
    verdict = (Verdict.WILL_DUPLICATE if again else Verdict.SAFE) if in_order else Verdict.UNKNOWN
    return Alternative("modified_after", use, {"modifiedAfter": _text(after)}, verdict, {"files": again})


def file_position_by_clock(source: str, *, time: datetime) -> SourcePosition:
    """Start with files modified at or after a time; for Auto Loader and batch reads."""
    ms = int(time.timestamp() * 1000) - 1
    return SourcePosition(
        source,
        FileOffset.kind,
        {"modifiedAfter": _text(ms)},
        Verdict.UNKNOWN,
        (
            "modifiedAfter is for Auto Loader and batch reads; open Spark's streaming file source refuses it, "
            "and has no option that "
            "starts at a time: move older files away, or choose a batch that is in the log",
        ),
        None,
        conf=_IN_UTC,
    )


def auto_loader_position(source: str, *, time: datetime | None) -> SourcePosition:
    """Auto Loader keeps its list of files in a format that only Databricks reads: the batch's time is all there is."""
    query = "SELECT min(create_time) FROM cloud_files_state('CHECKPOINT') WHERE commit_time IS NULL"
    return SourcePosition(
        source,
        AUTO_LOADER,
        {"modifiedAfter": _text(int(time.timestamp() * 1000) - 1)} if time else {},
        Verdict.UNKNOWN,
        (
            "Auto Loader's own list of files (RocksDB) is closed to us: the time is that of the batch's "
            "planning. Files older than it "
            f"that were still waiting would be lost; on Databricks `{query}` returns the time before which none waits",
        ),
        None,
        conf=_IN_UTC,
    )


def is_auto_loader(text: str) -> bool:
    """Whether an offset line looks like Auto Loader's: ``{"seqNum":…,"sourceVersion":…,…}``."""
    try:
        value = load_json(text)
    except ValueError:
        return False
    return isinstance(value, dict) and {"seqNum", "sourceVersion"} <= value.keys()


def _oldest_by_log_id(log: FileSourceLog) -> list[LoggedFile]:
    """Per log id the newest file, then the oldest of the next: in order when each id's files follow those before."""
    spread: list[LoggedFile] = []
    by_id: dict[int, list[LoggedFile]] = {}
    for file in log.read:
        if file.log_id != SEEDED:
            by_id.setdefault(file.log_id, []).append(file)
    for log_id in sorted(by_id):
        files = sorted(by_id[log_id], key=lambda f: f.modified_ms)
        spread += [files[0], files[-1]]
    return spread


def _text(ms: int) -> str:
    time = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)
    return time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"
