"""Commits that stop a stream which reads the table: deletes, updates, overwrites, and restores.

A Delta source takes appended rows only. The rules are those of ``DeltaSource.validateCommitAndDecideSkipping``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from airflow_ckpt_provider.guards.delta_log import DeltaCommit
from airflow_ckpt_provider.guards.reader_options import is_on
from airflow_ckpt_provider.guards.report import Judgement
from airflow_ckpt_provider.verdict import Verdict

#: Commits named one by one; of the rest only the number with each verdict.
_SHOWN = 20


def judge_changes(commits: Sequence[DeltaCommit], options: Mapping[str, str]) -> list[Judgement]:
    """Judge commits that took rows away.

    :param commits: those that are to be read, ascending.
    :param options: the query's reader options, as far as they are known.
    """
    if reads_changes(options):  # deletes and updates are rows like any other
        return []
    judged = [_judge(commit, options) for commit in commits if commit.removed]
    found, more = judged[:_SHOWN], Counter(judgement.verdict for judgement in judged[_SHOWN:])
    return found + [
        Judgement(verdict, f"{count:,} more versions that take rows away or rewrite them: {verdict.value}")
        for verdict, count in more.items()
    ]


def judge_changes_again(commits: Sequence[DeltaCommit], options: Mapping[str, str]) -> list[Judgement]:
    """Judge commits that took rows away, were read by the newest batch, and are asked for again at the start.

    The query has gone past them, by an option that it may not have any more.

    :param commits: those that are asked for again.
    :param options: the query's reader options, as far as they are known.
    """
    stops = [each for each in judge_changes(commits, options) if each.verdict is Verdict.WILL_FAIL]
    if not stops:
        return []
    return [
        Judgement(
            Verdict.UNKNOWN,
            f"the newest batch has read this by an option, and Spark asks for it again at its start: {stops[0].reason}. Whether "
            "the query still has the option is not known: give it to the guard",
        )
    ]


def reads_changes(options: Mapping[str, str]) -> bool:
    """Whether a query reads the change data feed of its table."""
    return is_on(options, "readChangeFeed") or is_on(options, "readChangeData")


def _judge(commit: DeltaCommit, options: Mapping[str, str]) -> Judgement:
    rows = _rows(commit)
    if is_on(options, "skipChangeCommits"):
        if commit.added:
            return Judgement(
                Verdict.WILL_SKIP, f"{commit.name} is skipped whole (skipChangeCommits), with its new rows{rows}"
            )
        else:
            return Judgement(Verdict.SAFE, f"{commit.name} only deletes, and is skipped (skipChangeCommits)")
    elif is_on(options, "ignoreChanges") or is_on(options, "ignoreFileDeletion"):
        if commit.added:
            return Judgement(
                Verdict.WILL_DUPLICATE, f"{commit.name} rewrites files, which are read whole (ignoreChanges){rows}"
            )
        else:
            return Judgement(Verdict.SAFE, f"{commit.name} only deletes, which is ignored (ignoreChanges)")
    elif commit.added:
        return Judgement(
            Verdict.WILL_FAIL,
            f"{commit.name} updates or replaces rows: DELTA_SOURCE_TABLE_IGNORE_CHANGES; skipChangeCommits=true "
            "leaves the version out",
        )
    elif is_on(options, "ignoreDeletes"):
        return Judgement(Verdict.SAFE, f"{commit.name} only deletes, which is ignored (ignoreDeletes)")
    else:
        return Judgement(
            Verdict.WILL_FAIL,
            f"{commit.name} deletes rows: DELTA_SOURCE_IGNORE_DELETE; ignoreDeletes=true or "
            "skipChangeCommits=true go past it",
        )


def _rows(commit: DeltaCommit) -> str:
    counts = [file.rows for file in commit.added]
    return "" if any(n is None for n in counts) else f": {sum(n or 0 for n in counts):,} rows"
