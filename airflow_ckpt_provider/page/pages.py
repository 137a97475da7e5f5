"""Which page is made of what: the repository and its reports are read, whatever the pages are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from airflow_ckpt_provider.backup.damaged import streams_with_records
from airflow_ckpt_provider.backup.manifest import Manifest, manifest_path
from airflow_ckpt_provider.backup.names import is_name
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.backup.transfer import in_parallel
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError, command
from airflow_ckpt_provider.fleet.report import read_reports, rows_of
from airflow_ckpt_provider.page.backup_point import BackupPoint, read_backups, read_points
from airflow_ckpt_provider.page.change_record import changes_of, read_change
from airflow_ckpt_provider.page.fields import text
from airflow_ckpt_provider.page.forms import Form
from airflow_ckpt_provider.page.html import Head, Links, backup_page, change_page, stream_page, streams_page
from airflow_ckpt_provider.page.stream_row import StreamRow
from airflow_ckpt_provider.streams.stream import Stream

#: Given a stream and a backup of it, or a time, makes the form.
RestoreForm = Callable[[StreamRow, Manifest], Form]
RewindForm = Callable[[StreamRow], Form]


class NotThereError(Exception):
    """There is no such stream, backup or change."""


@dataclass(frozen=True)
class Pages:
    """The pages of one repository.

    :param repository: is read for each page again, and not written to.
    :param links: where the pages are.
    :param live: see :class:`~airflow_ckpt_provider.page.html.Head`.
    :param declared: the streams that are declared, by their names in the repository.
    :param key: what stands for the repository among several that are shown.
    :param clock: returns the time.
    """

    repository: Repository
    links: Links
    live: bool = False
    declared: Mapping[str, Stream] = field(default_factory=dict)
    key: str = ""
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def rows(self) -> list[StreamRow]:
        """The streams of all reports, and those that no report names, but a backup or a declaration."""
        return self._as_known_now(self._as_reported())

    def _as_reported(self) -> list[StreamRow]:
        now, reported = self.clock(), rows_of(read_reports(self.repository))
        known = {text(row.get("name")) for row in reported}
        others = [
            {"name": name, "checkpoint": self.declared[name].checkpoint if name in self.declared else ""}
            for name in sorted({*self.repository.names(), *self.declared} - known)
        ]
        return [self._row(row, now) for row in [*reported, *others]]

    def _as_known_now(self, rows: Sequence[StreamRow]) -> list[StreamRow]:
        """The rows without their backups, where those were removed, or found damaged, since the report."""
        damaged = streams_with_records(self.repository.location)
        return in_parallel(lambda row: self._judged(row, may_be_damaged=row.name in damaged), rows)

    def _judged(self, row: StreamRow, *, may_be_damaged: bool) -> StreamRow:
        if not (is_name(row.name) and is_name(row.backup_id)):
            return row
        try:
            if not may_be_damaged:
                there = self.repository.location.find(manifest_path(row.name, row.backup_id)) is not None
                return row if there else row.without_backup("does not exist any more")
            points = read_points(self.repository, row.name, (row.backup_id,))
        except CkptError as e:
            return row.without_backup(f"cannot be judged: {e.message}")
        if not points:
            return row.without_backup("does not exist any more")
        (point,) = points
        return row if point.can_be_restored else row.without_backup(f"is damaged: {'; '.join(point.why)}")

    def _row(self, row: Mapping[str, object], now: datetime) -> StreamRow:
        declared = self.declared.get(text(row.get("name")))
        return StreamRow.of(row, now, declared.objectives if declared else None, repository=self.key)

    def streams(self) -> str:
        """All streams."""
        return streams_page(self._head(), self.rows())

    def stream(
        self, name: str, *, restore: tuple[str, RestoreForm] | None = None, rewind: RewindForm | None = None
    ) -> str:
        """One stream.

        :param restore: id of a backup that a form is filled in for, and what makes the form.
        :param rewind: what makes the form for a rewind.
        :raises NotThereError: there is no such stream, or backup.
        """
        rows = self.rows_named(name)
        backups = read_backups(self.repository, name) if is_name(name) else None
        if backups is None:
            raise NotThereError(f"{name!r} cannot be the name of a stream in a repository")
        backed_up = {point.manifest.checkpoint for point in backups.points[-1:] if point.manifest}
        row = next((each for each in rows if each.checkpoint in backed_up), rows[0])
        form = rewind(row) if rewind else None
        if restore:
            point = next((each for each in backups.points if each.backup_id == restore[0]), None)
            manifest = point.manifest if point else self._manifest(name, restore[0])
            if manifest is None:
                raise NotThereError(f"stream {name} has no backup {restore[0]} that can be restored")
            form = restore[1](row, manifest)
        head = self._head()
        if len(rows) > 1:
            places = ", ".join(each.checkpoint for each in rows)
            said = f"The reports tell of {len(rows)} checkpoints under the name {name}: {places}. This is {row.checkpoint}."
            head = replace(head, notes=(said,))
            form = form and replace(
                form, refused="It is not known which of them is meant: declare them under two names."
            )
        return stream_page(head, row, backups, changes_of(self.repository, row.checkpoint), form)

    def change(self, plan_id: str) -> str:
        """One change.

        :raises NotThereError: no plan and no record has this id.
        """
        found = read_change(self.repository, plan_id)
        if found is None:
            raise NotThereError(f"this repository has no plan and no record of {plan_id!r}")
        row = next((each for each in self._as_reported() if each.checkpoint == found.checkpoint), None)
        return change_page(self._head(), found, row)

    def backup(self, name: str, backup_id: str) -> str:
        """One backup, with its files.

        :raises NotThereError: there is none of this id.
        """
        points = read_backups(self.repository, name).points if is_name(name) else ()
        point = next((each for each in points if each.backup_id == backup_id), None)
        manifest = self._manifest(name, backup_id) if is_name(name) else None
        if point is None and manifest is None:
            raise NotThereError(f"stream {name!r} has no backup {backup_id!r}")
        if point is None:
            raise NotThereError(f"backup {backup_id} is older than the ones that are shown: see airflow-ckpt backups")
        checkpoint = manifest.checkpoint if manifest else ""
        words = ("restore", self.repository.location.uri, backup_id, checkpoint, "--name", name, "--replace")
        return backup_page(self._head(), point, manifest, command(*words))

    def rows_named(self, name: str) -> list[StreamRow]:
        """One stream as it was reported; several where reports call several checkpoints so.

        :raises NotThereError: neither a report nor the repository has it.
        """
        rows = [each for each in self._as_reported() if each.name == name]
        if not rows:
            raise NotThereError(f"no report and no backup is about a stream {name!r}")
        return self._as_known_now(rows)

    def points(self, name: str) -> tuple[BackupPoint, ...]:
        """The backups that have a page."""
        return read_backups(self.repository, name).points if is_name(name) else ()

    def _manifest(self, name: str, backup_id: str) -> Manifest | None:
        if backup_id not in self.repository.backup_ids(name):
            return None
        try:
            return self.repository.read_manifest(name, backup_id)
        except (NoSuchBackupError, CkptError):
            return None

    def _head(self) -> Head:
        return Head(self.links, f"Repository {self.repository.location.uri}", self.clock(), self.live)
