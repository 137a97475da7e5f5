"""State whose compression is not undone here may be whole: nobody calls it damaged, and a repair leaves it as it is."""

from __future__ import annotations

import struct

import cramjam
import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.doctor import kinds
from airflow_ckpt_provider.checkpoint.findings import Severity
from airflow_ckpt_provider.errors import NotJudgedError
from airflow_ckpt_provider.recovery.repair.planning import plan_repair
from airflow_ckpt_provider.storage.location import Location
from tests.support.checkpoints import Files, hdfs_aggregation, plant, rocksdb_aggregation

_MIB = 1024**2
#: Spark's ``lzf``: a block that is not packed, with the end of the records.
_LZF = b"ZV\x00\x00\x04\xff\xff\xff\xff"


def _snapshot() -> bytes:
    """One whole snapshot in zstd: 80 keys, each with a value of a MiB of zeros, which is packed a thousand times."""
    records = (struct.pack(">iqi", 8, key, _MIB) + bytes(_MIB) for key in range(80))
    return bytes(cramjam.zstd.compress(b"".join(records) + struct.pack(">i", -1)))


def _with_codec(files: Files, codec: str) -> Files:
    before, after = b'compression.codec":"lz4"', f'compression.codec":"{codec}"'.encode()
    return {path: data.replace(before, after) if path.startswith("offsets/") else data for path, data in files.items()}


def _zstd() -> Files:
    packed = bytes(cramjam.zstd.compress(struct.pack(">i", -1)))
    files = _with_codec(hdfs_aggregation(4, snapshots=(3,)), "zstd")
    return {
        p: _snapshot() if p.endswith(".snapshot") else packed if p.endswith(".delta") else d for p, d in files.items()
    }


def _lzf(files: Files) -> Files:
    of_state = (".delta", ".changelog")
    return {p: _LZF if p.endswith(of_state) else d for p, d in _with_codec(files, "lzf").items()}


STATE = {
    "zstd that becomes very much": (_zstd, "0/3.snapshot: it becomes more than"),
    "lzf": (lambda: _lzf(hdfs_aggregation(4)), "compression codec 'lzf' is not known here"),
    "lzf in RocksDB": (lambda: _lzf(rocksdb_aggregation(4)), "compression codec 'lzf' is not known here"),
}


@pytest.mark.parametrize("of", STATE)
def test_nobody_calls_it_damaged(of: str, place: Location) -> None:
    files, says = STATE[of]
    checkpoint = Checkpoint.at(plant(place / "orders", files()))
    (finding,) = checkpoint.diagnose()
    assert (finding.kind, finding.severity) == (kinds.FORMAT_UNKNOWN, Severity.WARNING)
    assert says in finding.message
    for torn in ({}, {"commits/4": b""}):
        with pytest.raises(NotJudgedError, match="state/0/0/") as error:
            plan_repair(Checkpoint.at(plant(place / "orders", torn)))
        assert says in error.value.message
        assert error.value.hint == "this is no damage: Spark may read the file, and this package leaves it as it is"


@pytest.mark.parametrize("content", [None, b""], ids=["missing", "empty"])
@pytest.mark.parametrize("of", ["lzf", "zstd that becomes very much"])
def test_what_is_damaged_beside_it_is_found(of: str, content: bytes | None, place: Location) -> None:
    """It was hidden behind the file that is not judged."""
    files = STATE[of][0]()
    for path in ("state/0/1/3.snapshot", "state/0/1/4.delta"):
        files.pop(path, None)
    if content is not None:
        files["state/0/1/4.delta"] = content
    found = Checkpoint.at(plant(place / "orders", files)).diagnose()
    assert {finding.kind for finding in found} == {kinds.FORMAT_UNKNOWN, kinds.STATE_INCOMPLETE}
    assert "state/0/1/4.delta" in {finding.path for finding in found}
