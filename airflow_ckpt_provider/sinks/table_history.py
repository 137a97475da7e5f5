"""The commits of a table, and what each one says of a query: the same for Delta and Iceberg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from airflow_ckpt_provider.guards.delta_log import CLOCKS, interval
from airflow_ckpt_provider.units import format_time

#: A property of a table: how long it remembers a ``txn``. Without it, permanently.
TXN_RETENTION = "delta.setTransactionRetentionDuration"
#: The next start may be as late as this.
_UNTIL_START = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One version of a Delta table.

    :param version: the version.
    :param time: when it was committed, in UTC; ``None`` where the commit does not say.
    :param operation: Delta's word for it, such as ``STREAMING UPDATE``, ``WRITE``, ``OPTIMIZE``, ``RESTORE``.
    :param txns: app id -> the version it set.
    :param changes_data: rows came or went; false for ``OPTIMIZE`` and the like.
    :param restored: the version that a ``RESTORE`` restored, or ``None``.
    :param rows: rows added, as far as the commit shows.
    :param plan_id: the plan of ours that wrote it.
    :param snapshot_id: the id of the snapshot, in an Iceberg table.
    :param added: paths of the files that it adds, whether rows change or not; those of deletion vectors too.
    :param removed: paths of the files that it removes from the table; ``VACUUM`` may delete them later. A file of deletion
        vectors may still be needed, for other data files.
    :param settings: what the table's metadata and protocol say after it, one entry a setting.
    :param updated: app id -> the ``lastUpdated`` of its ``txn``, in UTC, where it has one; ``None``: it has one, not known which.
    :param replaces: no row of before is left after it, such as after ``TRUNCATE`` and ``INSERT OVERWRITE``.
    :param is_all: it writes the whole table by what it is, such as a batch of a query in output mode complete.
    """

    version: int
    time: datetime | None
    operation: str
    txns: Mapping[str, int]
    changes_data: bool
    restored: int | None = None
    rows: int | None = None
    plan_id: str | None = None
    snapshot_id: int | None = None
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    updated: Mapping[str, datetime | None] = field(default_factory=dict)
    replaces: bool = False
    is_all: bool = False

    def describe(self) -> str:
        """The commit in a few words."""
        when = f" at {format_time(self.time)}" if self.time else ""
        name = f"version {self.version}" if self.snapshot_id is None else f"snapshot {self.snapshot_id}"
        return f"{name} ({self.operation}{when})"


