"""Files put aside before they are deleted or replaced, whole and as they are, so that they can be put back.

A backup holds a closure; this holds exactly what a change takes away, batches that were not committed included. Its marker is
written last: until it is there, nothing may be deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.backup.repository import Repository, checked_plan_id
from airflow_ckpt_provider.backup.repository import default_repository as default_repository
from airflow_ckpt_provider.backup.transfer import WORKERS, in_parallel
from airflow_ckpt_provider.errors import RepositoryError, StorageError
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import LARGE, Location, safe_paths
from airflow_ckpt_provider.storage.store import StoredFile

_COMPLETE = "COMPLETE"


@dataclass(frozen=True, slots=True)
class SetAside:
    """What one plan puts aside of one place.

    :param repository: the repository that keeps it.
    :param name: name of the stream.
    :param plan_id: the plan.
    :param part: what it is of, where a plan puts more than one thing aside: ``checkpoint``, ``sink``.
    """

    repository: Repository
    name: str
    plan_id: str
    part: str = ""

    @property
    def place(self) -> str:
        """Its path in the repository."""
        return "/".join(filter(None, ("set-aside", checked_name(self.name), checked_plan_id(self.plan_id), self.part)))

    @property
    def sizes(self) -> dict[str, int] | None:
        """Path -> bytes of all that is kept; ``None`` while it is not complete.

        :raises RepositoryError: the marker is damaged, so that it cannot be determined what is kept.
        """
        marker = self._marker()
        return None if marker is None else marker[0]

    @property
    def left(self) -> dict[str, str | None] | None:
        """Path -> identity of the files that were there and were not to be touched; ``None`` where it was not noted.

        :raises RepositoryError: the marker is damaged.
        """
        marker = self._marker()
        return None if marker is None else marker[1]

    def _marker(self) -> tuple[dict[str, int], dict[str, str | None] | None] | None:
        """What is kept and what was left; ``None`` if there is no marker."""
        try:
            data = self.repository.location.read_document(f"{self.place}/{_COMPLETE}", most=LARGE)
        except FileNotFoundError:
            return None
        try:
            value = load_json(data)
            files, left = value["files"], value.get("left")
            for path, size in files.items():
                if type(size) is not int:
                    raise ValueError(f"{path!r} has a size of {size!r}")
            safe_paths((*files, *(left or {})))
            left = None if left is None else dict(left)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise RepositoryError(
                f"{self.repository.location}/{self.place}/{_COMPLETE} cannot be read ({type(e).__name__}: {e}): {data[:80]!r}",
                hint="put it back from a copy of the repository: without it nothing shows whether all that was removed is in "
                f"{self.place}/files",
            ) from e
        return files, left

    def read(self, path: str) -> bytes:
        """Content of a file that was kept.

        :raises FileNotFoundError: it was not.
        """
        return self.repository.location.read(f"{self.place}/files/{path}")

    @property
    def files(self) -> Location:
        """The place of the files that are kept."""
        return self.repository.location / f"{self.place}/files"

    def keep(
        self,
        source: Location,
        files: Iterable[StoredFile],
        *,
        left: Mapping[str, str | None] | None = None,
        workers: int = WORKERS,
    ) -> None:
        """Copy files here; does nothing when all was copied before.

        :param left: path -> identity of the other files of the place, by which an undo knows whether somebody has written since.

        :raises FileNotFoundError: a file does not exist any more: somebody else changes the place.
        :raises StorageError: what arrived is not what was read.
        """
        if self.sizes is not None:
            return
        kept = list(files)
        here = self.repository.location / f"{self.place}/files"

        def copy(file: StoredFile) -> None:
            _copy(source, file, here)

        in_parallel(copy, kept, workers=workers)
        arrived = here.walk()
        wrong = [f.path for f in kept if not _is_copy(f, arrived.get(f.path), source, here)]
        if wrong:
            raise StorageError(
                f"{here}/{wrong[0]} is not what {source}/{wrong[0]} was ({len(wrong)} files differ)",
                hint="nothing was deleted; see who else writes there, then run the same command again",
            )
        sizes = {file.path: file.size for file in kept}
        marker = {"from": source.uri, "files": sizes, **({} if left is None else {"left": dict(left)})}
        self.repository.location.replace(f"{self.place}/{_COMPLETE}", json.dumps(marker).encode())


def _is_copy(file: StoredFile, made: StoredFile | None, source: Location, target: Location) -> bool:
    """Whether what arrived is what was there. An object that a service encrypted has another checksum: then both are read."""
    if made is None or made.size != file.size:
        return False
    if None in (file.checksum, made.checksum) or file.checksum == made.checksum:
        return True
    return source.read(file.path) == target.read(file.path)


def _copy(source: Location, file: StoredFile, target: Location) -> None:
    """Copy a file if there is none; over one that an earlier attempt has left there only if that is another content."""
    path = file.path
    try:
        if target.store.copies_within and target.store.same_as(source.store):
            if target.store.copies_if_absent(file.size):
                target.store.copy((source / path).root, (target / path).root, file.size)
            else:
                source.copy_new(file, path, into=target)
        else:
            target.create(path, source.read(path))
    except FileExistsError:
        content, left = source.read(path), target.find(path)
        if left is None or target.read(path) != content:
            if left is None:
                target.create(path, content)
            else:
                target.replace_listed(left, content)
