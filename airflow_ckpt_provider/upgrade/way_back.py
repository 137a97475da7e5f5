"""A dry run of the way back of an upgrade, made while the stream still runs: what would make it impossible? Reads only.

It asks the code that will carry out the way back: the sink is judged as if the new code had written one batch more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_ckpt_provider import markdown
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.closure import resolve_closure
from airflow_ckpt_provider.checkpoint.progress import Progress
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.errors import CkptError, MissingExtraError, RefusedError, StorageError
from airflow_ckpt_provider.guards.delta_client import read_properties
from airflow_ckpt_provider.recovery.restore.relocate import foreign_place, holds_absolute_paths
from airflow_ckpt_provider.recovery.rewind.targets import repartitions
from airflow_ckpt_provider.sinks.data_files import missing_data_file
from airflow_ckpt_provider.sinks.delta import RESTORED_WITHOUT_SPARK, inspect_delta, is_append_only
from airflow_ckpt_provider.sinks.delta_sink import DeltaTableContent
from airflow_ckpt_provider.sinks.file_sink import obstacle_to_rollback
from airflow_ckpt_provider.sinks.named_tables import BY_NAME
from airflow_ckpt_provider.sinks.policy import SinkPolicy, policy_word
from airflow_ckpt_provider.sinks.query_ids import QueryIds
from airflow_ckpt_provider.sinks.report import WITHOUT_MEMORY, SinkReport
from airflow_ckpt_provider.sinks.sink import Sink, judge, look_at, named_sinks
from airflow_ckpt_provider.sinks.table_history import TableCommit, TableHistory
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.verdict import Verdict

#: What a person can accept: the way back may fail, and the stream stays stopped and sealed then.
NO_WAY_BACK = "no_way_back"
#: Rows that others write into the sink while the new code runs leave it too.
FOREIGN_LOSS = "foreign_loss"
#: What the sink does with batches that are run again is not known.
SINK_UNKNOWN = "sink_unknown"
ACCEPTABLE = (NO_WAY_BACK, FOREIGN_LOSS, SINK_UNKNOWN)

#: A stream that purges files while it is read is read again.
_LOOKS = 3
#: Whether others write into a table is judged by what they did between so many of the stream's newest batches.
_BATCHES = 20
_OF_GROUP = "an argument of safe_upgrade"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason for which the way back would fail.

    :param code: a short name, which stays the same between releases.
    :param reason: what is wrong with what, and why it matters.
    :param next_step: what removes it.
    :param word: what a person gives to accept it, one of :data:`ACCEPTABLE`.
    :param may_pass: it may pass by itself: a store that did not answer.
    """

    code: str
    reason: str
    next_step: str
    word: str = NO_WAY_BACK
    may_pass: bool = False

    def to_json(self) -> dict[str, Any]:
        """The obstacle as plain JSON."""
        return {"code": self.code, "reason": self.reason, "next_step": self.next_step, "accept": self.word}


@dataclass(frozen=True, slots=True)
class SinkWayBack:
    """What the way back does to one sink.

    :param policy: what is done about the rows of the new code.
    :param sink: the sink, as its address or kind; ``unknown`` if there is none named.
    :param how: what becomes of it, in words.
    """

    policy: SinkPolicy
    sink: str
    how: str

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {"policy": policy_word(self.policy), "sink": self.sink, "how": self.how}


@dataclass(frozen=True, slots=True)
class DryRun:
    """What is known of the way back before anything is stopped.

    :param sinks: what is done to each sink.
    :param obstacles: for which reasons it would fail; empty where none was found.
    """

    sinks: tuple[SinkWayBack, ...]
    obstacles: tuple[Obstacle, ...]

    @property
    def policy(self) -> SinkPolicy:
        """What is done about the rows of the new code in the only sink, or in the first."""
        return self.sinks[0].policy

    def check(self, accepted: Collection[str], *, approved: Collection[str] | None = None) -> None:
        """Refuse what nobody has accepted.

        :param accepted: words that a person gave.
        :param approved: codes of the obstacles that the person saw; ``None``: whatever is found is shown now.
        :raises RefusedError: the way back would fail.
        :raises StorageError: likewise, and trying again may help.
        """
        left = [
            o for o in self.obstacles if o.word not in accepted or (approved is not None and o.code not in approved)
        ]
        if not left:
            return
        reasons = "\n".join(f"* {obstacle.code}: {obstacle.reason}\n  Next: {obstacle.next_step}" for obstacle in left)
        words = list(dict.fromkeys(obstacle.word for obstacle in left))
        error = StorageError if all(obstacle.may_pass for obstacle in left) else RefusedError
        raise error(
            f"the way back of this upgrade would fail, so nothing is stopped:\n{reasons}",
            hint=f"remove what is in the way, or accept it ({_OF_GROUP}): accept={words}",
        )

    def to_json(self) -> dict[str, Any]:
        """The dry run as plain JSON, for the record and the plan."""
        found = [sink.to_json() for sink in self.sinks]
        of_sinks = found[0] if len(found) == 1 else {"sinks": found}
        return {**of_sinks, "obstacles": [obstacle.to_json() for obstacle in self.obstacles]}

    def to_markdown(self) -> str:
        """The dry run for the approval form: what was accepted, with the words."""
        lines = [f"accepted (`{o.word}`): {o.code}: {o.reason}" for o in self.obstacles] or ["no obstacle was found"]
        said = [
            markdown.line(f"Sink `{sink.sink}`, policy `{policy_word(sink.policy)}`: {sink.how}.")
            for sink in self.sinks
        ]
        if len(said) > 1:
            rows = [(f"`{sink.sink}`", policy_word(sink.policy), sink.how) for sink in self.sinks]
            table = markdown.table(("sink", "policy", "what becomes of it"), rows)
            said = [table, "", f"{_QUESTION} Is this all of it?"]
        return "\n".join(["### Way back", "", *said, "", markdown.bullets(lines)])


