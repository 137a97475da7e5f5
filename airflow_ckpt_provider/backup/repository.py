"""The repository: a place that holds backups of many streams. Format 1.

::

    repository.json                        what this is: {"format": "airflow-ckpt-repository", "version": 1, "id": …}
    backups/<name>/<backup id>.json        manifests, put-if-absent, written last
    objects/<name>/<xx>/<key>              immutable contents, shared by the backups of a stream
    running/<name>.json                    who is making a backup at the moment
    set-aside/<name>/<plan id>/…           what a restore replaced and could not back up
    audit/<time>-<plan id>.json            what was changed, by whom, why
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from airflow_ckpt_provider.backup.manifest import Manifest, checked_name, manifest_path, parse_manifest
from airflow_ckpt_provider.errors import NoSuchBackupError, RepositoryError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import Location

LATEST = "latest"
#: Safety backups of a stream go under a name of their own, with this at its end; ``latest`` never means one of them.
SAFETY_SUFFIX = ".before-restore"
_MARKER = "repository.json"
_FORMAT = "airflow-ckpt-repository"
_VERSION = 1


class Repository:
    """An open repository. Use :meth:`open` or :meth:`open_or_create`.

    :param location: where it is.
    :param repository_id: its id, made when it was created.
    """

    def __init__(self, location: Location, repository_id: str) -> None:
        self.location = location
        self.repository_id = repository_id

    def __repr__(self) -> str:
        return f"Repository({self.location.uri!r})"

    @classmethod
    def open(cls, location: Location) -> Repository:
        """Open an existing repository.

        :raises RepositoryError: there is none, or of a format that is not known here.
        """
        try:
            data = location.read(_MARKER)
        except FileNotFoundError:
            raise RepositoryError(
                f"{location} is not a repository: it has no {_MARKER}",
                hint="the first `airflow-ckpt backup` into an empty place makes one",
            ) from None
        try:
            marker = load_json(data)
            is_ours = marker["format"] == _FORMAT
            version, repository_id = marker["version"], marker["id"]
        except (ValueError, KeyError, TypeError) as e:
            raise RepositoryError(
                f"{location}/{_MARKER} cannot be read: {data[:80]!r}", hint="restore this file; it was damaged"
            ) from e
        if not is_ours or version != _VERSION:
            raise RepositoryError(
                f"{location} is a repository of format {marker['format']} version {version}, known here: "
                f"{_FORMAT} version {_VERSION}",
                hint="upgrade airflow-ckpt-provider, or use another repository",
            )
        return cls(location, repository_id)

    @classmethod
    def open_or_create(cls, location: Location) -> Repository:
        """Open a repository, or make one in an empty place.

        :raises RepositoryError: the place holds something else, or a repository of a format not known here.
        """
        try:
            return cls.open(location)
        except RepositoryError:
            top = location.list()
            names = [*(file.path for file in top.files), *top.directories]
            if _MARKER in names:
                raise
        if names:
            what = "a checkpoint" if {"offsets", "commits"} & set(names) else f"other files ({', '.join(names[:3])}, …)"
            raise RepositoryError(
                f"{location} holds {what}: a repository needs a place of its own", hint="choose an empty place"
            )
        marker = {"format": _FORMAT, "version": _VERSION, "id": str(uuid.uuid4())}
        with suppress(FileExistsError):  # made by somebody else at this very moment
            location.create(_MARKER, json.dumps(marker).encode())
        return cls.open(location)

    def names(self) -> tuple[str, ...]:
        """Names of the streams that have backups."""
        return self.location.list("backups").directories

    def backup_ids(self, name: str) -> tuple[str, ...]:
        """Ids of a stream's backups, oldest first."""
        files = self.location.list(f"backups/{checked_name(name)}").files
        names = (file.path.rpartition("/")[2] for file in files)
        return tuple(sorted(n.removesuffix(".json") for n in names if n.endswith(".json") and not n.startswith(".")))

    def backups(self, name: str | None = None) -> list[Manifest]:
        """Manifests of one stream or of all, oldest first.

        :raises DamagedBackupError: one of them is damaged.
        """
        names = self.names() if name is None else (name,)
        return [self.read_manifest(n, backup_id) for n in names for backup_id in self.backup_ids(n)]

    def manifest(self, backup_id: str = LATEST, *, name: str | None = None) -> Manifest:
        """Find a backup by its id, or the newest one.

        :param backup_id: an id, or ``"latest"``.
        :param name: name of the stream; needed for ``latest`` where the repository holds several.
        :raises NoSuchBackupError: there is none such, or more than one stream to choose from.
        """
        names = self.names() if name is None else (checked_name(name),)
        found = [(n, i) for n in names for i in self.backup_ids(n)]
        if backup_id == LATEST:
            if name is None:
                found = [(n, i) for n, i in found if not n.endswith(SAFETY_SUFFIX)]
            streams = sorted({n for n, _ in found})
            if len(streams) > 1:
                raise NoSuchBackupError(
                    f"{self.location} holds backups of {len(streams)} streams: {', '.join(streams)}",
                    hint="say which one with the name option",
                )
            matches = found[-1:]
        else:
            matches = [(n, i) for n, i in found if i == backup_id]
        if not matches:
            of = f" of {name}" if name else ""
            raise NoSuchBackupError(
                f"{self.location} holds no backup {backup_id}{of}" if found else f"{self.location} holds no backup{of}",
                hint="`airflow-ckpt backups REPOSITORY` lists what there is",
            )
        if len(matches) > 1:
            raise NoSuchBackupError(
                f"backup {backup_id} exists for {', '.join(n for n, _ in matches)}", hint="say which name"
            )
        return self.read_manifest(*matches[0])

    def read_manifest(self, name: str, backup_id: str) -> Manifest:
        """Read one manifest.

        :raises NoSuchBackupError: it is not there.
        :raises DamagedBackupError: it is damaged.
        """
        path = manifest_path(checked_name(name), backup_id)
        try:
            return parse_manifest(self.location.read(path), path=path)
        except FileNotFoundError:
            raise NoSuchBackupError(
                f"{self.location} holds no backup {backup_id} of {name}",
                hint="`airflow-ckpt backups REPOSITORY` lists what there is",
            ) from None

    def made_by(self, name: str, made_by: str) -> Manifest | None:
        """The newest backup of a stream that one run made, or ``None``; lets a retried task find its own work."""
        for backup_id in reversed(self.backup_ids(name)):
            manifest = self.read_manifest(name, backup_id)
            if manifest.made_by == made_by:
                return manifest
        return None

    def record(self, plan_id: str, facts: dict[str, Any]) -> None:
        """Write an audit record: who changed what, and why."""
        now = datetime.now(UTC)
        path = f"audit/{now.strftime('%Y%m%dT%H%M%SZ')}-{plan_id}.json"
        with suppress(FileExistsError):  # the same plan, carried to its end a second time within this second
            self.location.create(path, json.dumps({"at": now.isoformat(), "plan_id": plan_id, **facts}).encode())

    def records(self) -> Iterator[dict[str, Any]]:
        """Audit records, newest first."""

        def second(path: str) -> str:
            return path.partition("-")[0]

        paths = sorted((file.path for file in self.location.list("audit").files), reverse=True)
        for _, of_one_second in groupby(paths, key=second):
            records: list[dict[str, Any]] = [load_json(self.location.read(path)) for path in of_one_second]
            # The name has seconds, the record has microseconds.
            yield from sorted(records, key=lambda record: str(record["at"]), reverse=True)

    def audit(self, made_by: str) -> dict[str, Any] | None:
        """The newest audit record of a run, or ``None``; lets a retried task find its own work."""
        return next((record for record in self.records() if record.get("made_by") == made_by), None)
