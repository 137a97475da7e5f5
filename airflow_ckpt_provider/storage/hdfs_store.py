"""HDFS by WebHDFS, which needs neither Java nor Hadoop here.

A file is written under a hidden name and renamed, which the NameNode does in one step: it refuses where there is a file
(create), or puts the new one in its place (replace). ``CREATE`` with ``overwrite=false`` is exclusive as well, but shows the
file while it is being written, and a DataNode whose writer is killed closes what it has as if that were all.

It does not compare and delete in one step. So a file that is to be deleted or replaced is renamed to a hidden name and compared
there, see :class:`~airflow_ckpt_provider.storage.local_store.LocalStore`, which does the same.
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_ckpt_provider.errors import MissingExtraError, StorageError
from airflow_ckpt_provider.parallel import in_parallel
from airflow_ckpt_provider.storage.hidden_name import hidden_name
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.namenodes import HdfsRefusalError, NameNodes
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile
from airflow_ckpt_provider.storage.write_check import NO_CHECK, CheckRaisedError, changes_store, with_check

if TYPE_CHECKING:
    from fsspec.implementations.webhdfs import WebHDFS

#: Schemes that this store is opened for.
HDFS_SCHEMES = ("hdfs", "webhdfs")
#: HDFS lists one directory a request.
_LISTED_AT_ONCE = 8
#: Connections kept to a NameNode; with fewer than there are threads, each request would be a connection of its own.
_CONNECTIONS = 64
_EXAMPLE = "write it as hdfs://namenode:8020/path, or webhdfs://namenode:9870/path"


class HdfsStore(Store):
    """One HDFS.

    :param namenodes: how it is asked.
    :param protocol: ``hdfs`` or ``webhdfs``, as the address has it.
    :param authority: what stands between scheme and path in the address. Paths of the store begin with it, as those of S3
        do with the bucket.
    """

    creates_if_absent = True
    reads_parts = True
    deletes_if_same = True

    def __init__(self, namenodes: NameNodes, protocol: str, authority: str) -> None:
        self.namenodes = namenodes
        self._protocol = protocol
        self._authority = authority

    @property
    def protocol(self) -> str:
        """Scheme of the store's URIs."""
        return self._protocol

    def list(self, path: str) -> Listing:
        """List one directory."""
        root = path.rstrip("/")
        files: list[StoredFile] = []
        directories: list[str] = []
        for entry in self._entries(path) or ():
            if entry["type"] == "DIRECTORY":
                directories.append(entry["pathSuffix"])
            else:
                files.append(_stored_file(f"{root}/{entry['pathSuffix']}", entry))
        return Listing(tuple(files), tuple(sorted(directories)))

    def walk(self, path: str) -> Iterator[StoredFile]:
        """List all files below ``path``: a request for each directory, several at once."""
        level = [path.rstrip("/")]
        while level:
            below = []
            for begin in range(0, len(level), _LISTED_AT_ONCE):
                part = level[begin : begin + _LISTED_AT_ONCE]
                for directory, found in zip(part, in_parallel(self.list, part, workers=_LISTED_AT_ONCE), strict=True):
                    yield from found.files
                    below += [f"{directory}/{name}" for name in found.directories]
            level = below

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return self.namenodes.stream(f"read {self._uri(path)}", "GET", "OPEN", _in_hdfs(path))

    def read_part(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file."""
        action = f"read {self._uri(path)}"
        try:
            return self.namenodes.stream(action, "GET", "OPEN", _in_hdfs(path), offset=start, length=length)
        except HdfsRefusalError as e:
            if "out of the range" in e.message:  # the file ends before
                return b""
            raise

    def find(self, path: str) -> StoredFile | None:
        """Return one file as a listing shows it now."""
        try:
            answer = self.namenodes.ask(f"read {self._uri(path)}", "GET", "GETFILESTATUS", _in_hdfs(path))
        except FileNotFoundError:
            return None
        entry = answer["FileStatus"]
        return None if entry["type"] == "DIRECTORY" else _stored_file(path, entry)

    @changes_store
    def create(self, path: str, data: bytes) -> None:
        """Write a new file: whole and exclusive."""
        self._write(f"create {self._uri(path)}", path, data, "NONE")

    @changes_store
    def replace(self, path: str, data: bytes) -> None:
        """Write a file over whatever is there, in one step."""
        self._write(f"write {self._uri(path)}", path, data, "OVERWRITE")

    @changes_store
    def replace_listed(self, file: StoredFile, data: bytes) -> StoredFile | None:
        """Write a file over the one that was listed: rename that away, compare, rename the new one to its name.

        For a moment there is none.
        """
        action = f"write {self._uri(file.path)}"
        self.require_same(file, self.find(file.path))
        taken: str | None = None

        def take() -> None:
            nonlocal taken
            taken = self._take_away(action, file)
            if taken is None:
                raise self.changed(file, self.find(file.path))

        try:
            self._write(action, file.path, data, "NONE", before_rename=take)
        except FileExistsError:
            raise self.changed(file, self.find(file.path), kept=self.uri_of(taken) if taken else None) from None
        except BaseException:
            if taken:
                self._put_back(action, taken, file.path)
            raise
        if taken:
            self._delete(action, taken)
        return self.find(file.path)

    @changes_store
    def delete(self, path: str) -> None:
        """Delete a file, not into the trash; a missing one is fine."""
        self._delete(f"delete {self._uri(path)}", path)

    @changes_store
    def delete_listed(self, file: StoredFile) -> None:
        """Delete a file if it is still the one that was listed: rename it away, compare, delete."""
        action = f"delete {self._uri(file.path)}"
        if (found := self.find(file.path)) is None:
            return
        self.require_same(file, found)
        if (taken := self._take_away(action, file)) is None:
            return
        try:
            self._delete(action, taken)
        except BaseException:
            self._put_back(action, taken, file.path)
            raise

    @changes_store
    def remove_empty_directories(self, path: str) -> None:
        """Remove ``path`` and the directories below it where they hold nothing."""
        entries = self._entries(path)
        if entries is None:
            return
        for entry in entries:
            if entry["type"] == "DIRECTORY":
                self.remove_empty_directories(f"{path.rstrip('/')}/{entry['pathSuffix']}")
        if any(entry["type"] != "DIRECTORY" for entry in entries):
            self.write_check()
            return  # asked to remove it, HDFS compares rights before it sees that it is not empty
        try:
            self.delete(path)
        except HdfsRefusalError as e:
            if e.exception == "AccessControlException":
                raise StorageError(e.message, hint=e.hint) from PermissionError(e.message)
            if e.exception != "PathIsNotEmptyDirectoryException":
                raise

    def copy(self, source: str, target: str, size: int) -> None:
        """Not offered: HDFS does not copy by itself."""
        raise NotImplementedError("HdfsStore.copies_within is false")

    def canonical(self, path: str) -> str:
        """Return the path without the NameNode, which can go by several names."""
        return _in_hdfs(path)

    def same_as(self, other: Store) -> bool:
        """Whether both ask one NameNode."""
        return isinstance(other, HdfsStore) and not self.namenodes.addresses.isdisjoint(other.namenodes.addresses)

    def fenced(self, check: Callable[[], None], *, request_timeout: float | None) -> Store:
        """The same store with a check before each CREATE, RENAME, DELETE and write to a DataNode.

        Hidden files that could not be removed any more, since the check forbade it, stay.
        """
        fenced = with_check(self, check, request_timeout)
        fenced.namenodes = self.namenodes.checked(fenced.write_check)
        return fenced

    def _entries(self, path: str) -> Sequence[dict[str, Any]] | None:
        """What a directory holds; ``None`` if there is no such directory."""
        try:
            answer = self.namenodes.ask(f"list {self._uri(path)}", "GET", "LISTSTATUS", _in_hdfs(path))
        except FileNotFoundError:
            return None
        except HdfsRefusalError as e:
            if e.exception == "AccessControlException" and "(is not a directory)" in e.message:
                return None
            raise
        entries: Sequence[dict[str, Any]] = answer["FileStatuses"]["FileStatus"]
        # A file is listed as itself, without a name.
        return None if any(not entry["pathSuffix"] for entry in entries) else entries

    def _write(
        self, action: str, path: str, data: bytes, rename: str, *, before_rename: Callable[[], None] = lambda: None
    ) -> None:
        """Write a file under a hidden name and rename it.

        :param rename: ``renameoptions`` of WebHDFS (Hadoop's ``Options.Rename``): ``NONE`` refuses where there is a file.
        """
        temporary = hidden_name(path)
        try:
            # Over itself, where a first DataNode did not answer.
            self.namenodes.stream(action, "PUT", "CREATE", _in_hdfs(temporary), data=data, overwrite="true")
            before_rename()
            self._rename(action, temporary, path, rename)
        except BaseException as e:
            if not isinstance(e, CheckRaisedError):  # which forbids this request too
                with suppress(Exception):  # the first error is the one to tell
                    self.delete(temporary)
            if isinstance(e, FileNotFoundError):
                # The answer to a first NameNode may have been lost.
                with suppress(FileNotFoundError):
                    if self.read(path) == data:
                        return
                raise StorageError(
                    f"could not {action}: {e}", hint="somebody removes files or directories there"
                ) from e
            raise

    def _delete(self, action: str, path: str) -> None:
        self.namenodes.ask(action, "DELETE", "DELETE", _in_hdfs(path), recursive="false")

    def _take_away(self, action: str, file: StoredFile) -> str | None:
        """Rename a file to a hidden name if it is the one that was listed; return that name, ``None`` where it is missing.

        :raises FileChangedError: it is another one, which is back, or kept where somebody took its name.
        """
        taken = hidden_name(file.path)
        try:
            self._rename(action, file.path, taken, "NONE")
        except FileNotFoundError:
            # The answer to a first NameNode may have been lost.
            if self.find(taken) is None:
                return None
        found = self.find(taken)
        if found is None or not file.is_same(found):
            back = self._put_back(action, taken, file.path)
            raise self.changed(file, self.find(file.path), kept=None if back else self.uri_of(taken))
        return taken

    def _put_back(self, action: str, taken: str, path: str) -> bool:
        """Undo the renaming of a file, without a check: it only restores. Never over a new file of that name.

        :returns: whether it is back.
        """
        try:
            self._rename(action, taken, path, "NONE", namenodes=self.namenodes.checked(NO_CHECK))
        except (FileExistsError, FileNotFoundError):
            return self.find(taken) is None
        return True

    def _rename(
        self, action: str, temporary: str, path: str, rename: str, *, namenodes: NameNodes | None = None
    ) -> None:
        answer = (namenodes or self.namenodes).ask(
            action, "PUT", "RENAME", _in_hdfs(temporary), destination=_in_hdfs(path), renameoptions=rename
        )
        if answer is not None:  # as a rename without options is answered, which HttpFS makes of it
            raise StorageError(
                f"could not {action}: whoever answers does not know renameoptions",
                hint="give the NameNode's own address (WebHDFS), not that of an HttpFS gateway",
            )

    def _uri(self, path: str) -> str:
        return f"{self._protocol}://{path}"


def open_hdfs(uri: str, options: Mapping[str, Any]) -> Location:
    """Open a place in HDFS.

    :param uri: ``hdfs://…`` or ``webhdfs://…``. The port is that of WebHDFS in ``webhdfs://`` only; in ``hdfs://`` it is that
        of the NameNode's RPC, as Spark has it. Several NameNodes may be given, separated by commas.
    :param options: arguments of fsspec's ``WebHDFS``. ``host`` may be several NameNodes, separated by commas, each with its
        port or without, and goes before what the address says; ``port`` is that of WebHDFS, by default 9870, or 9871 with
        ``use_https``. Without ``user``, ``token`` and ``kerberos`` it is asked as Hadoop's own clients ask: as
        ``HADOOP_USER_NAME``, or as the user of this process.
    :raises StorageError: the address or an option is wrong.
    :raises MissingExtraError: ``requests``, or what logs in by Kerberos, is not installed.
    """
    protocol, _, rest = uri.partition("://")
    authority, _, path = rest.partition("/")
    user, _, authority = authority.rpartition("@")
    given = {key: value for key, value in options.items() if value not in (None, "")}
    host, port = given.pop("host", None), given.pop("port", None)
    default = int(port or (9871 if given.get("use_https") else 9870))
    addresses = [_host_and_port(name) for name in (host or authority).split(",") if name]
    if not addresses:
        raise StorageError(f"{uri} names no NameNode", hint=_EXAMPLE)
    if protocol == "hdfs" and not host:
        addresses = [(name, None) for name, _ in addresses]
    if user:
        given.setdefault("user", user)
    if not any(given.get(key) for key in ("user", "token", "kerberos")):
        given["user"] = os.environ.get("HADOOP_USER_NAME") or _user(uri)
    namenodes = NameNodes([_client(uri, name, own or default, given) for name, own in addresses])
    if not authority:  # hdfs:///path: the option says where
        protocol, authority = "webhdfs", ",".join(f"{name}:{own or default}" for name, own in addresses)
    return Location(HdfsStore(namenodes, protocol, authority), f"{authority}/{path.strip('/')}".rstrip("/"))


def _user(uri: str) -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        raise StorageError(
            f"{uri}: this user has no name to tell the NameNode",
            hint="set HADOOP_USER_NAME, or put it before the address",
        ) from None


def hdfs_of(fs: WebHDFS, root: str) -> Location:
    """Wrap a filesystem of fsspec as it is.

    :param fs: the filesystem, already authenticated.
    :param root: path in it, without the scheme.
    """
    authority = urlsplit(fs.url).netloc
    return Location(HdfsStore(NameNodes([fs]), "webhdfs", authority), f"{authority}/{root.strip('/')}".rstrip("/"))


def _client(uri: str, host: str, port: int, given: dict[str, Any]) -> WebHDFS:
    import fsspec

    try:
        client: WebHDFS = fsspec.filesystem("webhdfs", host=host, port=port, skip_instance_cache=True, **given)
    except ImportError as e:
        raise MissingExtraError(f"{uri}: a client is not installed ({e})", hint=f"pip install {e.name}") from e
    except (ValueError, TypeError) as e:
        raise StorageError(f"{uri}: {e}", hint="see the arguments of fsspec's WebHDFS") from e
    client.session.get_adapter(client.url).init_poolmanager(_CONNECTIONS, _CONNECTIONS)
    return client


def _host_and_port(name: str) -> tuple[str, int | None]:
    host, _, port = name.strip().rpartition(":")
    return (host, int(port)) if host and port.isdecimal() else (name.strip(), None)


def _in_hdfs(path: str) -> str:
    return path if path.startswith("/") else f"/{path.partition('/')[2]}"


def _stored_file(path: str, entry: dict[str, Any]) -> StoredFile:
    written = entry["modificationTime"]
    # The number is that of one file ever made. It stays where something is appended; the time does not.
    identity = f"inode:{entry['fileId']}:{written}" if entry.get("fileId") else None
    return StoredFile(path, entry["length"], identity, None, datetime.fromtimestamp(written / 1000, UTC))
