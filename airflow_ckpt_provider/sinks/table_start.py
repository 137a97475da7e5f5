"""A start after a batch, and a table that remembers batches: what the table holds of the stream, and what is not known of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_ckpt_provider.checkpoint.gaps import gaps, runs
from airflow_ckpt_provider.guards.delta_log import in_words
from airflow_ckpt_provider.sinks.delta_history import FSCK
from airflow_ckpt_provider.sinks.earlier_run import NONE_PLANNED, of_a_later_run, of_an_earlier_run
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory

_NO_NUMBERS = (
    "; more batches are missing than the log has commits: these are no batch numbers, or were written elsewhere"
)
#: What a table begins with that has the rows of another one, in Delta's words.
_COPIES = ("CLONE", "CONVERT", "CREATE TABLE AS SELECT", "CREATE OR REPLACE TABLE AS SELECT")
_NAME_IT = "name it (--txn-app-id), or give the repository that has the records of the change (--repository)"


@dataclass(frozen=True, slots=True)
class TableStart:
    """A start after a batch, and the table that it finds.

    :param history: the table's log.
    :param ids: the query ids of the stream.
    :param batch_id: the batch after which the query will start.
    :param lineage: the commits whose rows make up the table, oldest first.
    :param unwritten: batches that write nothing, such as an offline repartition.
    :param planned: batch -> when the checkpoint says that it was planned, in UTC.
    :param complete_at: when the backup that the checkpoint comes from had all of its batches, in UTC; ``None``: it is from none.
    """

    history: TableHistory
    ids: QueryIds
    batch_id: int
    lineage: tuple[TableCommit, ...]
    unwritten: frozenset[int]
    planned: Mapping[int, datetime]
    complete_at: datetime | None = None

    @property
    def first(self) -> int:
        """Place in the lineage of the first commit beyond the batch."""
        beyond = (i for i, c in enumerate(self.lineage) if self.ids.is_beyond(c, self.batch_id))
        return next(beyond, len(self.lineage))

    @property
    def before(self) -> tuple[TableCommit, ...]:
        """What the table holds, or would hold after a rollback."""
        return self.lineage[: self.first]

    @property
    def beyond(self) -> tuple[TableCommit, ...]:
        """What a rollback removes."""
        return self.lineage[self.first :]

    @property
    def held(self) -> int | None:
        """Newest batch of the stream in the table."""
        return max(self.batches_of(self.lineage), default=None)

    def batches_of(self, commits: Iterable[TableCommit]) -> list[int]:
        """Batches of the stream, in the order in which they were written."""
        return [batch for c in commits if (batch := self.ids.batch_in(c)) is not None]

    def doubts(self) -> tuple[str, ...]:
        """What is not right, or not known, of the batches up to the target: neither a start nor a rollback changes it."""
        kept = self.batches_of(self.before)
        if not kept:
            return (
                f"the table's log has no commit of {self.ids.in_words()} up to batch {self.batch_id}: whether the "
                "table holds the "
                "rows of those batches is not known",
            )
        first, last = min(kept), max(kept)
        missing = _missing_between(self, first, last)
        committed = self._committed()
        of_others = (*of_an_earlier_run(committed, self.planned), *of_a_later_run(committed, self.complete_at))
        doubts = [*_doubled(kept), *self._lost_below(first), *self._replaced(), *self._lost_files(), *of_others]
        if missing:
            doubts.append(
                f"the table has no commit of {words_of(missing)}, though it has older and newer ones: their rows are missing if "
                f"they had any{_NO_NUMBERS if self._are_no_batches(missing) else ''}"
            )
        tail = gaps(self.unwritten, last + 1, self.batch_id)
        if tail:
            doubts.append(
                f"the table holds batches up to {last}, the checkpoint continues after {self.batch_id}: rows of "
                f"batches {tail[0].start} to {tail[-1].stop - 1} are missing if those batches had any"
            )
        return (*doubts, *self._strange(first))

    def _committed(self) -> dict[int, datetime]:
        """When the table got each batch up to the target, where its commit says that."""
        found: dict[int, datetime] = {}
        for commit in self.before:
            batch = self.ids.batch_in(commit)
            if batch is not None and commit.time:
                found[batch] = max(commit.time, found.get(batch, commit.time))
        return found

    def _replaced(self) -> list[str]:
        """Batches whose rows others took out of the table, all at once; the stream's own commit may write them all again."""
        at = max(self._last_replaced(), 0)
        gone = self.batches_of(c for c in self.before[:at] if c.rows != 0)
        if not gone or self.ids.is_own(self.before[at]):
            return []
        return [
            f"{self.before[at].describe()} left no row in the table that it had before: whether it holds the rows of "
            f"{words_of(runs(gone))} is not known"
        ]

    def _last_replaced(self) -> int:
        """Place of the last commit that left no row of before; -1 without one."""
        whole = (i for i, c in enumerate(self.before) if c.replaces and (c.is_all or not self.ids.is_own(c)))
        return max(whole, default=-1)

    def _lost_files(self) -> list[str]:
        """Files that were lost, and taken out of the table for that reason, unless others alone had written them."""
        after = self.before[self._last_replaced() + 1 :]
        found = [(c, c.removed - self._files_of_others()) for c in after if c.operation.startswith(FSCK)]
        commits = [c for c, files in found if files or not c.removed]  # DESCRIBE HISTORY does not name files
        if not commits:
            return []
        lost = {path for _, files in found for path in files}
        batches = runs(sorted(self.batches_of(c for c in self.before if not lost.isdisjoint(c.added))))
        rows = f"the rows of {words_of(batches)}" if batches else "rows"
        return [f"{commits[-1].describe()} took files out of the table because they were lost: {rows} are missing"]

    def _files_of_others(self) -> set[str]:
        """Files that have no row of the stream: those that others added without rewriting any."""
        found: set[str] = set()
        for commit in self.history.commits:
            brings_rows = commit.restored is not None or commit.operation.startswith(_COPIES)
            if commit.changes_data and not commit.removed and not brings_rows and not self.ids.is_own(commit):
                found |= commit.added
        return found

    def _lost_below(self, oldest: int) -> list[str]:
        """Batches below the oldest one in the table that it had once, and what left it before that one was written."""
        written = self.batches_of((*self.history.commits, *self.history.left))
        if lost := runs(batch for batch in written if batch < oldest):
            return [
                f"{words_of(lost)} were taken out of the table and not written again: their rows are missing if they had any"
            ]
        first = next(i for i, c in enumerate(self.before) if self.ids.is_own(c))
        if oldest > 0 and self.history.gap is not None and self.history.gap <= first:
            return [
                f"the table begins with batch {oldest} of the query, and snapshots left it before that one was written: whether "
                "they had older batches is not known"
            ]
        if missing := self._begins_late(oldest, first):
            return [
                f"the table begins with batch {oldest} of the query, and its log is whole: if it was dropped and recreated "
                f"since, the rows of {words_of(missing)} are missing; see when it was created, and where the query wrote before"
            ]
        return []

    def _begins_late(self, oldest: int, first: int) -> list[range]:
        """The first batches, of which Spark's own sink has no commit in a log that is whole, though it commits every batch.

        Before its oldest one another id of the query may have written them, see :meth:`_strange`; a table that was copied may
        have brought their rows; and a batch that writes the whole table needs none of them.

        :param first: the place of the commit of the oldest batch.
        """
        own = [commit for commit in self.before if self.ids.is_own(commit)]
        if not self.history.is_whole or self.ids.all != (self.ids.writes_as(self.history),):
            return []
        if any(commit.is_all and (commit.replaces or self.history.format == "delta") for commit in own):
            return []
        if any(commit.txns or commit.operation.startswith(_COPIES) for commit in self.before[:first]):
            return []
        return gaps(self.unwritten, self.ids.links[-1].from_batch or 0, oldest - 1)

    def _strange(self, oldest: int) -> list[str]:
        """Unknown ids that may be the stream's, if the table is not right then.

        Numbers tell another stream from another id of this one: another stream's begin at 0, or its commits come in between.
        """
        own = {i: batch for i, c in enumerate(self.before) if (batch := self.ids.batch_in(c)) is not None}
        first = min(own)
        older: list[tuple[str, int]] = []
        found: list[str] = []
        for id_, places in self._strangers().items():
            batches = [self.lineage[i].txns[id_] for i in places]
            if places[-1] < first:
                older += [(id_, batch) for batch in batches]
            elif self.history.is_whole and min(batches) > 0 and not any(places[0] < i < places[-1] for i in own):
                found += [id_] if min(batches) - 1 in own.values() else []
        begins = 0 if self.history.is_whole else min((batch for _, batch in older), default=0)
        numbers = sorted(batch for _, batch in older)
        is_all = len(numbers) == oldest - begins and numbers == list(range(begins, oldest))
        if oldest > 0 and older and not is_all:
            found += [id_ for id_, _ in older]
        names = ", ".join(dict.fromkeys(found))
        return (
            [
                f"the table has batches of {names}: if that is another id of this query, rows of batches up to "
                f"{self.batch_id} are missing or doubled; {_NAME_IT}"
            ]
            if found
            else []
        )

    def _strangers(self) -> dict[str, list[int]]:
        """Unknown id -> places of its commits in the lineage up to the target."""
        known = {*self.ids.all, *self.ids.successors}
        found: dict[str, list[int]] = {}
        for place, commit in enumerate(self.before):
            for id_ in commit.txns:
                if id_ not in known:
                    found.setdefault(id_, []).append(place)
        return found

    def numbers(self) -> str | None:
        """Why the numbers in the table are no batches, such as the time of a ``txnVersion``; ``None``: they may be."""
        first = self.ids.batch_in(self.beyond[0]) if self.beyond else None
        if first is None or not self.history.is_whole or any(self.ids.is_own(c) for c in self.before):
            return None
        if not self._are_no_batches(gaps(self.unwritten, self.batch_id + 1, first - 1)):
            return None
        return (
            f"the first commit of {self.ids.in_words()} has the number {first}{_NO_NUMBERS}. What a replay does is not known; "
            "have foreachBatch write with the batch id as txnVersion"
        )

    def _are_no_batches(self, missing: Iterable[range]) -> bool:
        return sum(each.stop - each.start for each in missing) > len(self.history.commits)

    def unexplained(self) -> str | None:
        """Why the commits after the target may hold batches of the stream that no known id explains; ``None``: they do not."""
        return self._gap() or self._follower()

    def _gap(self) -> str | None:
        """Batches between the target and the first own commit after it, while somebody else changed the table."""
        first = self.ids.batch_in(self.beyond[0]) if self.beyond else None
        if first is None:
            return None
        missing = gaps(self.unwritten, self.batch_id + 1, first - 1)
        own = [i for i, c in enumerate(self.before) if self.ids.is_own(c)]
        if not missing or (own and not any(c.changes_data for c in self.before[own[-1] + 1 :])):
            return None  # the table went from one own commit to the next: the batches between them are not in it
        if not own and not (self.before and self.history.is_whole):
            return None  # there is no version to roll back to, or its commit is gone
        candidates = [
            id_
            for id_, places in self._strangers().items()
            if any(self.lineage[i].txns[id_] in each for i in places for each in missing)
        ]
        who = (
            f"{', '.join(candidates)} wrote batches of these numbers"
            if candidates
            else "others wrote into it meanwhile"
        )
        return (
            f"the first commit of {self.ids.in_words()} after batch {self.batch_id} is batch {first}, and no known "
            "id of the query "
            f"explains {words_of(missing)}, though {who}: if the query had another id then, {_NAME_IT}"
        )

    def _follower(self) -> str | None:
        """An unknown id whose batches continue where the stream's end: it may be a later id of the same stream."""
        own = {batch: i for i, c in enumerate(self.before) if (batch := self.ids.batch_in(c)) is not None}
        if not own:
            return None
        last = max(own.values())
        for id_, places in self._strangers().items():
            oldest = min(self.lineage[i].txns[id_] for i in places)
            newest = max(self.lineage[i].txns[id_] for i in places)
            if places[0] > last and oldest - 1 in own and newest > self.batch_id:
                return (
                    f"{id_} wrote batches {oldest} to {newest} into the table, which continue where those of "
                    f"{self.ids.in_words()} "
                    f"end: if it is another id of this query, their rows are written again; {_NAME_IT}"
                )
        return None


