"""Checks of ``offsets/``, ``commits/`` and ``metadata``, by the rules of ``MicroBatchExecution.populateStartOffsets``."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from airflow_ckpt_provider.checkpoint.commits import COMMITS
from airflow_ckpt_provider.checkpoint.doctor import kinds
from airflow_ckpt_provider.checkpoint.doctor.examination import Examination, batch_of
from airflow_ckpt_provider.checkpoint.findings import Finding, Severity
from airflow_ckpt_provider.checkpoint.gaps import gaps
from airflow_ckpt_provider.checkpoint.logs import HIGHEST
from airflow_ckpt_provider.checkpoint.offsets import OFFSETS
from airflow_ckpt_provider.checkpoint.operators import STATE
from airflow_ckpt_provider.checkpoint.query_id import METADATA_FILE, parse_query_id
from airflow_ckpt_provider.errors import UnreadableLogError

#: Batches that a finding lists; one file with a huge number in its name would make the list endless.
_MOST = 10_000


def torn_files(seen: Examination) -> Iterator[Finding]:
    """1: log files that are empty or cut off."""
    read_at_start = _read_at_start(seen)
    for path, error in sorted(seen.unreadable.items()):
        batch = batch_of(path)
        if path in read_at_start:
            yield Finding(kinds.LOG_FILE_TORN, path, error.message, batch)
        else:
            yield Finding(
                kinds.LOG_FILE_TORN,
                path,
                error.message,
                batch,
                effect="Starts: it does not read this older entry. No rewind can reach this batch.",
                remedy="Fetch the file from a backup, or let it grow old: Spark purges it in time.",
                level=Severity.WARNING,
            )


def unknown_versions(seen: Examination) -> Iterator[Finding]:
    """18: logs of a newer Spark."""
    if seen.newer:
        path = max(seen.newer, key=lambda p: batch_of(p) or 0)
        yield Finding(
            kinds.FORMAT_UNKNOWN,
            path,
            f"{path} is in log version v{seen.newer[path]} ({len(seen.newer)} files in all)",
            batch_of(path),
            {"version": seen.newer[path], "files": len(seen.newer)},
        )


def _read_at_start(seen: Examination) -> set[str]:
    """The log files that Spark reads when it starts."""
    paths = {f"{OFFSETS}/{b}" for b in (*seen.logged[-2:], *_of_replay(seen))}
    return paths | {f"{COMMITS}/{b}" for b in seen.committed[-1:]}


def _of_replay(seen: Examination) -> tuple[int, ...]:
    committed = seen.latest_committed
    return () if committed is None else tuple(b for b in seen.logged if b == committed)


def holes(seen: Examination) -> Iterator[Finding]:
    """2 and 3: entries missing in ``offsets/`` though they are not legal gaps of asynchronous progress tracking."""
    latest = seen.latest_logged
    if not latest or seen.is_continuous:
        return
    first, logged, committed = seen.logged[0], set(seen.logged), set(seen.committed)
    between = (b for b in seen.committed if first < b < latest and b not in logged)
    lost = chain.from_iterable(gaps(logged, first, latest)) if seen.has_state else between
    # No stream gets to the highest number, so asynchronous progress tracking has left nothing out before it.
    is_lost = seen.has_state or latest - 1 in committed or latest == HIGHEST
    if first == latest or (latest - 1 not in logged and is_lost):
        yield Finding(
            kinds.OFFSETS_NO_PREVIOUS,
            f"{OFFSETS}/{latest - 1}",
            f"{OFFSETS}/{latest - 1} is missing: Spark reads it when it starts from {OFFSETS}/{latest}",
            latest - 1,
        )
    older = list(islice((b for b in lost if b != latest - 1), _MOST))
    if older:
        yield Finding(
            kinds.OFFSETS_HOLE,
            f"{OFFSETS}/{older[0]}",
            f"{OFFSETS}/ has no entry of {_batches(older)}, between {first} and {latest}",
            older[0],
            {"batches": older},
        )


def commits_beyond(seen: Examination) -> Iterator[Finding]:
    """4: commits without offset log entries."""
    latest, committed = seen.latest_logged, seen.latest_committed
    if committed is None or (latest is not None and committed <= latest):
        return
    beyond = [b for b in seen.committed if latest is None or b > latest]
    if latest is None:
        yield Finding(
            kinds.COMMITS_BEYOND_OFFSETS,
            COMMITS,
            f"{OFFSETS}/ is empty while {COMMITS}/ reaches batch {committed}",
            committed,
            {"latest_logged": None, "latest_committed": committed},
            effect="Refuses to start since 4.1. Before, it begins again with batch 0, whose rows reach the sink a second time, "
            "and fails at the first commit that exists.",
            remedy="Fetch the offsets from a backup (`--repair --repository`), or restore one; without a backup, only a reset "
            "remains.",
        )
        return
    yield Finding(
        kinds.COMMITS_BEYOND_OFFSETS,
        f"{COMMITS}/{beyond[0]}",
        f"{COMMITS}/ reaches batch {committed}, {OFFSETS}/ only {latest}: batch {latest} would be run again",
        committed,
        {"latest_logged": latest, "latest_committed": committed},
    )


def skipped_batches(seen: Examination) -> Iterator[Finding]:
    """5: logged batches that will never run."""
    latest, committed = seen.latest_logged, seen.latest_committed
    if latest is None or seen.is_continuous or seen.has_gaps:
        return
    newest = -1 if committed is None else committed
    skipped = [b for b in seen.logged if newest < b < latest]
    if not skipped:
        return
    done = "no batch is committed" if committed is None else f"batch {committed} is the newest commit"
    yield Finding(
        kinds.BATCHES_SKIPPED,
        f"{COMMITS}/{skipped[0]}",
        f"{done}, {latest} the newest logged: {_batches(skipped)} would never be run",
        skipped[0],
        {"batches": skipped, "latest_logged": latest, "latest_committed": committed},
    )


def query_id(seen: Examination) -> Iterator[Finding]:
    """6: ``metadata`` missing, or not readable."""
    file = seen.tree.get(METADATA_FILE)
    if file is None:
        if seen.logged or seen.committed:
            yield Finding(kinds.QUERY_ID_MISSING, METADATA_FILE, f"{METADATA_FILE} is missing")
        return
    try:
        parse_query_id(seen.tree.read(file))
    except UnreadableLogError as e:
        yield Finding(
            kinds.QUERY_ID_MISSING,
            METADATA_FILE,
            e.message,
            effect="Fails at every start: it cannot parse the file.",
            level=Severity.ERROR,
        )


def state_without_logs(seen: Examination) -> Iterator[Finding]:
    """13: state, and nothing that says where the stream was."""
    if seen.has_state and not seen.logged and not seen.committed:
        files = sum(1 for _ in seen.tree.below(STATE))
        yield Finding(
            kinds.STATE_WITHOUT_LOGS,
            STATE,
            f"{STATE}/ holds {files} files, {OFFSETS}/ and {COMMITS}/ none",
            figures={"files": files},
        )


def _batches(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return f"batch {shown}" if len(numbers) == 1 else f"batches {shown}" + (", …" if len(numbers) > 5 else "")
