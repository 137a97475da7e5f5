"""The repository: a place that holds backups of many streams. Formats 1 and 2.

Format 2 is format 1 with small contents in packs (:mod:`~airflow_ckpt_provider.storage.packs`). A repository of format 2
also holds backups and objects of format 1.

::

    repository.json                        what this is: {"format": "airflow-ckpt-repository", "version": 1, "id": …}
    keys/<nnnnnn>.json                     wrapped keys of an encrypted repository, once one was added or removed
    backups/<name>/<backup id>.json        manifests, put-if-absent, written last
    objects/<name>/<xx>/<key>              immutable contents, shared by the backups of a stream
    claims/<name>/<claim id>.json          who is at work with the objects of a stream, for prunes to know
    prune/<name>/<nnnnnn>.json             what a prune is about to delete, for backups to know
    holds/<name>/<backup id>/…             which backups must stay, and why
    verified/<name>/<backup id>/…          what verifying backups found
    damaged/<name>/<nnnnnn>.json           which objects are known to be damaged
    read/<name>/<nnnnnn>.json              when objects were read
    running/<name>.json                    who is making a backup at the moment
    plans/<plan id>.json                   a plan that was begun, with all that is needed to resume it
    set-aside/<name>/<plan id>/…           what a change of a checkpoint removed or wrote over
    changes/<key>/<nnnnnn>.json            attempts at changing a checkpoint
    audit/<time>-<plan id>.json            what was changed, by whom, why
    upgrades/<name>/<nnnnnn>.json          what an upgrade of a stream has done so far
    moved/<name>/<nnnnnn>.json             where contents are that were packed, or repacked, later
    drills/<name>/<backup id>/…            when a backup was last restored and run on
    reports/<writer>.json                  how the streams stood last, for the page
    signatures/<path of a document>/…      who has written it
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from airflow_ckpt_provider.backup.latest import LATEST
from airflow_ckpt_provider.backup.manifest import Manifest, manifest_path, parse_manifest
from airflow_ckpt_provider.backup.marker import FORMAT, MARKER, refuse_inside, streams_in, way_back
from airflow_ckpt_provider.backup.names import checked_name, is_name
from airflow_ckpt_provider.backup.newest import newest_whole, of_one_stream
from airflow_ckpt_provider.backup.records import Records
from airflow_ckpt_provider.errors import (
    DamagedBackupError,
    DamagedFileError,
    NoSuchBackupError,
    RefusedError,
    RepositoryError,
    StorageError,
    TooLargeError,
    UntrustedError,
    command,
)
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.encrypted_store import decrypted, new_encryption
from airflow_ckpt_provider.storage.hidden_name import is_hidden_name_of
from airflow_ckpt_provider.storage.location import LARGE, Location

log = logging.getLogger(__name__)

#: In the place of a manifest: a prune has given up the backup that was going to write it. See
#: :mod:`~airflow_ckpt_provider.backup.claims`.
GIVEN_UP = b'{"format":"airflow-ckpt-given-up"}\n'
#: Restores of version 0.1.0 made safety backups, under a name with this at its end; ``latest`` never means one of them.
SAFETY_SUFFIX = ".before-restore"
#: Next step where a backup is not found.
_LISTS = "`airflow-ckpt backups REPOSITORY` lists what there is"
#: Formats that are known here; and the one of a new repository where nobody asks for another.
FORMATS = (1, 2)
DEFAULT_FORMAT = 1


class Repository(Records):
    """An open repository. Use :meth:`open`, or :meth:`open_or_create` to make one on purpose.

    :param location: where it is.
    :param repository_id: its id, made when it was created.
    :param format: its format; ``None``: that of new ones.
    """

    def __init__(self, location: Location, repository_id: str, format: int | None = None) -> None:
        super().__init__(location)
        self.repository_id = repository_id
        self.format = format or DEFAULT_FORMAT

    def __repr__(self) -> str:
        return f"Repository({self.location.uri!r})"

    @property
    def packs(self) -> bool:
        """Whether new backups put small contents into packs."""
        return self.format >= 2

    def at(self, location: Location) -> Repository:
        """The same repository as somebody else reaches it, such as the holder of a lease."""
        return Repository(location, self.repository_id, self.format)

    @classmethod
    def open(cls, location: Location) -> Repository:
        """Open an existing repository.

        :param location: where it is, with the key if it is encrypted, and with its id where that is known.
        :raises RepositoryError: there is none, or another one, or of a format that is not known here; or the key is missing or
            wrong.
        """
        try:
            data = location.read_document(MARKER)
        except FileNotFoundError:
            wanted = f"; repository {location.repository_id} is expected there" if location.repository_id else ""
            if streams := streams_in(location):
                raise RepositoryError(
                    f"{location} is a repository without its {MARKER}: it holds backups of {', '.join(streams)}{wanted}",
                    hint=way_back(location, streams[0], version=FORMATS[0]),
                ) from None
            raise RepositoryError(
                f"{location} is not a repository: it has no {MARKER}{wanted}",
                hint="check the address, and that its disk or bucket is mounted; a new repository is made on purpose: "
                f"`{command('init', location)}` (in a DAG create=True)",
            ) from None
        try:
            marker = load_json(data)
            is_ours = marker["format"] == FORMAT
            version, repository_id = marker["version"], marker["id"]
            if not _is_id(repository_id):
                raise ValueError("its id is none")
        except (ValueError, KeyError, TypeError) as e:
            raise RepositoryError(
                f"{location}/{MARKER} cannot be read: {data[:80]!r}",
                hint="it was damaged: put it back from a copy of the repository; that of an encrypted one from an export too: "
                "airflow-ckpt key import REPOSITORY --file EXPORT",
            ) from e
        if not is_ours or type(version) is not int or version not in FORMATS:
            raise RepositoryError(
                f"{location} is a repository of format {marker['format']} version {version}, known here: "
                f"{FORMAT} versions {FORMATS[0]} and {FORMATS[-1]}",
                hint="upgrade airflow-ckpt-provider, or use another repository",
            )
        if location.repository_id not in (None, repository_id):
            raise RepositoryError(
                f"{location} is repository {repository_id}, and repository {location.repository_id} is expected there",
                hint="check the address and what is mounted there; to expect this one, correct ckpt_repository_id of the "
                "connection, or --repository-id",
            )
        signing = location.signing and replace(location.signing, repository_id=repository_id)
        return cls(replace(decrypted(location, marker.get("encryption")), signing=signing), repository_id, version)

    @classmethod
    def open_if_there(cls, location: Location) -> Repository | None:
        """Open a repository; ``None`` if the place is empty. For places that nobody named, such as the one beside a checkpoint.

        :raises RepositoryError: the place holds something else, or a repository of a format not known here.
        """
        try:
            return cls.open(location)
        except RepositoryError:
            there = location.list()
            has_files = any(not is_hidden_name_of(file.path, MARKER) for file in there.files)
            if has_files or ("backups" in there.directories and streams_in(location)):
                raise
            return None

    @classmethod
    def open_or_create(cls, location: Location, *, format: int | None = None) -> Repository:
        """Open a repository, or make one in an empty place.

        :param format: of a new one, 1 or 2; the default is 1. One that is there keeps its own.
        :raises RepositoryError: the place holds something else, or a repository of a format not known here; it is empty, and a
            repository with a certain id is expected there; it lies inside a repository or a checkpoint.
        """
        try:
            return cls.open(location)
        except RepositoryError:
            top = location.list()
            # A process that is killed while it makes the repository may leave a part of the marker under a hidden name.
            files = [file.path for file in top.files if not is_hidden_name_of(file.path, MARKER)]
            names = [*files, *top.directories]
            if MARKER in names or location.repository_id is not None or ("backups" in names and streams_in(location)):
                raise
        if names:
            what = "a checkpoint" if {"offsets", "commits"} & set(names) else f"other files ({', '.join(names[:3])}, …)"
            raise RepositoryError(
                f"{location} holds {what}: a repository needs a place of its own", hint="choose an empty place"
            )
        version = checked_format(format or DEFAULT_FORMAT)
        refuse_inside(location)
        marker: dict[str, Any] = {"format": FORMAT, "version": version, "id": str(uuid.uuid4())}
        if location.key is not None:
            marker["encryption"] = new_encryption(location.key)
        with suppress(FileExistsError):  # made by somebody else at this very moment
            location.create(MARKER, json.dumps(marker).encode())
        return cls.open(location)

    def refuse_unsigned(self) -> None:
        """See that what will be written can be signed; before anything is done.

        :raises RefusedError: only signed documents are trusted, and there is no signing key.
        """
        if self.location.signing:
            self.location.signing.refuse_unsigned()

    def names(self) -> tuple[str, ...]:
        """Names of the streams that have backups."""
        return self.names_in("backups")

    def names_in(self, directory: str) -> tuple[str, ...]:
        """Names of the streams that have something in a directory of the repository. What can be no name is logged and left out.

        :param directory: such as ``backups`` or ``objects``.
        """
        found = self.location.list(directory).directories
        for name in (name for name in found if not is_name(name)):
            log.warning("%r in %s/%s is no stream: no backup has made it", name, self.location, directory)
        return tuple(filter(is_name, found))

    def backup_ids(self, name: str) -> tuple[str, ...]:
        """Ids of a stream's backups, oldest first."""
        return self.ids(name)[0]

    def ids(self, name: str) -> tuple[tuple[str, ...], frozenset[str]]:
        """Ids of a stream's backups, oldest first, and :meth:`taken_ids`, by one listing."""

        def is_given_up(backup_id: str) -> bool:
            try:
                return self.location.read(manifest_path(name, backup_id)) == GIVEN_UP
            except (FileNotFoundError, StorageError):
                return False  # whoever wants to read it will say so

        sizes = self._manifests(name)
        found = sorted(i for i, size in sizes.items() if size != len(GIVEN_UP) or not is_given_up(i))
        return tuple(found), frozenset(sizes)

    def taken_ids(self, name: str) -> frozenset[str]:
        """Ids that no new backup can have: those of backups, and those that a prune took from backups it gave up."""
        return frozenset(self._manifests(name))

    def _manifests(self, name: str) -> dict[str, int]:
        """Id -> bytes of the manifest."""
        files = self.location.list(f"backups/{checked_name(name)}").files
        names = ((file.path.rpartition("/")[2], file.size) for file in files)
        return {n.removesuffix(".json"): size for n, size in names if n.endswith(".json") and not n.startswith(".")}

    def backups(self, name: str | None = None) -> list[Manifest]:
        """Manifests of one stream or of all, oldest first; their files are read when somebody asks for them.

        :raises DamagedBackupError: one of them is damaged.
        """
        names = self.names() if name is None else (name,)
        return [self.read_manifest(n, backup_id, with_files=False) for n in names for backup_id in self.backup_ids(n)]

    def refuse_several(self, names: Sequence[str], what: str = "backups") -> None:
        """See that there is one stream at most to choose, where nobody named one.

        :param names: the streams.
        :param what: what the repository holds of them.
        :raises NoSuchBackupError: there are several.
        """
        if len(names) > 1:
            raise NoSuchBackupError(
                f"{self.location} holds {what} of {len(names)} streams: {', '.join(names)}",
                hint="name the stream (name / --name)",
            )

    def manifest(self, backup_id: str = LATEST, *, name: str | None = None, whole: bool = True) -> Manifest:
        """Find a backup by its id, or the newest one.

        :param backup_id: an id, or ``"latest"``: the newest that is not known to be damaged. It is logged which newer ones
            were passed over, and why.
        :param name: name of the stream; needed for ``latest`` where the repository holds several.
        :param whole: ``False``: ``latest`` is the newest, damaged or not.
        :raises NoSuchBackupError: there is none such, or more than one stream to choose from.
        :raises DamagedBackupError: its manifest is damaged; or all are known to be damaged.
        """
        names = self.names() if name is None else (checked_name(name),)
        if backup_id == LATEST:
            if name is None:
                names = tuple(n for n in names if not n.endswith(SAFETY_SUFFIX))
            if whole and len(names) == 1 and (newest := newest_whole(self, names[0])):
                return of_one_stream(self, newest)
        found = [(n, i) for n in names for i in self.backup_ids(n)]
        if backup_id == LATEST:
            streams = sorted({n for n, _ in found})
            self.refuse_several(streams)
            if whole and streams and (newest := newest_whole(self, streams[0])):
                return of_one_stream(self, newest)
            matches = found[-1:]
        else:
            matches = [(n, i) for n, i in found if i == backup_id]
        if not matches:
            of = f" of {name}" if name else ""
            raise NoSuchBackupError(
                f"{self.location} holds no backup {backup_id}{of}" if found else f"{self.location} holds no backup{of}",
                hint=_LISTS,
            )
        if len(matches) > 1:
            raise NoSuchBackupError(
                f"backup {backup_id} exists for {', '.join(n for n, _ in matches)}", hint="say which name"
            )
        manifest = self.read_manifest(*matches[0])
        return of_one_stream(self, manifest) if backup_id == LATEST else manifest

    def read_manifest(self, name: str, backup_id: str, *, with_files: bool = True) -> Manifest:
        """Read one manifest.

        :param name: name of the stream.
        :param backup_id: id of the backup.
        :param with_files: ``False`` for whoever reads many backups: a long table of files is then neither read nor
            kept, and the manifest is read again when somebody asks for one.
        :raises NoSuchBackupError: it does not exist.
        :raises DamagedBackupError: it is damaged.
        """
        path = manifest_path(checked_name(name), backup_id)
        try:
            data = self.location.read_document(path, most=LARGE)
        except FileNotFoundError:
            raise NoSuchBackupError(
                f"{self.location} holds no backup {backup_id} of {name}",
                hint=_LISTS,
            ) from None
        except UntrustedError as e:
            raise DamagedBackupError(f"manifest {e.message}", findings=(path,), hint=e.hint) from e
        except DamagedFileError as e:
            raise DamagedBackupError(
                f"manifest {path} is damaged: {e.message}", findings=(path,), hint=f"choose another backup; {_LISTS}"
            ) from e
        except TooLargeError as e:
            raise DamagedBackupError(e.message, findings=(path,), hint=e.hint) from e
        later = None if with_files else lambda: self.read_manifest(name, backup_id).files
        return parse_manifest(data, path=path, read_later=later)

    def made_by(self, name: str, made_by: str) -> Manifest | None:
        """The newest backup of a stream that one run made, or ``None``; lets a retried task find its own work."""
        return next((manifest for manifest in self.newest_first(name) if manifest.made_by == made_by), None)

    def newest_first(self, name: str) -> Iterator[Manifest]:
        """The manifests of a stream, read one after the other.

        One that is damaged, or has expired since it was listed, is logged and passed over.

        :param name: name of the stream.
        """
        for backup_id in reversed(self.backup_ids(name)):
            try:
                yield self.read_manifest(name, backup_id, with_files=False)
            except (DamagedBackupError, NoSuchBackupError) as e:
                log.warning("%s", e.message)