def content_doubts(
    history: TableHistory, ids: QueryIds, batch_id: int, *, planned: Mapping[int, datetime] = NONE_PLANNED
) -> tuple[str, ...]:
    """What is not right, or not known, of the stream's batches up to one in a table.

    :param planned: batch -> when the checkpoint says that it was planned, in UTC.
    """
    lineage = history.lineage()
    found = TableStart(history, ids, batch_id, lineage, frozenset(), planned).doubts() if lineage else ()
    return (*found, *doubts_of(history))


def doubts_of(history: TableHistory) -> tuple[str, ...]:
    """Why what a table's log says may not be all that a query has written."""
    found = [history.doubt] if history.doubt else []
    if history.elsewhere:
        found.append(
            "streams have written snapshots that never were in branch main (a branch, or staged by spark.wap.id or "
            "spark.wap.branch)"
        )
    return tuple(found)


def _missing_between(start: TableStart, first: int, last: int) -> list[range]:
    """Batches without a commit between two that have one.

    Delta's own sink commits every batch, one without rows too. ``foreachBatch`` need not: there a batch is missing only if
    the log shows that the table had it once.
    """
    kept = {*start.batches_of(start.before), *start.unwritten}
    if start.ids.writes_as(start.history) == start.ids.current:
        return gaps(kept, first, last - 1)
    # A rollback of ours sets what the table remembers, also for a batch that had no rows, and writes none of it.
    once = start.batches_of(commit for commit in start.history.commits if commit.restored is None)
    return runs(b for b in once if first <= b < last and b not in kept)


def _doubled(batches: Sequence[int]) -> list[str]:
    twice = runs(b for b, n in Counter(batches).items() if n > 1)
    return [f"the table has more than one commit of {words_of(twice)}: their rows are doubled"] if twice else []


def words_of(batches: Sequence[range]) -> str:
    """Batches, for messages."""
    return in_words(batches, one="batch", many="batches")