_QUESTION = "The code of a foreachBatch decides what the stream writes to, and the checkpoint does not name it."


def dry_run(
    checkpoint: Checkpoint,
    open_sinks: Callable[[], Sink | Sequence[Sink]],
    policy: SinkPolicy | Sequence[SinkPolicy],
) -> DryRun:
    """Judge the way back of an upgrade that is about to begin.

    :param checkpoint: the checkpoint; its stream may run.
    :param open_sinks: opens what the stream writes to, one sink or several; may raise what opening them raises.
    :param policy: what is to be done about rows that the new code writes: one for all sinks, or one for each.
    :raises RefusedError: the way back has no such policy.
    :raises CkptError: the checkpoint cannot be read at all.
    """
    policies = (policy,) if isinstance(policy, SinkPolicy) else tuple(policy)
    if SinkPolicy.FORWARD in policies:
        raise RefusedError(
            "sink_policy is 'forward', which an upgrade does not have: the old code continues from the backup of the drained "
            "batch, and the checkpoint cannot go forward to where the new code has brought the sink",
            hint="give 'rollback' (the rows of the new code leave the sink) or 'keep' (they stay)",
        )
    progress, tree, damaged = _of_checkpoint(checkpoint)
    found = [damaged] if damaged else []
    try:
        sinks = named_sinks(open_sinks())
    except (CkptError, OSError) as e:
        ways = (SinkWayBack(policies[0], "unreadable", _NOT_KNOWN),)
        return DryRun(ways, (*found, _unreadable(e)))
    if len(policies) not in (1, len(sinks)):
        raise RefusedError(
            f"sink_policy has {len(policies)} entries for {len(sinks)} sinks", hint="give one for all, or one for each"
        )
    each = policies * len(sinks) if len(policies) == 1 else policies
    judged = [_judged(sink, progress, tree, chosen) for sink, chosen in zip(sinks, each, strict=True)]
    for sink, (_, obstacles) in zip(sinks, judged, strict=True):
        once = {obstacle.code: obstacle for obstacle in reversed(obstacles)}
        for obstacle in reversed(once.values()):
            found.append(obstacle if len(sinks) == 1 else _named(obstacle, sink))
    return DryRun(tuple(way for way, _ in judged), tuple(found))


_NOT_KNOWN = "what becomes of its rows is not known"


def _judged(sink: Sink, progress: Progress, tree: Tree, policy: SinkPolicy) -> tuple[SinkWayBack, list[Obstacle]]:
    try:
        obstacles = _of_sink(sink, progress, tree, policy)
        return SinkWayBack(policy, sink.name or "unknown", _how(sink, policy)), obstacles
    except (CkptError, OSError) as e:
        return SinkWayBack(policy, "unreadable", _NOT_KNOWN), [_unreadable(e)]


def _named(obstacle: Obstacle, sink: Sink) -> Obstacle:
    """The obstacle of one of several sinks: who accepts it has seen it for this one."""
    return replace(obstacle, code=f"{obstacle.code}:{sink.name}", reason=f"{sink.name}: {obstacle.reason}")