@dataclass(frozen=True, slots=True)
class TableHistory:
    """The part of a table's log that is still there.

    :param uri: the table.
    :param commits: all versions whose JSON is there, ascending and without a hole.
    :param table_id: id of the table, or ``None`` where no commit that is left says it.
    :param features: reader and writer features that its protocol names.
    :param configuration: its properties, such as ``delta.appendOnly``; empty where no commit that is left says them.
    :param format: ``delta`` or ``iceberg``.
    :param snapshots: ids of the commits, in an Iceberg table.
    :param held: ids of all snapshots that have not expired, in or outside of the main line, in an Iceberg table.
    :param references: name of a branch or tag -> its snapshot, in an Iceberg table.
    :param elsewhere: commits of streams that never were in the table's main line, such as those of a branch (Iceberg).
    :param left: commits that were in the table's main line once, and left it (Iceberg; of Delta they are among the commits).
    :param gap: version of the first commit before which others were made that are not in the main line, in a log that is whole
        (Iceberg); ``None``: there is none.
    :param doubt: why something newer than this may be the table's current log; ``None``: it is current.
    :param is_described: the commits that are left say the table's protocol and its properties.
    """

    uri: str
    commits: tuple[TableCommit, ...]
    table_id: str | None = None
    features: frozenset[str] = field(default_factory=frozenset)
    configuration: Mapping[str, str] = field(default_factory=dict)
    format: str = "delta"
    snapshots: tuple[int, ...] = ()
    held: frozenset[int] = frozenset()
    references: Mapping[str, int] = field(default_factory=dict)
    elsewhere: tuple[TableCommit, ...] = ()
    left: tuple[TableCommit, ...] = ()
    gap: int | None = None
    doubt: str | None = None
    is_described: bool = True

    @property
    def engine(self) -> str:
        """Who skips a replayed batch, for messages."""
        return {"delta": "Delta", "iceberg": "Iceberg"}[self.format]

    @property
    def begins(self) -> str:
        """Where a log begins that is not whole, for messages."""
        if self.format == "iceberg":
            return "older snapshots of the table have expired"
        return f"the table's log begins at version {self.first}"

    @property
    def first(self) -> int:
        """Oldest version whose JSON is there; 0 for a table without any."""
        return self.commits[0].version if self.commits else 0

    @property
    def newest(self) -> int:
        """Newest version; -1 for a table without any."""
        return self.commits[-1].version if self.commits else -1

    def snapshot_of(self, version: int) -> int:
        """What a rollback names: the version itself, or the id of the snapshot (Iceberg)."""
        return self.snapshots[version - self.first] if self.format == "iceberg" else version

    @property
    def is_whole(self) -> bool:
        """Whether the log begins with the table."""
        return self.first == 0

    def at(self, version: int) -> TableCommit | None:
        """The commit of a version, or ``None`` if its JSON is gone."""
        index = version - self.first
        return self.commits[index] if 0 <= index < len(self.commits) else None

    def remembered(self, app_id: str) -> int | None:
        """The newest ``txn`` of an app id in the commits that are left: batches up to it are skipped silently.

        ``None`` also where Delta has forgotten it; see :meth:`forgets`.
        """
        commit = self.newest_of(app_id)
        return None if commit is None or self.forgets(app_id) else commit.txns[app_id]

    def newest_of(self, app_id: str) -> TableCommit | None:
        """The commit of the newest ``txn`` of an app id, among those that are left."""
        return next((c for c in reversed(self.commits) if app_id in c.txns), None)

    def forgets(self, app_id: str) -> bool | None:
        """Whether Delta has forgotten the newest ``txn`` of an app id, by :data:`TXN_RETENTION`.

        One without ``lastUpdated`` is forgotten at once (``InMemoryLogReplay.getTransactions``).

        :return: ``None`` where that is not known, or may have happened by the next start.
        """
        if TXN_RETENTION not in self.configuration:
            return False if self.is_described else None
        commit, keeps = self.newest_of(app_id), interval(self.configuration[TXN_RETENTION])
        if commit is None or keeps is None:
            return None
        if app_id not in commit.updated:
            return True
        if (updated := commit.updated[app_id]) is None:
            return None
        age = datetime.now(UTC) - updated
        if age > keeps + CLOCKS:
            return True
        return False if age + _UNTIL_START < keeps else None

    def lineage(self, version: int | None = None) -> tuple[TableCommit, ...] | None:
        """The commits whose rows make up the table at a version, oldest first, as far back as the log reaches.

        A ``RESTORE`` takes the table back to the lineage of the version it names; what only tidies up is left out. A batch
        without rows counts: it has a ``txn``.

        :return: ``None`` where a restore returned to a version that the log does not have any more.
        """
        heads = self.heads()
        head = heads[self.newest if version is None else version]
        if head is None:
            return None
        found = []
        while head is not None and (commit := self.at(head)) is not None:
            found.append(commit)
            head = heads[head - 1]  # known: what is in a lineage was added to a known one
        return tuple(reversed(found))

    def heads(self) -> dict[int, int | None]:
        """Version -> the newest commit of its lineage; two versions with the same one have the same rows.

        Also for the version before the first one. Each commit has one lineage before it, that of the version below, so the newest
        commit distinguishes them all: a table has as many entries as versions, however long the lineages are.

        :return: the version before the first one stands for a lineage without a commit, ``None`` for one that is not known.
        """
        nothing = self.first - 1
        heads: dict[int, int | None] = {nothing: nothing}
        for commit in self.commits:
            before = heads[commit.version - 1]
            if commit.restored is not None:
                heads[commit.version] = heads.get(commit.restored)
            elif before is not None and (commit.changes_data or commit.txns):
                heads[commit.version] = commit.version
            else:
                heads[commit.version] = before
        return heads

    def left_by(self, version: int) -> TableCommit | None:
        """The ``RESTORE`` by which the table returned to rows of before a version; ``None``: it has what that version did.

        What others wrote on top of the version, and restores to a version that builds on it, leave it in the table.
        """
        heads, at = self.heads(), self.newest
        while at > version and (commit := self.at(at)) is not None:
            before = at - 1 if commit.restored is None else min(commit.restored, at - 1)
            if before < version and (heads.get(before) is None or heads.get(before) != heads.get(version)):
                return commit
            at = before
        return None
