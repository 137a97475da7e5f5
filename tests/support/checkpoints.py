"""Small checkpoints, byte by byte as Spark writes them: the cases that real samples do not happen to hold."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import cramjam

from airflow_ckpt_provider.storage.location import Location

HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
QUERY_ID = "199ce9d3-fd64-4a41-a1cf-23002acf0134"
#: When batch 0 was planned, milliseconds; each batch is a second later.
BEGAN = 1732153811395

Files = dict[str, bytes]


def plant(location: Location, files: Mapping[str, bytes]) -> Location:
    """Write files to a place."""
    for path, content in files.items():
        location.replace(path, content)
    return location


def contents(location: Location) -> Files:
    """All files of a place and what they hold."""
    return {path: location.read(path) for path in sorted(location.walk())}


def metadata(query_id: str = QUERY_ID) -> bytes:
    return compact({"id": query_id}).encode()


def compact(value: Any) -> str:
    """JSON as Spark writes it."""
    return json.dumps(value, separators=(",", ":"))


def batch_metadata(
    batch_id: int = 0, *, watermark: int = 0, provider: str = HDFS, partitions: int = 2, **conf: str
) -> dict[str, Any]:
    return {
        "batchWatermarkMs": watermark,
        "batchTimestampMs": BEGAN + 1000 * batch_id,
        "conf": {
            "spark.sql.streaming.stateStore.providerClass": provider,
            "spark.sql.shuffle.partitions": str(partitions),
            "spark.sql.streaming.stateStore.compression.codec": "lz4",
            **conf,
        },
    }


def offsets_log(*offsets: str, metadata: Mapping[str, Any] | None = None, version: int = 1) -> bytes:
    """An entry of the offset log; without metadata its line is empty, as in continuous mode."""
    return "\n".join([f"v{version}", compact(metadata) if metadata else "", *offsets]).encode()


def commit_log(
    *, watermark: int = 0, ids: Mapping[str, Any] | None = None, version: int | None = None, **more: Any
) -> bytes:
    content: dict[str, Any] = {"nextBatchWatermarkMs": watermark}
    if ids is not None:
        content["stateUniqueIds"] = ids
    return f"v{version or (2 if ids is not None else 1)}\n{compact({**content, **more})}".encode()


def file_source_log(*log_ids: int) -> bytes:
    lines = (
        compact({"path": f"file:///in/f{i:04}.json", "timestamp": 1704067200000 + 1000 * i, "batchId": i})
        for i in log_ids
    )
    return "\n".join(["v1", *lines]).encode()


def logs(batches: range, *, provider: str = HDFS, partitions: int = 2, ids: Mapping[int, Any] | None = None) -> Files:
    """Query id, offsets, commits and the log of one file source that got a file in each batch."""
    files = {"metadata": metadata()}
    for batch in batches:
        about = batch_metadata(batch, provider=provider, partitions=partitions)
        files[f"offsets/{batch}"] = offsets_log(compact({"logOffset": batch}), metadata=about)
        files[f"commits/{batch}"] = commit_log(ids=ids[batch] if ids else None)
    for log_id in range(batches.stop):
        files[f"sources/0/{log_id}"] = file_source_log(log_id)
    return files


def hdfs_aggregation(newest: int, *, partitions: int = 2, snapshots: Sequence[int] = ()) -> Files:
    """An aggregation in HDFS-backed state, batches 0 to ``newest`` committed."""
    files = logs(range(newest + 1), partitions=partitions) | operator_files(partitions)
    for partition in range(partitions):
        for version in range(1, newest + 2):
            files[f"state/0/{partition}/{version}.delta"] = f"delta {partition} {version}".encode()
        for version in snapshots:
            files[f"state/0/{partition}/{version}.snapshot"] = f"snapshot {partition} {version}".encode()
    return files


def rocksdb_aggregation(newest: int, *, partitions: int = 2, zips: Sequence[int] = (3,)) -> Files:
    """An aggregation in RocksDB with changelog: a zip and its table file at each of ``zips``, all changelogs."""
    files = logs(range(newest + 1), provider=ROCKSDB, partitions=partitions) | operator_files(partitions)
    for partition in range(partitions):
        store = f"state/0/{partition}"
        for version in range(1, newest + 2):
            files[f"{store}/{version}.changelog"] = f"changelog {partition} {version}".encode()
        for version in zips:
            if version <= newest + 1:
                table = f"{version:06}-{partition}0000000-0000-0000-0000-000000000000.sst"
                files[f"{store}/SSTs/{table}"] = f"table {partition} {version}".encode()
                files[f"{store}/{version}.zip"] = snapshot_zip({table: len(files[f"{store}/SSTs/{table}"])})
    return files


def operator_files(partitions: int = 2, *, operator: int = 0) -> Files:
    return {
        f"state/{operator}/_metadata/metadata": operator_metadata(operator, partitions=partitions),
        f"state/{operator}/0/_metadata/schema": schema_file([("key", "string")]),
    }


def operator_metadata(
    operator: int = 0,
    *,
    name: str = "stateStoreSave",
    stores: Sequence[str] = ("default",),
    partitions: int = 2,
    schema_files: Sequence[str] | None = None,
) -> bytes:
    """Operator metadata: version 2 where it names schema files."""
    info: list[dict[str, Any]] = [
        {"storeName": store, "numColsPrefixKey": 0, "numPartitions": partitions} for store in stores
    ]
    content: dict[str, Any] = {"operatorInfo": {"operatorId": operator, "operatorName": name}, "stateStoreInfo": info}
    if schema_files is None:
        return f"v1\n{compact(content)}".encode()
    for store in info:
        store["stateSchemaFilePaths"] = list(schema_files)
    content["operatorPropertiesJson"] = compact({"timeMode": "NoTime"})
    return f"v2\n{compact(content)}".encode()


def utf(text: str) -> bytes:
    """Java's ``DataOutputStream.writeUTF``: a length and modified UTF-8, with surrogates encoded one by one."""
    units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
    data = b"".join(b"\xc0\x80" if u == 0 else chr(u).encode("utf-8", "surrogatepass") for u in units)
    return struct.pack(">H", len(data)) + data


