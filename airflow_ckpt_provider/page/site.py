"""The pages as files, for people without Airflow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

from airflow_ckpt_provider.backup.names import is_name
from airflow_ckpt_provider.backup.repository import Repository, checked_plan_id
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.page.html import ASSETS, asset
from airflow_ckpt_provider.page.pages import NotThereError, Pages
from airflow_ckpt_provider.streams.stream import Stream

#: Backups of each stream that get a page.
_BACKUPS = 20


@dataclass(frozen=True)
class FileLinks:
    """Names of the files; a name that is no stream's has none."""

    root: str = ""

    def streams(self) -> str:
        """The page of all streams."""
        return "index.html"

    def stream(self, name: str) -> str:
        """The page of one stream."""
        return f"stream-{name}.html" if is_name(name) else ""

    def backup(self, name: str, backup_id: str) -> str:
        """The page of one backup."""
        return f"backup-{name}-{backup_id}.html" if is_name(name) and is_name(backup_id) else ""

    def change(self, plan_id: str) -> str:
        """The page of one change."""
        try:
            checked_plan_id(plan_id)
        except RefusedError:
            return ""
        return f"change-{plan_id}.html"

    def restore(self, name: str, backup_id: str) -> str:
        """A file starts no DAG."""
        return ""

    def rewind(self, name: str, to: datetime) -> str:
        """A file starts no DAG."""
        return ""


def write_site(
    repository: Repository, directory: Path, *, declared: Mapping[str, Stream] = MappingProxyType({})
) -> list[Path]:
    """Write all pages into a directory; what else is there stays.

    :param repository: is only read.
    :param directory: is made if it does not exist.
    :param declared: as :class:`~airflow_ckpt_provider.page.pages.Pages` has them.
    :return: the files.
    :raises OSError: it cannot be written to.
    """
    links = FileLinks()
    pages = Pages(repository, links, declared=declared)
    contents: dict[str, bytes] = {name: asset(name) for name in ASSETS if name.endswith(".css")}
    contents[links.streams()] = pages.streams().encode()
    for row in pages.rows():
        if not links.stream(row.name):
            continue
        contents[links.stream(row.name)] = pages.stream(row.name).encode()
        for point in pages.points(row.name)[-_BACKUPS:]:
            contents[links.backup(row.name, point.backup_id)] = pages.backup(row.name, point.backup_id).encode()
    for file in repository.location.list("plans").files:
        plan_id = Path(file.path).stem
        if links.change(plan_id):
            try:
                contents[links.change(plan_id)] = pages.change(plan_id).encode()
            except NotThereError:
                continue
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    return [directory / name for name in contents]
