"""A Delta table as the sink of a query: what it will skip, and to which version it has to go back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_ckpt_provider.sinks.delta_history import TableCommit, TableHistory
from airflow_ckpt_provider.sinks.query_ids import QueryIds, strange_ids
from airflow_ckpt_provider.sinks.report import SinkReport, SinkRollback
from airflow_ckpt_provider.verdict import Verdict

#: Table features under which ``deltalake`` restores a table rightly; with any other Spark does it.
RESTORED_WITHOUT_SPARK = frozenset(
    {"appendOnly", "invariants", "checkConstraints", "generatedColumns", "changeDataFeed", "timestampNtz"}
)
_NAME_IT = "name it (--txn-app-id), or give the repository that has the records of the change (--repository)"


def is_append_only(configuration: Mapping[str, str]) -> bool:
    """Whether a table's properties forbid that rows are taken out of it (``delta.appendOnly``).

    Spark refuses ``RESTORE`` then; ``deltalake`` does not look, and breaks what the table's owner has set.
    """
    return str(configuration.get("delta.appendOnly", "")).lower() == "true"


def inspect_delta(
    history: TableHistory,
    ids: QueryIds,
    batch_id: int,
    *,
    remembered: Mapping[str, int | None] | None = None,
    unwritten: frozenset[int] = frozenset(),
) -> SinkReport:
    """Judge a start after ``batch_id``.

    A batch is looked for under every id of the chain. What the table skips is judged by the id that the query has at that start.

    :param history: the table's log.
    :param ids: the query ids of the stream.
    :param batch_id: the batch after which the query will start.
    :param remembered: id -> its newest ``txn`` as a client knows it, for a log that was cleaned up; ``None`` for an id that
        the table does not know.
    :param unwritten: batches that write nothing, such as an offline repartition.
    """
    memories = _memories(history, ids, remembered or {})
    writes_as = ids.writes_as(history)
    memory = memories.get(writes_as)
    lineage = history.lineage()
    unknown = SinkReport("delta", history.uri, Verdict.UNKNOWN, (), remembered=memory, query_ids=ids.all)
    if writes_as not in memories and not history.is_whole:
        return replace(
            unknown,
            reasons=(
                f"the table's log begins at version {history.first} and does not name the query {writes_as}: whether it "
                "remembers batches from before cannot be told from the log alone",
            ),
            obstacle="what the table remembers is not known; install airflow-ckpt-provider[delta], which reads log checkpoints",
        )
    if lineage is None:
        return replace(
            unknown,
            reasons=("the table was restored to a version that its log does not have any more",),
            obstacle="which batches the table holds cannot be told from its log",
        )
    start = _Start(history, ids, batch_id, lineage, unwritten)
    found = replace(unknown, batch_id=start.held)
    skips = memory is not None and memory > batch_id
    unexplained = start.unexplained()
    if not skips and not start.beyond:
        return _nothing_in_the_way(found, start, (unexplained,) if unexplained else ())
    rollback, obstacle = (None, unexplained) if unexplained else _rollback(start)
    return replace(
        found,
        verdict=Verdict.WILL_SKIP if skips else Verdict.WILL_DUPLICATE,
        reasons=_reasons(start, memory, skips=skips),
        rollback=rollback,
        obstacle=obstacle,
        memories={id_: m for id_, m in memories.items() if m is not None and m > batch_id and id_ != writes_as},
        doubts=start.doubts(),
    )


@dataclass(frozen=True, slots=True)
class _Start:
    """A start after a batch, and the table that it finds."""

    history: TableHistory
    ids: QueryIds
    batch_id: int
    lineage: tuple[TableCommit, ...]
    unwritten: frozenset[int]

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
        last = max(kept)
        missing = _missing_between(self, min(kept), last)
        doubts = [*_doubled(kept)]
        if missing:
            doubts.append(
                f"the table has no commit of {_batches(missing)}, though it has older and newer ones: their rows are missing if "
                "they had any"
            )
        tail = [b for b in range(last + 1, self.batch_id + 1) if b not in self.unwritten]
        if tail:
            doubts.append(
                f"the table holds batches up to {last}, the checkpoint goes on after {self.batch_id}: rows of "
                f"batches {tail[0]} to "
                f"{tail[-1]} are missing if those batches had any"
            )
        return (*doubts, *self._strange(min(kept)))

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
        if oldest > 0 and older and sorted(batch for _, batch in older) != list(range(begins, oldest)):
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

    def unexplained(self) -> str | None:
        """Why the commits after the target may hold batches of the stream that no known id explains; ``None``: they do not."""
        return self._gap() or self._follower()

    def _gap(self) -> str | None:
        """Batches between the target and the first own commit after it, while somebody else changed the table."""
        first = self.ids.batch_in(self.beyond[0]) if self.beyond else None
        if first is None:
            return None
        missing = [b for b in range(self.batch_id + 1, first) if b not in self.unwritten]
        own = [i for i, c in enumerate(self.before) if self.ids.is_own(c)]
        if not missing or (own and not any(c.changes_data for c in self.before[own[-1] + 1 :])):
            return None  # the table went from one own commit to the next: the batches between them are not in it
        if not own and not (self.before and self.history.is_whole):
            return None  # there is no version to go back to, or its commit is gone
        candidates = [
            id_
            for id_, places in self._strangers().items()
            if any(self.lineage[i].txns[id_] in missing for i in places)
        ]
        who = (
            f"{', '.join(candidates)} wrote batches of these numbers"
            if candidates
            else "others wrote into it meanwhile"
        )
        return (
            f"the first commit of {self.ids.in_words()} after batch {self.batch_id} is batch {first}, and no known "
            "id of the query "
            f"explains {_batches(missing)}, though {who}: if the query had another id then, {_NAME_IT}"
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
    history: TableHistory, ids: QueryIds, batch_id: int, *, unwritten: frozenset[int] = frozenset()
) -> tuple[str, ...]:
    """What is not right, or not known, of the stream's batches up to one in a table."""
    lineage = history.lineage()
    return _Start(history, ids, batch_id, lineage, unwritten).doubts() if lineage else ()