def _of_checkpoint(checkpoint: Checkpoint) -> tuple[Progress, Tree, Obstacle | None]:
    """See that a backup of it can be taken, and be put back in its place."""
    for look in range(_LOOKS):
        progress, tree = checkpoint.progress(), checkpoint.tree()
        if progress.latest_committed is None:
            reason = f"{checkpoint.location} has no committed batch, so there is no batch to rewind to"
            return progress, tree, Obstacle("nothing_committed", reason, "let the stream commit a batch")
        try:
            closure = resolve_closure(tree, progress.latest_committed)
            return progress, tree, _moved(checkpoint.location, [file.path for file in closure.files])
        except (CkptError, FileNotFoundError) as e:
            problem = e
            if look == _LOOKS - 1:
                break
    reason = f"{checkpoint.location} cannot be backed up at batch {progress.latest_committed}: {_words(problem)}"
    return progress, tree, Obstacle("checkpoint_damaged", reason, "run `airflow-ckpt doctor`, and repair or restore it")


def _moved(location: Location, paths: Iterable[str]) -> Obstacle | None:
    for path in paths:
        if holds_absolute_paths(path):
            place = foreign_place(location.read(path), path=path, location=location)
            if place is not None:
                reason = f"{path} of {location} names {place}: a rewind does not put such a checkpoint back"
                step = "restore a backup into this place, which rewrites the paths: `airflow-ckpt restore … --replace`"
                return Obstacle("checkpoint_moved", reason, step)
    return None


def _of_sink(sink: Sink, progress: Progress, tree: Tree, policy: SinkPolicy) -> list[Obstacle]:
    takes_back = policy is SinkPolicy.ROLLBACK
    if not sink.name:
        if takes_back:
            reason = (
                "sink_policy is 'rollback' and no sink is named, so the rows of the new code cannot be taken out of it"
            )
            return [
                Obstacle("sink_not_named", reason, "name it (sink=…), or leave its rows in it (sink_policy='keep')")
            ]
        reason = (
            "no sink is named: a Delta table, an Iceberg table or a file sink skips the batches that are run again; a sink "
            "without memory gets their rows twice"
        )
        return [Obstacle("sink_unknown", reason, "name it: sink=…", SINK_UNKNOWN)]
    if sink.kind in WITHOUT_MEMORY and takes_back:
        reason = f"a {sink.kind} sink keeps no memory of batches, and rows cannot be taken out of it"
        return [
            Obstacle("sink_without_memory", reason, "leave its rows in it (sink_policy='keep'); they come twice then")
        ]
    committed = progress.latest_committed if progress.latest_committed is not None else -1
    newest = max(committed, progress.latest_logged if progress.latest_logged is not None else -1)
    looked, app_id, unwritten = look_at(sink), sink.app_id or progress.query_id or "", repartitions(tree)
    if looked and isinstance(looked.content, DeltaTableContent):
        # What only a log checkpoint says is asked for by itself.
        table = replace(looked.content.table, is_described=True)
        looked = replace(looked, content=replace(looked.content, table=table))
    history = looked.content.history if looked else None
    ids = QueryIds.of(progress.query_id or "", app_id=sink.app_id)
    # Also where its rows stay: the way back reads the sink, and is refused where that cannot be read.
    report = judge(sink, looked, ids, committed, newest, unwritten=unwritten)
    if not takes_back:
        return []
    if history and (history.format == "iceberg" or report.kind in BY_NAME):
        return list(_of_history(history, ids, app_id, report, newest))
    if history is None or sink.place is None or history.format != "delta":
        if sink.place and report.kind == "file" and (why := obstacle_to_rollback(sink.place, unwritten=unwritten)):
            return [Obstacle("file_sink_log", why, "leave its rows in it (sink_policy='keep')")]
        return [_blocked(report, report)] if _is_blocked(report) or report.obstacle else []
    return list(_of_table(sink, sink.place, history, ids, app_id, progress.query_id, report, newest))


def _of_table(
    sink: Sink,
    place: Location,
    history: TableHistory,
    ids: QueryIds,
    app_id: str,
    query_id: str | None,
    report: SinkReport,
    newest: int,
) -> Iterator[Obstacle]:
    features, configuration = history.features, dict(history.configuration)
    gone = missing_data_file(place)
    if features <= RESTORED_WITHOUT_SPARK:
        try:
            # The log may have been cleaned up; and it is deltalake that has to reach the table.
            known = read_properties(place, storage_options=sink.storage_options)
            features, configuration = features | known.features, {**known.configuration, **configuration}
        except MissingExtraError as e:
            yield Obstacle("deltalake_missing", e.message, e.hint or "install deltalake")
        except StorageError as e:
            yield Obstacle("deltalake_cannot_open", e.message, e.hint or "see sink_options", may_pass=True)
    if is_append_only(configuration):
        reason = f"{place} is append-only (delta.appendOnly=true): no row may be taken out of it"
        step = "have its owner change that, or leave the rows in it (sink_policy='keep')"
        yield Obstacle("append_only", reason, step)
    else:
        ahead = max(newest, report.batch_id or -1, report.remembered or -1)
        more = TableCommit(history.newest + 1, None, "STREAMING UPDATE", {app_id: ahead + 1}, changes_data=True)
        later = inspect_delta(replace(history, commits=(*history.commits, more)), ids, ahead)
        blocked = next((each for each in (report, later) if _is_blocked(each)), None)
        if blocked and not gone:  # of a table that is not whole that is to be put right first
            yield _blocked(report, blocked)
    yield from _of_features(sink, place, sorted(features - RESTORED_WITHOUT_SPARK), query_id)
    yield from _of_others(history, app_id)
    if gone:
        reason = f"the data file {gone} of {place} is gone: its newest version cannot be restored"
        yield Obstacle("data_file_missing", reason, "see who deletes files of the table (VACUUM), and repair the table")


