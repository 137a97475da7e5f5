"""How much is asked of HDFS while a directory is walked."""

from __future__ import annotations

from airflow_ckpt_provider.storage.hdfs_store import HdfsStore
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.store import Listing, StoredFile


class Counted(HdfsStore):
    """A store with 100 directories of a file each, which counts the listings."""

    listed = 0

    def list(self, path: str) -> Listing:
        """List one directory."""
        self.listed += 1
        if path == "nn/data":
            return Listing((), tuple(f"d{n:02d}" for n in range(100)))
        return Listing((StoredFile(f"{path}/file", 1, None),), ())


def test_of_a_million_files_in_one_level_few_are_held() -> None:
    opened = open_location("webhdfs://nn/data").store
    assert isinstance(opened, HdfsStore)
    store = Counted(opened.namenodes, "webhdfs", "nn")
    found = store.walk("nn/data")
    assert next(found).path == "nn/data/d00/file"
    assert store.listed < 20
    assert len(list(found)) == 99
    assert store.listed == 101
