"""Who is at work with a stream's objects: what a prune has to know of backups and restores.

A backup must not list an object that a prune deletes at the same moment. No clock decides that, only the order in which
files appear, which every supported store keeps:

* A backup writes its claim *before* it looks for marks of prunes; a prune writes its mark *before* it looks for claims. So
  one of them sees the other: the backup leaves alone what the mark names, or the prune waits for the backup's end.
* A claim ends by one file that only one can create. The backup writes the path of its manifest there, and after that the
  manifest; a prune that has waited for a day takes the backup for dead and writes that there. Where the backup was
  first, the prune takes the path of the manifest by a file that is none. A process that wakes up after days finds the one or
  the other, and fails; it cannot list an object that is gone.

::

    claims/<name>/<claim id>.json        somebody began
    claims/<name>/<claim id>.end.json    ended: {"manifest": path or null, "given_up": false}

A repack of packs claims as a backup does, and writes a record in the place of a manifest.

A copy has the id of its original, so a later one may want the path of a manifest that a prune has taken, or that has expired:

* It replaces what the prune has written there, if that is still the same, and ends its claim *after* that. Until then prunes wait
  for it. If a prune has given it up before, it puts back what was there, and fails.
* An expire deletes the ends of other claims of a manifest before it deletes the manifest. So a copy that has created its manifest
  reads its own end again: without it, what it copied may be gone, and it takes its manifest away.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_ckpt_provider.backup.file_entry import OBJECTS, FileEntry
from airflow_ckpt_provider.backup.manifest import Manifest, manifest_path
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.repository import GIVEN_UP, Repository
from airflow_ckpt_provider.errors import (
    BackupRunningError,
    FileChangedError,
    RepositoryError,
    StorageError,
    TooLargeError,
)
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import Location, safe_relative
from airflow_ckpt_provider.storage.packs import MOVED, file_of, moved_path, read_moved, record_number
from airflow_ckpt_provider.storage.store import StoredFile
from airflow_ckpt_provider.units import shown_time

_END = ".end.json"
#: Names of records with numbers above the highest that one gets.
_NO_RECORD = re.compile(r"[1-9][0-9]{8,}\.json")
#: After which a claim without an end counts as that of a dead process, by the store's clock.
ABANDONED_AFTER = timedelta(hours=24)


class Claim:
    """The claim of one backup, restore or copy. Use :func:`claimed`.

    :param repository: the repository's place.
    :param name: name of the stream.
    :param guarded: the same place as the holder of a lease may write to it.
    """

    def __init__(self, repository: Location, name: str, guarded: Location | None = None) -> None:
        self.claim_id = uuid.uuid4().hex
        self._repository = repository
        self._guarded = guarded or repository
        self._path = f"claims/{checked_name(name)}/{self.claim_id}"
        self._bound = False

    def begin(self, what: str, made_by: str) -> None:
        """Say that somebody is at work."""
        document = {"what": what, "made_by": made_by, "at": datetime.now(UTC).isoformat(timespec="seconds")}
        self._guarded.create(f"{self._path}.json", json.dumps(document).encode())

    def bind(self, manifest_path: str) -> None:
        """Say which manifest will be written; nothing but that one may be written after this.

        :raises BackupRunningError: a prune has given this backup up.
        """
        if not self._end(self._guarded, {"manifest": manifest_path, "given_up": False}):
            raise _given_up()
        self._bound = True

    def write(self, manifest_path: str, document: bytes) -> None:
        """Write the manifest, and say before that it will be; nothing but that one may be written after this.

        :raises BackupRunningError: a prune has given this backup up.
        :raises FileExistsError: somebody else wrote a manifest under this path.
        """
        self.bind(manifest_path)
        try:
            self._guarded.create(manifest_path, document)
        except FileExistsError:
            if self._guarded.read(manifest_path) == GIVEN_UP:
                raise _given_up() from None
            raise

    def write_copy(self, manifest_path: str, document: bytes, *, was_given_up: bool) -> None:
        """Write the manifest of a copy, which has the path that another copy of the same backup has, or had.

        :param was_given_up: whether a prune had given up an earlier copy, and has taken the path.
        :raises BackupRunningError: a prune has given this copy up.
        :raises FileExistsError: somebody else wrote a manifest under this path.
        """
        listed = self._guarded.find(manifest_path) if was_given_up else None
        if listed is None:
            self.write(manifest_path, document)
            if not self._is_bound_to(manifest_path):
                self._take_away(manifest_path, document)
                raise _given_up()
            return
        if self._guarded.read(manifest_path) != GIVEN_UP:
            raise FileExistsError(manifest_path)
        if self._repository.find(f"{self._path}{_END}") is not None:
            raise _given_up()
        try:
            _exchange(self._guarded, listed, document)
        except FileChangedError:
            raise FileExistsError(manifest_path) from None
        try:
            self.bind(manifest_path)
        except BackupRunningError:
            self._take_away(manifest_path, document)
            raise

    def _is_bound_to(self, manifest_path: str) -> bool:
        """Whether it is still noted that this manifest will be written."""
        try:
            end = load_json(self._repository.read_document(f"{self._path}{_END}"))
        except FileNotFoundError:
            # A prune or an expire took it for one that had ended. It may have seen the manifest at this very moment, and then all
            # is there; that cannot be known here, and another copy is cheap.
            return False
        return bool(end == {"manifest": manifest_path, "given_up": False})

    def _take_away(self, manifest_path: str, document: bytes) -> None:
        """Write over a manifest of ours, if it is still there, that it was given up."""
        listed = self._guarded.find(manifest_path)
        if listed is not None and self._guarded.read(manifest_path) == document:
            with suppress(FileChangedError):
                _exchange(self._guarded, listed, GIVEN_UP)

    def end(self) -> None:
        """Say that nothing will be written any more; after a manifest it was said already."""
        if not self._bound:
            with suppress(StorageError):  # the store may be what failed; the claim is given up after a day
                # Also without the lease: this file is its own, and says that nothing more is written.
                self._end(self._repository, {"manifest": None, "given_up": False})

    def _end(self, place: Location, document: dict[str, object]) -> bool:
        try:
            place.create(f"{self._path}{_END}", json.dumps(document).encode())
        except FileExistsError:
            return False
        return True


def _exchange(place: Location, listed: StoredFile, document: bytes) -> None:
    """Write a document over the one that was listed, and before it its signature.

    :raises FileChangedError: something else is there now.
    """
    if place.signing:
        place.signing.sign(place, listed.path, document)
    place.replace_listed(listed, document)


def _given_up() -> BackupRunningError:
    """Make the error of a backup that took so long, or was suspended so long, that a prune took it for dead."""
    return BackupRunningError(
        "a prune has given this backup up: it had shown no end for too long, and what it copied may be deleted",
        hint="run it again; where backups take that long, give the prune a longer --abandoned-after",
    )


@contextmanager
def claimed(
    repository: Location, name: str, *, what: str, made_by: str, guarded: Location | None = None
) -> Iterator[Claim]:
    """Claim a stream's objects for the time of a ``with`` block. Take it before you read marks, manifests and objects.

    :param what: ``backup``, ``restore``, ``copy`` or ``repair``, for whoever waits.
    :param made_by: the run or user at work.
    :param guarded: the same place as the holder of a lease may write to it; by default no lease is asked for.
    """
    claim = Claim(repository, name, guarded)
    claim.begin(what, made_by)
    try:
        yield claim
    finally:
        claim.end()


@contextmanager
def in_use(repository: Repository, manifest: Manifest, *, what: str, made_by: str) -> Iterator[None]:
    """Keep the objects of a backup from being pruned while they are read.

    :raises NoSuchBackupError: the backup was removed since the manifest was read.
    """
    with claimed(repository.location, manifest.name, what=what, made_by=made_by):
        repository.read_manifest(manifest.name, manifest.backup_id, with_files=False)
        yield


@contextmanager
def entries_in_use(
    repository: Repository, entries: Collection[FileEntry], *, what: str, made_by: str
) -> Iterator[None]:
    """Keep objects from being pruned while they are read; does nothing for none.

    :raises StorageError: a prune may be deleting one of them already.
    """
    objects = {entry.object for entry in entries}
    with ExitStack() as stack:
        for name in sorted({path.split("/")[1] for path in objects}):
            stack.enter_context(claimed(repository.location, name, what=what, made_by=made_by))
            condemned = read_marks(repository.location, name).condemned
            going = {path for path in objects if path.startswith(f"{OBJECTS}/{name}/") and file_of(path) in condemned}
            if going:  # what was moved from there is elsewhere
                moved = read_moved(repository.location, name)
                going = {path for path in going if file_of(moved.now(path)) in condemned}
            if going:
                raise StorageError(
                    f"{min(going)} in {repository.location} belongs to no backup any more, and a prune is deleting it",
                    hint="make a new plan, from a backup that is there",
                )
        yield


@dataclass(frozen=True, slots=True)
class OpenClaim:
    """A claim as a prune sees it.

    :param since: when it was written, by the store's clock; ``None`` where the store does not say.
    """

    claim_id: str
    name: str
    since: datetime | None

    def words(self, repository: Location) -> str:
        """Say who that is."""
        try:
            told = load_json(repository.read_document(f"claims/{self.name}/{self.claim_id}.json"))
            by = f" by {told['made_by']}" if told["made_by"] else ""
            return f"{told['what']}{by} since {shown_time(told['at'])}"
        except (FileNotFoundError, TooLargeError, ValueError, KeyError, TypeError, AttributeError):
            return f"claim {self.claim_id}"


def open_claims(repository: Repository, name: str, *, finished: Collection[str] = ()) -> list[OpenClaim]:
    """Claims of those who may still write a manifest, or read objects.

    :param finished: ids of claims whose manifests are known to be there, which need no check.
    """
    listed = {file.path.rpartition("/")[2]: file for file in repository.location.list(f"claims/{name}").files}
    found = []
    for file_name, file in listed.items():
        claim_id = file_name.removesuffix(".json")
        if file_name.endswith(_END) or not file_name.endswith(".json") or claim_id in finished:
            continue
        if f"{claim_id}{_END}" not in listed or not _has_ended(repository, name, claim_id):
            found.append(OpenClaim(claim_id, name, file.modified))
    return found


def _has_ended(repository: Repository, name: str, claim_id: str) -> bool:
    """Whether it can write no manifest any more: it said so, was given up, or its manifest's path is taken."""
    path = _end_of(repository.location, name, claim_id)["manifest"]
    if path is not None and path.startswith(f"{MOVED}/"):
        return repository.location.find(path) is not None
    return path is None or path.rpartition("/")[2].removesuffix(".json") in repository.taken_ids(name)


