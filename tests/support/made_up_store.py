"""A store of millions of files that are nowhere: listings are made up as they are asked for, copies only noted.

It lists in the order of keys, as S3 does.

For measuring what the program itself needs; logs and manifests are real.
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from array import array
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.store import Listing, Store, StoredFile
from tests.support.checkpoints import ROCKSDB, batch_metadata, commit_log, metadata, offsets_log, operator_files

_PER_PARTITION = 5_000
NEWEST = _PER_PARTITION - 1


class MadeUpStore(Store):
    """A checkpoint of RocksDB state with changelogs in ``orders``, and whatever is copied of it.

    :param root: directory of what is really written, and of what is remembered of the rest.
    :param partitions: of five thousand changelogs each.
    """

    creates_if_absent = True
    copies_within = True

    def __init__(self, root: Path, partitions: int) -> None:
        inner = LocalStore()
        self._inner: Store = inner
        self._root = root
        self.partitions = partitions
        #: Directory -> how its copies are named; a byte for each file that was copied.
        self._copied: dict[str, bytearray] = {}
        self._objects: dict[str, bool] = {}
        if (root / "copied").exists():
            self._copied, self._objects = pickle.loads((root / "copied").read_bytes())
        self._lock = threading.Lock()
        #: The files by the directory that their copies are in.
        self._shards: list[array[int]] = []
        self.copies = 0
        self._check: Callable[[], None] = lambda: None
        small = {"metadata": metadata(), **operator_files(partitions)}
        for batch in (NEWEST - 1, NEWEST):
            about = batch_metadata(batch, provider=ROCKSDB, partitions=partitions)
            small |= {f"offsets/{batch}": offsets_log("1", metadata=about), f"commits/{batch}": commit_log()}
        for path, data in small.items():
            inner.replace(f"{root}/orders/{path}", data)

    def remember(self) -> None:
        """For a store in another process."""
        (self._root / "copied").write_bytes(pickle.dumps((self._copied, self._objects)))

    @property
    def protocol(self) -> str:
        return "memory"

    def list(self, path: str) -> Listing:
        return self._inner.list(path)

    def walk(self, path: str) -> Iterator[StoredFile]:
        return chain(self._inner.walk(path), self._made_up(path))

    def _made_up(self, path: str) -> Iterator[StoredFile]:
        if path == f"{self._root}/orders":
            for number in self._by_path():
                yield self._file(number, f"{path}/{_path(number)}")
        for directory, there in self._copied.items():
            if directory.startswith(path):
                objects = self._objects[directory]
                for number in self._by_object() if objects else self._by_path():
                    if there[number]:
                        name = _object(number) if objects else _path(number)
                        yield self._file(number, f"{directory}/{name}")

    def _by_path(self) -> Iterator[int]:
        in_partition = sorted(range(_PER_PARTITION), key=_path)
        for partition in sorted(range(self.partitions), key=str):
            yield from (partition * _PER_PARTITION + number for number in in_partition)

    def _by_object(self) -> Iterator[int]:
        if not self._shards:
            shards = [array("I") for _ in range(256)]
            for number in range(self.partitions * _PER_PARTITION):
                shards[int(_object(number)[:2], 16)].append(number)
            self._shards = shards
        for shard in self._shards:
            yield from sorted(shard, key=_object)

    def _file(self, number: int, path: str) -> StoredFile:
        mark = f"etag:{_etag(number)}"
        return StoredFile(path, _size(number), mark, mark)

    def copies_if_absent(self, size: int) -> bool:
        return True

    def copy(self, source: str, target: str, size: int) -> None:
        self._check()
        if "/state/0/" in source and source.endswith(".changelog"):
            partition, _, version = source.partition("/state/0/")[2].removesuffix(".changelog").partition("/")
            number = int(partition) * _PER_PARTITION + int(version) - 1
        else:
            digest = source.rpartition("/etag-")[2].partition("-")[0]
            number = int(digest[-8:], 16)
        objects = "/objects/" in target
        directory = target.rpartition("/objects/")[0] + "/objects/orders" if objects else target.partition("/state/")[0]
        with self._lock:
            if directory not in self._copied:
                self._copied[directory] = bytearray(self.partitions * _PER_PARTITION)
                self._objects[directory] = objects
            self._copied[directory][number] = 1
            self.copies += 1

    def read(self, path: str) -> bytes:
        return self._inner.read(path)

    def create(self, path: str, data: bytes) -> None:
        self._inner.create(path, data)

    def replace(self, path: str, data: bytes) -> None:
        self._inner.replace(path, data)

    def delete(self, path: str) -> None:
        self._inner.delete(path)

    def find(self, path: str) -> StoredFile | None:
        return self._inner.find(path)

    def delete_listed(self, file: StoredFile) -> None:
        self._inner.delete_listed(file)

    def replace_listed(self, file: StoredFile, data: bytes) -> StoredFile | None:
        return self._inner.replace_listed(file, data)

    def copy_new(self, source: StoredFile, target: str) -> None:
        self.copy(source.path, target, source.size)

    def fenced(self, check: Callable[[], None], *, request_timeout: float | None) -> Store:
        """It fences itself: a process that measures makes one change."""
        self._inner = self._inner.fenced(check, request_timeout=request_timeout)
        self._check = check
        return self

    def remove_empty_directories(self, path: str) -> None:
        self._inner.remove_empty_directories(path)


def _path(number: int) -> str:
    return f"state/0/{number // _PER_PARTITION}/{number % _PER_PARTITION + 1}.changelog"


def _etag(number: int) -> str:
    return hashlib.md5(number.to_bytes(8), usedforsecurity=False).hexdigest()[:24] + f"{number:08x}"


def _size(number: int) -> int:
    return 300 + number * 7919 % 60_000


def _object(number: int) -> str:
    key = f"etag-{_etag(number)}-{_size(number)}"
    return f"{hashlib.sha256(key.encode()).hexdigest()[:2]}/{key}"