def _memories(history: TableHistory, ids: QueryIds, remembered: Mapping[str, int | None]) -> Mapping[str, int | None]:
    """Id -> the newest batch that the table remembers of it; ids of which that is not known are left out."""
    found: dict[str, int | None] = {}
    for id_ in ids.all:
        memory = history.remembered(id_)
        if memory is not None or id_ in remembered or history.is_whole:
            found[id_] = remembered.get(id_) if memory is None else memory
    return found


def _nothing_in_the_way(report: SinkReport, start: _Start, unexplained: tuple[str, ...]) -> SinkReport:
    """Where nothing is in the way of the replay: whether the table has all that was before it."""
    if unexplained:
        return replace(report, reasons=unexplained, obstacle=unexplained[0])
    if report.batch_id is not None:
        doubts = start.doubts()
        return replace(report, reasons=doubts) if doubts else replace(report, verdict=Verdict.SAFE)
    if not start.history.is_whole:
        return replace(
            report,
            reasons=(
                f"the table's log begins at version {start.history.first} and has no commit of {start.ids.in_words()} any more: "
                f"whether the table holds the batches up to {start.batch_id} is not known",
            ),
        )
    strangers = strange_ids(start.history, start.ids.all)
    others = f"; the table has batches of {', '.join(strangers[:3])}{', …' if len(strangers) > 3 else ''}"
    return replace(
        report,
        reasons=(
            f"the table has no commit of {start.ids.in_words()}: it is not its sink, or the query writes to it by foreachBatch "
            f"without txnAppId, or with another id (name it: --txn-app-id){others if strangers else ''}",
        ),
    )