def _of_history(
    history: TableHistory, ids: QueryIds, app_id: str, report: SinkReport, newest: int
) -> Iterator[Obstacle]:
    ahead = max(newest, report.batch_id or -1, report.remembered or -1)
    place = history.newest + 1
    more = TableCommit(place, None, "append", {ids.current: ahead + 1}, changes_data=True, snapshot_id=0)
    later = replace(history, commits=(*history.commits, more), snapshots=(*history.snapshots, 0))
    blocked = next((each for each in (report, inspect_delta(later, ids, ahead)) if _is_blocked(each)), None)
    if blocked:
        yield _blocked(report, blocked)
    yield from _of_others(history, app_id)


def _of_others(history: TableHistory, app_id: str) -> Iterator[Obstacle]:
    if foreign := _foreign(history, app_id):
        named = ", ".join(commit.describe() for commit in foreign[-3:])
        reason = (
            f"others write into {history.uri}, lately {named}: what they write while the new code runs would leave it too, "
            "and the way back is refused where nobody accepted that"
        )
        step = "stop them during the upgrade, or leave the rows in the table (sink_policy='keep')"
        yield Obstacle("foreign_writes", reason, step, FOREIGN_LOSS)


def _of_features(sink: Sink, place: Location, beyond: list[str], query_id: str | None) -> Iterator[Obstacle]:
    if not beyond:
        return
    what = f"{place} has the feature {beyond[0]}, with which only Spark can restore it"
    if sink.app_id and sink.app_id != query_id:
        yield Obstacle(
            "txn_app_id",
            f"{what}; after that it still remembers the batches of txnAppId {sink.app_id}, which only the query's code changes",
            "leave the rows in the table (sink_policy='keep')",
        )
    elif sink.by_spark is None:
        step = "say how Spark is run: sink_settings={'spark_conn_id': …, 'spark_settings': {'packages': 'io.delta:…'}}"
        yield Obstacle("spark_missing", f"{what}, and no Spark is named", step)


def _is_blocked(report: SinkReport) -> bool:
    """Whether a rollback to the batch that the report is about would be refused."""
    return report.verdict is not Verdict.SAFE and report.rollback is None


def _blocked(sink: SinkReport, by: SinkReport) -> Obstacle:
    why = "; ".join([*([by.obstacle] if by.obstacle else []), *by.reasons])
    step = "name the right sink and its txn_app_id (sink_settings), or leave the rows in it (sink_policy='keep')"
    return Obstacle("sink_history", f"{sink.uri} cannot be rolled back: {why}", step)


def _foreign(history: TableHistory, app_id: str) -> list[TableCommit]:
    """What others wrote between the newest batches of the stream, and after them."""
    lineage = history.lineage() or ()
    own = [index for index, commit in enumerate(lineage) if app_id in commit.txns]
    return [commit for commit in lineage[own[-_BATCHES:][0] :] if app_id not in commit.txns] if own else []


def _how(sink: Sink, policy: SinkPolicy) -> str:
    if policy is SinkPolicy.ROLLBACK:
        return "the checkpoint is rewound to the drained batch, and the rows of the new code leave the sink"
    if sink.place is not None or sink.table:
        return (
            "the checkpoint is rewound to the drained batch, the rows of the new code stay, and the sink silently skips the "
            "batches of the old code that have their numbers"
        )
    twice = "the rows of the new code stay, and the old code writes them again"
    return f"the checkpoint is rewound to the drained batch; {twice if sink.kind != 'unknown' else 'the sink is not touched'}"


def _unreadable(error: CkptError | OSError) -> Obstacle:
    hint = error.hint if isinstance(error, CkptError) and error.hint else "correct sink and sink_conn_id"
    # A refusal, or a package that is not installed, stays; a store may answer the next time.
    may_pass = isinstance(error, OSError | StorageError) and not isinstance(error, MissingExtraError)
    return Obstacle("sink_unreadable", _words(error), hint, may_pass=may_pass)


def _words(error: Exception) -> str:
    return error.message if isinstance(error, CkptError) else f"{type(error).__name__}: {error}"