def _end_of(place: Location, name: str, claim_id: str) -> dict[str, Any]:
    """How a claim ended.

    :raises RepositoryError: it cannot be read, or names anything but a manifest of the stream. Nothing may be deleted then.
    """
    path = f"claims/{name}/{claim_id}{_END}"
    try:
        end = load_json(place.read_document(path))
        manifest, given_up_ = end["manifest"], bool(end["given_up"])
        if isinstance(manifest, str) and manifest.startswith(f"{MOVED}/"):  # of a repack
            number = record_number(safe_relative(manifest, below=f"{MOVED}/{name}"))
            if number is None and _NO_RECORD.fullmatch(manifest.rpartition("/")[2]):
                manifest = None  # an earlier release went by a forged number: what it would write there is never read
            elif number is None or manifest != moved_path(name, number):
                raise ValueError(f"{manifest!r} is no record of {name}")
        elif manifest is not None:
            backup_id = safe_relative(manifest, below=f"backups/{name}").rpartition("/")[2].removesuffix(".json")
            if manifest != manifest_path(name, backup_id):
                raise ValueError(f"{manifest!r} is no manifest of {name}")
    except FileNotFoundError:  # another prune has tidied up since it was listed
        return {"manifest": None, "given_up": False}
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise RepositoryError(
            f"{place}/{path} cannot be read ({type(e).__name__}: {e}): it was damaged or forged",
            hint="it says how a backup or restore ended; delete it by hand once none of this stream is running",
        ) from e
    return {"manifest": manifest, "given_up": given_up_}