def schema_json(fields: Sequence[tuple[str, str]]) -> str:
    columns = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in fields]
    return json.dumps({"type": "struct", "fields": columns}, separators=(",", ":"), ensure_ascii=False)


def schema_file(key: Sequence[tuple[str, str]], *, version: int = 2, chunk: int = 60_000) -> bytes:
    """``_metadata/schema``: of the keys as given, of the values any."""
    texts = (schema_json(key), schema_json([("count", "long")]))
    if version == 1:
        return b"".join(utf(text) for text in texts)
    out = utf("v2")
    for text in texts:
        chunks = [text[i : i + chunk] for i in range(0, len(text), chunk)]
        out += struct.pack(">i", len(chunks)) + b"".join(utf(part) for part in chunks)
    return out


def snapshot_zip(tables: Mapping[str, int], logs: Mapping[str, int] | None = None) -> bytes:
    """A RocksDB ``<version>.zip``: what it shares with other versions is named in its member ``metadata``."""
    about: dict[str, Any] = {
        "sstFiles": [
            {"localFileName": f"{name[:6]}.sst", "dfsSstFileName": name, "sizeBytes": size}
            for name, size in tables.items()
        ],
        "numKeys": 3,
    }
    if logs:
        about["logFiles"] = [
            {"localFileName": f"{name[:6]}.log", "dfsLogFileName": name, "sizeBytes": size}
            for name, size in logs.items()
        ]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, text in (
            ("CURRENT", "MANIFEST-000004\n"),
            ("000009.log", ""),
            ("metadata", f"v1\n{compact(about)}"),
        ):
            # Of a fixed time, so that the same snapshot is the same bytes.
            archive.writestr(zipfile.ZipInfo(member), text, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def changelog(
    before: Sequence[tuple[int, str]], *, codec: str = "lz4", version: str = "v3", rest: bytes = b"\x00\x00\x00\x03row"
) -> bytes:
    """A format-2 changelog: the lineage without itself, then records."""
    lineage = [{"version": number, "checkpointUniqueId": unique_id} for number, unique_id in before]
    return compressed(utf(version) + utf(compact(lineage)) + rest, codec)


def compressed(data: bytes, codec: str, *, block: int = 64) -> bytes:
    """The framing that Spark's ``CompressionCodec`` gives, here in small blocks."""
    blocks = [data[i : i + block] for i in range(0, len(data), block)]
    if codec == "zstd":
        return bytes(cramjam.zstd.compress(data))
    if codec == "snappy":
        out = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
        packed = [bytes(cramjam.snappy.compress_raw(part)) for part in blocks]
        return out + b"".join(struct.pack(">i", len(part)) + part for part in packed)
    out = b""
    for part in [*blocks, b""]:
        body = bytes(cramjam.lz4.compress_block(part, store_size=False)) if part else b""
        token = 0x26
        if len(body) >= len(part):
            token, body = 0x16, part  # stored as it is, which also ends the stream
        out += b"LZ4Block" + struct.pack("<Biii", token, len(body), len(part), 0) + body
    return out
