"""Which page is made of what: the repository and its reports are read, whatever the pages are for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from airflow_ckpt_provider.backup.damaged import streams_with_records
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.names import is_name
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import CkptError, NoSuchBackupError, RefusedError, StorageError, command
from airflow_ckpt_provider.fleet.report import read_reports, rows_of
from airflow_ckpt_provider.page.backup_point import BackupPoint, Standing, read_backups, read_point, read_points
from airflow_ckpt_provider.page.change_record import changes_of, read_change
from airflow_ckpt_provider.page.fields import text
from airflow_ckpt_provider.page.forms import Form
from airflow_ckpt_provider.page.html import Head, Links, backup_page, change_page, stream_page, streams_page
from airflow_ckpt_provider.page.stream_row import StreamRow
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.streams.stream import Stream
from airflow_ckpt_provider.streams.streams import as_reported

#: Given a stream and a backup of it, or a time, makes the form.
RestoreForm = Callable[[StreamRow, Manifest], Form]
RewindForm = Callable[[StreamRow], Form]


class NotThereError(Exception):
    """There is no such stream, backup or change."""


@dataclass(frozen=True, slots=True)
class Reported:
    """The streams of a repository.

    :param rows: those of all reports, and those that no report names, but a backup or a declaration.
    :param unread: reports that cannot be read, in words.
    """

    rows: list[StreamRow]
    unread: tuple[str, ...]


@dataclass(frozen=True)
class Pages:
    """The pages of one repository.

    :param repository: is read for each page again, and not written to.
    :param links: where the pages are.
    :param live: see :class:`~airflow_ckpt_provider.page.html.Head`.
    :param declared: the streams that are declared, by their names in the repository.
    :param key: what stands for the repository among several that are shown.
    :param notes: what each page says first.
    :param clock: returns the time.
    """

    repository: Repository
    links: Links
    live: bool = False
    declared: Mapping[str, Stream] = field(default_factory=dict)
    key: str = ""
    notes: tuple[str, ...] = ()
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)

    def reported(self) -> Reported:
        """The streams, by what is known of their backups now."""
        found = self._as_reported()
        return replace(found, rows=self._as_known_now(found.rows))

    def _as_reported(self) -> Reported:
        now, reports = self.clock(), read_reports(self.repository)
        reported, unread = rows_of(reports.found), bool(reports.unread)
        known = {text(row.get("name")) for row in reported}
        found = {text(row.get("name")) for row in reported if self._is_declared(row)}
        others = [
            {"name": name, "checkpoint": self.declared[name].checkpoint if name in self.declared else ""}
            for name in sorted({*self.repository.names(), *self.declared} - known | self.declared.keys() - found)
        ]
        rows = [self._row(row, now) for row in reported]
        rows += [self._row(row, now, may_be_reported=unread) for row in others]
        return Reported(rows, reports.unread)

    def _as_known_now(self, rows: Sequence[StreamRow]) -> list[StreamRow]:
        """The rows without their backups, where those were removed, or found damaged, since the report."""
        damaged = streams_with_records(self.repository.location)
        return in_parallel(lambda row: self._judged(row, has_records=row.name in damaged), rows)

    def _judged(self, row: StreamRow, *, has_records: bool) -> StreamRow:
        """The row by what the backup and its notes say now: nobody has signed a report, and the backup may have changed since."""
        if not row.backup_id:
            return row
        if not (is_name(row.name) and is_name(row.backup_id)):
            return row.without_backup("cannot be one: no backup has this id, or no stream this name")
        try:
            point = read_point(self.repository, row.name, row.backup_id, has_records=has_records)
        except CkptError as e:
            return row.without_backup(f"cannot be judged: {e.message}")
        if point is None:
            return row.without_backup("does not exist any more")
        if point.can_be_restored:
            return replace(row, verified=point.verified.value if point.verified else "")
        said = "cannot be read" if point.standing is Standing.UNKNOWN else "is damaged"
        return row.without_backup(f"{said}: {'; '.join(point.why)}")

    def _row(self, row: Mapping[str, object], now: datetime, *, may_be_reported: bool = False) -> StreamRow:
        objectives = self.declared[text(row.get("name"))].objectives if self._is_declared(row) else None
        return StreamRow.of(row, now, objectives, repository=self.key, may_be_reported=may_be_reported)

    def _is_declared(self, row: Mapping[str, object]) -> bool:
        """Whether a row is of the checkpoint that is declared under its name: a report may have found another one there."""
        declared = self.declared.get(text(row.get("name")))
        return declared is not None and as_reported(declared.checkpoint) == as_reported(text(row.get("checkpoint")))

    def streams(self) -> str:
        """All streams."""
        found = self.reported()
        return streams_page(self._head(*found.unread), found.rows)

    def stream(
        self, name: str, *, restore: tuple[str, RestoreForm] | None = None, rewind: RewindForm | None = None
    ) -> str:
        """One stream.

        :param restore: id of a backup that a form is filled in for, and what makes the form.
        :param rewind: what makes the form for a rewind.
        :raises NotThereError: there is no such stream, or backup.
        :raises CkptError: what is known of its backups cannot be read; or the backup that a form is for.
        """
        found = self._named(name)
        rows = found.rows
        backups = read_backups(self.repository, name) if is_name(name) else None
        if backups is None:
            raise NotThereError(f"{name!r} cannot be the name of a stream in a repository")
        backed_up = next((point.manifest.checkpoint for point in reversed(backups.points) if point.manifest), "")
        row = next((each for each in rows if each.checkpoint == backed_up), rows[0])
        form = rewind(row) if rewind else None
        if restore:
            form = self._restore_form(row, name, *restore)
        head = self._head(*found.unread)
        if len(rows) > 1:
            places = ", ".join(each.checkpoint for each in rows)
            told = "The reports and the declaration tell" if name in self.declared else "The reports tell"
            said = f"{told} of {len(rows)} checkpoints under the name {name}: {places}. This is {row.checkpoint}."
            head = replace(head, notes=(*head.notes, said))
            form = form and replace(
                form, refused="It is not known which of them is meant: declare them under two names."
            )
        changes = changes_of(self.repository, row.checkpoint or backed_up)
        return stream_page(head, row, backups, changes, self._next_step(row.checkpoint), form)

    def _restore_form(self, row: StreamRow, name: str, backup_id: str, make: RestoreForm) -> Form:
        point = self._point(name, backup_id)
        if point.manifest is None:
            raise RefusedError(
                f"backup {backup_id} of stream {name} cannot be restored: {'; '.join(point.why)}",
                hint="choose another one on the page of the stream",
            )
        form = make(row, point.manifest)
        if not point.can_be_restored:
            form = replace(form, refused=f"The backup is damaged: {'; '.join(point.why[:3])}. Choose another one.")
        return form

    def change(self, plan_id: str) -> str:
        """One change.

        :raises NotThereError: no plan and no record has this id.
        """
        found = read_change(self.repository, plan_id)
        if found is None:
            raise NotThereError(f"this repository has no plan and no record of {plan_id!r}")
        rows = self._as_reported().rows if found.checkpoint else ()
        row = next((each for each in rows if each.checkpoint == found.checkpoint), None)
        return change_page(self._head(), found, row, self._next_step(found.checkpoint))

    def backup(self, name: str, backup_id: str) -> str:
        """One backup, with its files.

        :raises NotThereError: there is none of this id.
        """
        point, manifest = self._point(name, backup_id), None
        try:
            if point.manifest:
                manifest = self.repository.read_manifest(name, backup_id)
        except NoSuchBackupError as e:
            raise NotThereError(e.message) from e
        except CkptError as e:  # of its files, which the point does without
            known_as = Standing.UNKNOWN if isinstance(e, StorageError) else Standing.DAMAGED
            point = replace(point, standing=known_as, manifest=None, why=(e.message,))
        restore = ""
        if manifest and _can_be_pasted(backup_id, manifest.checkpoint):
            place = self.repository.location.uri
            restore = command("restore", place, backup_id, manifest.checkpoint, "--name", name, "--replace")
        return backup_page(self._head(), point, manifest, restore)

    def _named(self, name: str) -> Reported:
        """One stream as it was reported; several where reports call several checkpoints so.

        :raises NotThereError: neither a report nor the repository has it.
        """
        found = self._as_reported()
        rows = [each for each in found.rows if each.name == name]
        if not rows:
            unread = f"; {'; '.join(found.unread)}" if found.unread else ""
            raise NotThereError(f"no report and no backup is about a stream {name!r}{unread}")
        return replace(found, rows=self._as_known_now(rows))

    def _point(self, name: str, backup_id: str) -> BackupPoint:
        """What is known of one backup.

        :raises NotThereError: there is none of this id.
        """
        there = is_name(name) and backup_id in self.repository.backup_ids(name)
        for point in read_points(self.repository, name, (backup_id,)) if there else ():
            return point
        raise NotThereError(f"stream {name!r} has no backup {backup_id!r}")

    def _next_step(self, checkpoint: str) -> str:
        """The command that names the next step of a change, by what it reads itself.

        What a report or a plan names is not shown as a command: whoever may write into the repository could have written it.
        """
        if not checkpoint or not _can_be_pasted(checkpoint):
            return ""
        return command("status", checkpoint, "--repository", self.repository.location.uri)

    def _head(self, *notes: str) -> Head:
        place = f"Repository {self.repository.location.uri}"
        return Head(self.links, place, self.clock(), self.live, notes=(*self.notes, *notes))


def unread_rows(declared: Mapping[str, Stream], now: datetime, key: str) -> list[StreamRow]:
    """The declared streams of a repository of which nothing could be read.

    :param declared: the streams, by their names in the repository.
    :param now: when the page is made.
    :param key: what stands for the repository.
    """
    return [
        StreamRow.of(
            {"name": name, "checkpoint": stream.checkpoint},
            now,
            stream.objectives,
            repository=key,
            may_be_reported=True,
        )
        for name, stream in declared.items()
    ]


def _can_be_pasted(*words: str) -> bool:
    """Whether quoted words of a document are words: no option, and nothing that a terminal obeys."""
    return all(word.isprintable() and not word.startswith("-") for word in words)