def give_up(repository: Repository, claim: OpenClaim) -> None:
    """See to it that a backup can write no manifest any more, whether its process is dead or not.

    Its manifest may have been written just before: the path is taken then, and the backup is as good as any.
    """
    place = repository.location
    end = {"manifest": None, "given_up": True}
    try:
        place.create(f"claims/{claim.name}/{claim.claim_id}{_END}", json.dumps(end).encode())
        return
    except FileExistsError:
        path = _end_of(place, claim.name, claim.claim_id)["manifest"]
    if path is not None:
        with suppress(FileExistsError):
            place.create(path, GIVEN_UP)


def tidy_claims(repository: Repository, name: str, *, finished: Collection[str]) -> None:
    """Delete claims that nobody has to know of any more.

    The end of one that was given up stays for ever: it is what keeps its process from continuing. The claim of whoever wrote the
    newest record of moved contents stays, too. A release before packs that has opened the repository of format 1 finds an end
    that names no manifest, and deletes nothing: it would take packs for objects that no backup lists.
    """
    place = repository.location
    listed = {file.path.rpartition("/")[2] for file in place.list(f"claims/{name}").files}
    for file_name in sorted(listed):
        claim_id = file_name.removesuffix(".json")
        if file_name.endswith(_END) or not file_name.endswith(".json"):
            continue
        ended = f"{claim_id}{_END}" in listed
        if claim_id not in finished and not (ended and _has_ended(repository, name, claim_id)):
            continue
        end = _end_of(place, name, claim_id) if ended else {}
        if (end.get("manifest") or "").startswith(f"{MOVED}/"):
            records = place.list(f"{MOVED}/{name}").files
            numbers = (record_number(file.path) for file in records)
            if record_number(end["manifest"]) == max((n for n in numbers if n is not None), default=None):
                continue
        keep_end = end.get("given_up", False)
        place.delete(f"claims/{name}/{file_name}")  # first: an end alone is nobody's claim
        if ended and not keep_end:
            place.delete(f"claims/{name}/{claim_id}{_END}")
