"""What prunes are about to delete, for backups to leave alone.

::

    prune/<name>/<nnnnnn>.json         a prune will delete these objects
    prune/<name>/<nnnnnn>.done.json    it has; the newest of these stays

The number of the newest prune is the *generation* of a stream's objects: new objects carry it in their name. So a prune that
was suspended and wakes up after another has finished its work can delete nothing that was written since: everything it
names is of an older generation.

That number is in the name of a file, which nothing signs. One that is higher than any prune gives would get into names of objects
that cannot be read then. So it is refused.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from airflow_ckpt_provider.backup.file_entry import OBJECTS
from airflow_ckpt_provider.backup.names import checked_name
from airflow_ckpt_provider.errors import RepositoryError, UntrustedError, command
from airflow_ckpt_provider.json_text import load_json
from airflow_ckpt_provider.storage.location import LARGE, Location, safe_relative

log = logging.getLogger(__name__)

_DONE = ".done.json"
#: The highest number that a prune gets. Names of packs have room for ten times as much.
_HIGHEST = 99_999_999


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a stream.

    :param generation: number of the newest prune; 0 where there was none.
    :param condemned: objects that an unfinished prune may delete at any moment.
    :param unfinished: numbers of unfinished prunes.
    :param done: numbers of finished prunes that are still noted.
    """

    generation: int = 0
    condemned: frozenset[str] = frozenset()
    unfinished: tuple[int, ...] = ()
    done: tuple[int, ...] = ()


def read_marks(repository: Location, name: str, *, for_prune: bool = False) -> Marks:
    """Read the marks: one listing, and one read for each unfinished prune.

    :param for_prune: whether a mark may be cut off, or not signed by a trusted key. Its prune was killed as it wrote it, or it is
        forged; the next prune takes the mark away. Whoever has to know what may be deleted cannot go by it.
    :raises RepositoryError: a mark names anything but objects of the stream; or it is cut off, or not signed by a trusted key; or
        a number is higher than any that a prune gets.
    """
    files = [file.path for file in repository.list(f"prune/{checked_name(name)}").files]
    done = set(_numbers(repository, files, _DONE))
    marks = set(_numbers(repository, files, ".json"))
    condemned: set[str] = set()
    for number in sorted(marks):
        try:
            named = _named(repository, name, number)
        except FileNotFoundError:  # finished since it was listed: what it named is gone
            continue
        if named is None and not for_prune:
            raise RepositoryError(
                f"{repository}/{_path(name, number)} is cut off or not signed by a trusted key: what the prune that wrote it may "
                "delete is not known",
                hint=f"run `{command('prune', repository, '--apply')}`, which removes it; then run this again",
            )
        condemned.update(named or ())
    return Marks(max((*done, *marks), default=0), frozenset(condemned), tuple(sorted(marks)), tuple(sorted(done)))


def _numbers(repository: Location, files: Iterable[str], ending: str) -> Iterator[int]:
    """The numbers of the files with this ending.

    :raises RepositoryError: one is higher than any that a prune gets.
    """
    for path in files:
        text = path.rpartition("/")[2].removesuffix(ending)
        if not path.endswith(ending) or not (text.isascii() and text.isdecimal()):
            continue
        digits = text.lstrip("0") or "0"
        if len(digits) > len(str(_HIGHEST)):  # before it is converted: Python reads no number of thousands of digits
            raise RepositoryError(
                f"{repository}/{path} has the number {text}, and prunes have none above {_HIGHEST}: objects of that generation "
                "could not be read",
                hint="no prune has written that: find out who did, then delete this file",
            )
        yield int(digits)


def _named(repository: Location, name: str, number: int) -> list[str] | None:
    """What a mark names; ``None`` where it is cut off, or not signed by a trusted key.

    :raises FileNotFoundError: it does not exist any more.
    :raises RepositoryError: it names anything but objects of the stream.
    """
    try:
        named = load_json(repository.read_document(_path(name, number), most=LARGE))["objects"]
    except UntrustedError as e:
        log.warning("%s: what it names is not deleted", e.message)
        return None
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(named, list):
        return None
    for path in named:
        try:
            safe_relative(path, below=f"{OBJECTS}/{name}")
        except ValueError as e:
            raise RepositoryError(
                f"{repository}/{_path(name, number)} names {path!r} as what a prune may delete: {e}; nothing was deleted",
                hint="no prune has written that: find out who did, then delete this file",
            ) from None
    return named


def write_mark(repository: Location, name: str, marks: Marks, objects: Collection[str], *, made_by: str) -> int:
    """Name the objects that will be deleted; return the number of the mark.

    :raises RepositoryError: the highest number is taken.
    """
    document = {
        "id": uuid.uuid4().hex,  # no two marks are the same: a store that lost our answer is asked whose it has
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "made_by": made_by,
        "objects": sorted(objects),
    }
    number = marks.generation
    while True:
        number += 1
        if number > _HIGHEST:
            ending = _DONE if _HIGHEST in marks.done else ".json"
            raise RepositoryError(
                f"{repository}/prune/{name}/{_HIGHEST}{ending} has the highest number that a prune can have: this one would "
                "get the next",
                hint="no prune has written that: find out who did, then delete this file",
            )
        try:
            repository.create(_path(name, number), json.dumps(document).encode())
            return number
        except FileExistsError:  # another prune at the same moment
            continue


def written_at(repository: Location, name: str, number: int) -> datetime | None:
    """When a mark was written, by the store's clock; ``None`` where the store does not say."""
    path = _path(name, number)
    return next((f.modified for f in repository.list(f"prune/{name}").files if f.path == path), None)


def finish(repository: Location, name: str, number: int, older: Iterable[int]) -> None:
    """Say that a prune has ended, and take its mark away, and older ones that it has carried to their end."""
    document = {"at": datetime.now(UTC).isoformat(timespec="seconds")}
    repository.replace(f"prune/{name}/{number:06d}{_DONE}", json.dumps(document).encode())
    for each in (number, *older):
        repository.delete(_path(name, each))
    for each in older:
        repository.delete(f"prune/{name}/{each:06d}{_DONE}")


def _path(name: str, number: int) -> str:
    return f"prune/{name}/{number:06d}.json"
