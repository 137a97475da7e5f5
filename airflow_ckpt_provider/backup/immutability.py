"""Keeping backups undeletable for a time, by S3 Object Lock.

A backup with ``immutable_for`` locks all that its restore needs: its objects, also those that earlier backups have stored,
its manifest with its signatures, ``repository.json`` and the wrapped keys. The objects come first: a manifest exists only where
its objects are locked. The mode is ``COMPLIANCE``: nobody can shorten or lift such a lock, not even the owner of the account.
``GOVERNANCE`` can be lifted by whoever has ``s3:*``, as administrators and their stolen keys do.

A lock protects versions. Whoever may write or delete can still put a newer version or a delete marker over a locked file, and the
package then sees that. The locked version stays, and is brought back by removing what lies over it.

.. seealso:: :doc:`/howto/immutable`
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from airflow_ckpt_provider.backup.claims import in_use
from airflow_ckpt_provider.backup.file_entry import OBJECTS
from airflow_ckpt_provider.backup.manifest import Manifest
from airflow_ckpt_provider.backup.marker import MARKER
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError, StorageError
from airflow_ckpt_provider.parallel import WORKERS, in_parallel
from airflow_ckpt_provider.storage.key_sets import KEYS
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.packs import file_of, part_of, read_moved
from airflow_ckpt_provider.storage.signatures import SIGNATURES

#: A lock cannot be removed: more than this is taken for a mistake.
LONGEST = timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class Immutability:
    """Locks what a backup consists of.

    :param repository: the repository.
    :param length: for how long from now; ``None``: nothing is locked.
    :param workers: requests under way at once.
    """

    repository: Repository
    length: timedelta | None
    workers: int = WORKERS

    def check(self) -> None:
        """See that files can be locked here, before anything is written.

        :raises RefusedError: the store or the bucket has no Object Lock; the time is none, or longer than ten years.
        """
        if self.length is None:
            return
        if not timedelta(0) < self.length <= LONGEST:
            raise RefusedError(
                f"immutable_for is {self.length}: a lock cannot be removed",
                hint=f"give a time above zero, of at most {LONGEST.days} days",
            )
        place = self.repository.location
        if why := place.why_no_locks():
            raise RefusedError(
                f"backups in {place} cannot be made immutable: {why}",
                hint="use a bucket that was made with Object Lock, or leave immutable_for out",
            )

    def lock_objects(self, manifest: Manifest) -> None:
        """Lock all objects of a backup, and what is needed to open the repository."""
        place = self.repository.location
        keys = () if self.length is None else place.list(KEYS).files
        self._lock([MARKER, *(file.path for file in keys), *self._files_of(manifest)])

    def _files_of(self, manifest: Manifest) -> Iterable[str]:
        if self.length is None:
            return ()
        place, name = self.repository.location, manifest.name
        objects = dict.fromkeys(entry.object for entry in manifest.files)
        if not self.repository.packs and not any(map(part_of, objects)):
            return objects
        there = {file.path for file in place.sweep(f"{OBJECTS}/{name}")}
        moved = read_moved(place, name)
        # Of what was moved nobody knows where it is without the records, and their signatures. Also where it was: the record may
        # be forged, and what it names another content.
        files: set[str] = set()
        places: set[str] = set()
        for path in objects:
            of_path = moved.places(path)
            files |= {file_of(each) for each in of_path} & there or {file_of(path)}
            places |= of_path
        records = [record for record, says in moved.records.items() if not places.isdisjoint(says)]
        signed = (file.path for record in records for file in place.list(f"{SIGNATURES}/{record}").files)
        return [*sorted(files), *records, *signed]

    def lock_manifest(self, manifest: Manifest) -> datetime | None:
        """Lock the manifest of a backup whose objects are locked, and its signatures: without one, readers do not trust it.

        Whoever locks may have no keys: all signatures are locked that are there.

        :return: until when; ``None`` where nothing is locked.
        """
        place = self.repository.location
        signed = () if self.length is None else place.list(f"{SIGNATURES}/{manifest.path}").files
        return self._lock([manifest.path, *(file.path for file in signed)])

    def lock_again(self, manifest: Manifest, *, made_by: str) -> datetime | None:
        """Lock a backup that is there already; no prune deletes meanwhile what is being locked.

        :param manifest: of the backup.
        :param made_by: the run or user that locks it.
        :return: until when; ``None`` where nothing is locked.
        :raises NoSuchBackupError: the backup was removed since the manifest was read.
        """
        if self.length is None:
            return None
        with in_use(self.repository, manifest, what="backup", made_by=made_by):
            self.lock_objects(manifest)
            return self.lock_manifest(manifest)

    def _lock(self, paths: Iterable[str]) -> datetime | None:
        if self.length is None:
            return None
        # Whole seconds: a store that has no smaller ones would round down.
        until = (datetime.now(UTC) + self.length).replace(microsecond=0) + timedelta(seconds=1)
        in_parallel(lambda path: self.repository.location.lock(path, until), paths, workers=self.workers)
        return until


def locks_on(place: Location, paths: Iterable[str], *, now: datetime) -> tuple[dict[str, datetime], str | None]:
    """Which files are locked, and until when.

    :param place: the repository.
    :param paths: files in it.
    :param now: our clock; a lock that has ended is none.
    :return: path -> end of its lock; and why that is not known, where these credentials may not ask.
    """
    wanted = tuple(paths)
    if not wanted:
        return {}, None
    try:
        if place.why_no_locks():
            return {}, None
        found = zip(wanted, in_parallel(place.locked_until, wanted), strict=True)
    except StorageError as e:
        return {}, f"whether Object Lock protects what is removed is not known: {e.message}"
    return {path: until for path, until in found if until is not None and until > now}, None
