"""HDFS by its REST interface, as fsspec's ``webhdfs`` speaks it.

HDFS has what fsspec's common ground has not: a rename that refuses to write over a file, one that replaces it in a single
step (``renameoptions`` of WebHDFS, Hadoop's ``FileSystem.rename`` with options), and a number for every file ever made.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from airflow_ckpt_provider.storage.failures import translated
from airflow_ckpt_provider.storage.fsspec_store import FsspecStore
from airflow_ckpt_provider.storage.store import StoredFile

_EXISTS = "already exists"


class WebHdfsStore(FsspecStore):
    """HDFS. A file is written under a hidden name and renamed: whole or not at all."""

    creates_if_absent = True

    def create(self, path: str, data: bytes) -> None:
        """Write a new file: the rename refuses where there is one."""
        with translated(f"create {self._uri(path)}"):
            try:
                self._write(path, data, "NONE")
            except RuntimeError as e:
                if _EXISTS in str(e):
                    raise FileExistsError(path) from e
                raise

    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there, in one step."""
        with translated(f"write {self._uri(path)}"):
            self._write(path, data, "OVERWRITE")

    def uri(self, path: str) -> str:
        """A path with the NameNode that it is a path of."""
        options = self.fs.storage_options
        return f"webhdfs://{options['host']}:{options.get('port', 50070)}{path}"

    def _write(self, path: str, data: bytes, rename: str) -> None:
        directory, _, name = path.rpartition("/")
        temporary = f"{directory}/.{name}.{uuid.uuid4()}.tmp"
        self.fs.makedirs(directory, exist_ok=True)
        try:
            self.fs.pipe_file(temporary, data)
            self.fs._call("RENAME", method="put", path=temporary, destination=path, renameoptions=rename)
        except BaseException:
            with suppress(Exception):  # the first error is the one to tell
                self.fs.rm_file(temporary)
            raise

    def _stored_files(self, root: str, entries: Iterable[dict[str, Any]]) -> Iterator[StoredFile]:
        return super()._stored_files(root, ({**e, "mtime": e["modificationTime"] / 1000} for e in entries))

    def _identity(self, entry: dict[str, Any]) -> str | None:
        # The number stays with a file that is appended to; its time and size do not.
        return f"inode:{entry['fileId']}-{entry['modificationTime']}" if entry.get("fileId") else None
