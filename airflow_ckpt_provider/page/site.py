"""The pages as files, for people without Airflow."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType

from airflow_ckpt_provider.backup.names import is_name
from airflow_ckpt_provider.backup.records import checked_plan_id
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import CkptError, RefusedError
from airflow_ckpt_provider.fingerprint import fingerprint_of
from airflow_ckpt_provider.page.html import ASSETS, Head, asset, message_page
from airflow_ckpt_provider.page.pages import NotThereError, Pages
from airflow_ckpt_provider.streams.stream import Stream

#: Backups of each stream that get a page.
_BACKUPS = 20
#: Characters of the name of a file, without its ending: disks take 255 bytes.
_LONGEST = 240


@dataclass(frozen=True)
class FileLinks:
    """Names of the files; a name that is no stream's has none.

    :param files: the files that there will be: nothing leads to another one. ``None``: any.
    """

    root: str = ""
    files: Container[str] | None = None

    def streams(self) -> str:
        """The page of all streams."""
        return "index.html"

    def stream(self, name: str) -> str:
        """The page of one stream."""
        return self._file("stream", name) if is_name(name) else ""

    def backup(self, name: str, backup_id: str) -> str:
        """The page of one backup."""
        return self._file("backup", name, backup_id) if is_name(name) and is_name(backup_id) else ""

    def change(self, plan_id: str) -> str:
        """The page of one change."""
        try:
            checked_plan_id(plan_id)
        except RefusedError:
            return ""
        return self._file("change", plan_id)

    def _file(self, *words: str) -> str:
        name = "-".join(words)
        if len(name) > _LONGEST:
            name = f"{name[: _LONGEST - 17]}-{fingerprint_of(name)}"
        return f"{name}.html" if self.files is None or f"{name}.html" in self.files else ""

    def restore(self, name: str, backup_id: str) -> str:
        """A file starts no DAG."""
        return ""

    def rewind(self, name: str, to: datetime) -> str:
        """A file starts no DAG."""
        return ""


def write_site(
    repository: Repository, directory: Path, *, declared: Mapping[str, Stream] = MappingProxyType({})
) -> list[Path]:
    """Write all pages into a directory; what else is there stays. One that cannot be made says why, and takes no other away.

    :param repository: is only read.
    :param directory: is made if it does not exist.
    :param declared: as :class:`~airflow_ckpt_provider.page.pages.Pages` has them.
    :return: the files.
    :raises OSError: it cannot be written to.
    :raises CkptError: nothing of the repository can be read.
    """
    links, made = FileLinks(), dict[str, Callable[[], str]]()
    pages = Pages(repository, FileLinks(files=made), declared=declared)
    for name in {row.name: None for row in pages.reported().rows if is_name(row.name)}:
        made[links.stream(name)] = partial(pages.stream, name)
        for backup_id in _newest(repository, name):
            made[links.backup(name, backup_id)] = partial(pages.backup, name, backup_id)
    for file in repository.location.list("plans").files:
        plan_id = Path(file.path).stem
        if name := links.change(plan_id):
            made[name] = partial(pages.change, plan_id)
    contents = {name: asset(name) for name in ASSETS if name.endswith(".css")}
    contents[links.streams()] = pages.streams().encode()
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    for name, make in made.items():
        (directory / name).write_bytes(_page(make).encode())
    return [directory / name for name in (*contents, *made)]


def _newest(repository: Repository, name: str) -> tuple[str, ...]:
    try:
        return tuple(filter(is_name, repository.backup_ids(name)[-_BACKUPS:]))
    except CkptError:
        return ()  # the page of the stream says why


def _page(make: Callable[[], str]) -> str:
    try:
        return make()
    except (NotThereError, CkptError) as e:
        return message_page(Head(FileLinks(), "", datetime.now(UTC)), "The page cannot be made", str(e))