def _reasons(start: _Start, memory: int | None, *, skips: bool) -> tuple[str, ...]:
    begin, held = start.batch_id + 1, start.held
    if not start.batches_of(start.beyond):
        reasons = []
        if skips:
            reasons.append(
                f"the table holds batches up to {held} but remembers {memory} (it was restored without that memory): Delta skips "
                f"batches {begin} to {memory} without a word, and their rows are missing"
            )
        if start.beyond:
            reasons.append(
                f"the query that took the place of {start.ids.current} has written rows into the table: its input is read again"
            )
        return tuple(reasons)
    if skips and memory is not None and (held is None or memory >= held):
        return (
            f"the table holds batches up to {held} and remembers {memory}: Delta skips the replay of batches {begin} to "
            f"{memory} without a word, so their old rows stay and nothing of the replay is written",
        )
    if skips and memory is not None:
        return (
            f"the table holds batches up to {held} and remembers {memory} of the id that the query will have: Delta skips the "
            f"replay of batches {begin} to {memory} without a word, and writes batches {memory + 1} to {held} "
            "beside the rows that "
            "are there",
        )
    writes_as = start.ids.writes_as(start.history)
    others = {id_ for c in start.beyond for id_ in c.txns if id_ in start.ids.all} - {writes_as}
    of = f", as batches of {', '.join(sorted(others))}, and the query's id will be {writes_as}" if others else ""
    return (
        f"the table holds batches up to {held} but does not remember them{of}: the replay of batches {begin} to {held} is "
        "written beside the rows that are there",
    )


def _rollback(start: _Start) -> tuple[SinkRollback | None, str | None]:
    """Find the version to go back to."""
    history, before, after = start.history, start.before, start.beyond
    if is_append_only(history.configuration):
        return None, (
            "the table is append-only (delta.appendOnly=true), so no row may be taken out of it; its owner can change that: "
            "ALTER TABLE … SET TBLPROPERTIES ('delta.appendOnly' = 'false')"
        )
    first_own = next(iter(start.batches_of(after)), None)
    if not start.batches_of(before) and not history.is_whole and first_own != start.batch_id + 1:
        return None, (
            f"the table's log begins at version {history.first}, after batch {start.batch_id} was written: the version of that "
            "batch cannot be found any more"
        )
    if before:
        target = before[-1].version
    elif after:
        target = after[0].version - 1
    else:
        target = history.newest
    if target < 0:
        return None, f"the table was created by a batch after {start.batch_id}: there is no version to go back to"
    foreign = [c for c in after if not start.ids.is_own(c)]
    features = sorted(history.features - RESTORED_WITHOUT_SPARK)
    rows = [c.rows for c in after]
    return (
        SinkRollback(
            to_version=target,
            from_version=history.newest,
            rows=None if None in rows else sum(row or 0 for row in rows),
            batches=len(after) - len(foreign),
            foreign=tuple(c.describe() for c in foreign),
            feature=features[0] if features else None,
        ),
        None,
    )


def _missing_between(start: _Start, first: int, last: int) -> list[int]:
    """Batches without a commit between two that have one.

    Delta's own sink commits every batch, one without rows too. ``foreachBatch`` need not: there a batch is missing only if
    the log shows that the table had it once.
    """
    kept = set(start.batches_of(start.before))
    missing = [b for b in range(first, last) if b not in kept and b not in start.unwritten]
    if start.ids.writes_as(start.history) == start.ids.current:
        return missing
    once = set(start.batches_of(start.history.commits))
    return [b for b in missing if b in once]


def _doubled(batches: Sequence[int]) -> list[str]:
    twice = sorted(b for b, n in Counter(batches).items() if n > 1)
    return [f"the table has more than one commit of {_batches(twice)}: their rows are doubled"] if twice else []


def _batches(batches: Sequence[int]) -> str:
    if len(batches) == 1:
        return f"batch {batches[0]}"
    whole = list(batches) == list(range(batches[0], batches[-1] + 1))
    return f"batches {batches[0]} to {batches[-1]}" if whole else f"batches {', '.join(map(str, batches))}"