def _is_id(repository_id: object) -> bool:
    """Whether this can be the id of a repository: signatures are bound to it, so an empty one would be that of any."""
    return isinstance(repository_id, str) and repository_id.isprintable() and bool(repository_id.strip())


def checked_format(format: int) -> int:
    """Return the format of a repository if it is one that is known here.

    :raises RefusedError: it is none.
    """
    if format not in FORMATS:
        raise RefusedError(f"there is no format {format} of a repository", hint="use 1 or 2")
    return format


def raise_format(place: Location, repository: Repository, format: int) -> Repository:
    """Let new backups of a repository be of a later format. What is there stays as it is; earlier releases refuse it from now on.

    Backups of an earlier release that run at this moment are not disturbed: it refuses the manifests of later ones.

    :param place: the repository, with the key if it is encrypted, as for :meth:`Repository.open`.
    :param repository: the same as it was opened.
    :param format: the new format.
    :raises RefusedError: it has a later one.
    """
    if checked_format(format) < repository.format:
        raise RefusedError(
            f"{place} is a repository of format {repository.format}, which cannot become one of format {format} again",
            hint="copy its backups into a new repository: `airflow-ckpt copy`",
        )
    marker = place.find(MARKER)
    if marker is not None:
        document = load_json(place.read_document(MARKER))
        place.replace_listed(marker, json.dumps({**document, "version": format}).encode())
    return Repository.open(place)
