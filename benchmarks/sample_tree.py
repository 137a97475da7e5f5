"""A checkpoint of 5,000 and more files, as a RocksDB aggregation with changelogs and 200 partitions leaves it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.steps import CHANGED_SHARE
from tests.support.checkpoints import snapshot_zip

_SECOND = 1_795_256_370_000
_CONF = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.formatVersion": "5",
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.aggregation.stateFormatVersion": "2",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
}


@dataclass(frozen=True)
class SampleTree:
    """Names and contents, the same ones for the same numbers.

    :param partitions: state partitions of the one operator.
    :param batches: committed batches; each left a changelog in every partition.
    :param seed: of the contents.
    :param snapshots: versions of which RocksDB left a snapshot (a zip and a table file) in every partition. Without any, Spark
        needs every changelog there is; with them, only what came after the newest.
    """

    partitions: int = 200
    batches: int = 25
    seed: int = 7
    snapshots: tuple[int, ...] = ()

    @classmethod
    def of_about(cls, files: int, *, snapshots: bool = False) -> SampleTree:
        """The tree with this many state files and the logs of 25 batches.

        :param snapshots: whether there are some, at every tenth version, as Spark's defaults make them.
        """
        versions = tuple(range(10, cls.batches + 1, 10)) if snapshots else ()
        return cls(partitions=max(1, files // (cls.batches + 2 * len(versions))), snapshots=versions)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """All files. Logs are real ones; changelogs are noise of 0.3 to 60 KB, small ones more often than big ones."""
        yield "metadata", b'{"id":"13891364-b7ef-4beb-bd81-4736acdd524a"}'
        for batch in range(self.batches):
            yield f"offsets/{batch}", self._offsets(batch)
            yield f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}'
            yield f"sources/0/{batch}", self._source(batch)
        operator = {"operatorId": 0, "operatorName": "stateStoreSave"}
        store = {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": self.partitions}
        info = {"operatorInfo": operator, "stateStoreInfo": [store]}
        yield "state/0/_metadata/metadata", b"v1\n" + json.dumps(info).encode()
        for path in self.changelogs():
            yield path, self.changelog(path, 0)
        for partition in range(self.partitions):
            for version in self.snapshots:
                zipped, table = self._snapshot(partition, version)
                content = self.changelog(table, 0)
                yield table, content
                yield zipped, snapshot_zip({table.rpartition("/")[2]: len(content)})

    def needed(self) -> list[str]:
        """Paths of the state files that Spark needs to continue after the newest batch."""
        newest = max(self.snapshots, default=0)
        needed = [path for path in self.changelogs() if int(path.rpartition("/")[2].partition(".")[0]) > newest]
        if newest:
            needed += [path for partition in range(self.partitions) for path in self._snapshot(partition, newest)]
        return needed

    def changelogs(self) -> list[str]:
        """Paths of the state files."""
        return [
            f"state/0/{partition}/{version}.changelog"
            for partition in range(self.partitions)
            for version in range(1, self.batches + 1)
        ]

    def changelog(self, path: str, edition: int) -> bytes:
        """Content of a state file, another one for each edition."""
        noise = random.Random(f"{self.seed} {path} {edition}")
        return noise.randbytes(round(300 * 200 ** noise.random()))

    def changed_paths(self, round_number: int) -> list[str]:
        """Which state files are replaced in a round of the benchmark: one in a hundred."""
        return self.changed(CHANGED_SHARE, round_number)

    def changed(self, share: float, round_number: int) -> list[str]:
        """Which state files change between the first and the second backup of a round."""
        paths = self.changelogs()
        return random.Random(f"{self.seed} {round_number}").sample(paths, round(len(paths) * share))

    def _snapshot(self, partition: int, version: int) -> tuple[str, str]:
        """The zip and its table file."""
        store = f"state/0/{partition}"
        return f"{store}/{version}.zip", f"{store}/SSTs/{version:06}-{partition:08}-0000-0000-0000-000000000000.sst"

    def _offsets(self, batch: int) -> bytes:
        conf = _CONF | {"spark.sql.shuffle.partitions": str(self.partitions)}
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": _SECOND + batch * 1000, "conf": conf}
        return f'v1\n{json.dumps(metadata)}\n{{"logOffset":{batch}}}'.encode()

    def _source(self, batch: int) -> bytes:
        entry = {"path": f"file:///in/part-{batch:05}.json", "timestamp": _SECOND, "batchId": batch}
        return f"v1\n{json.dumps(entry)}".encode()
