"""What is small and says that it becomes large is refused before it takes the memory; the error names the file.

Each is read in a process of its own, whose peak of memory is measured: 400 kB took 642 MiB.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.claims import open_claims
from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.prune_marks import read_marks
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.errors import CkptError, DamagedBackupError
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.backups import stream
from tests.support.checkpoints import plant
from tests.support.every_run import of_these

ROOT = Path(__file__).parents[3]
MIB = 1024**2
_MEASURE = """
import resource, sys
{setup}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    {work}
except {error} as e:
    said = str(e)
else:
    said = "nothing"
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
print(said)
"""

_TABLE = """
import base64, hashlib, json, zlib
from datetime import UTC, datetime
from airflow_ckpt_provider.backup.manifest import parse_manifest
PATH = "backups/orders/20261121T083000Z-b000223.json"

def document(pieces, files=1500):
    deflating = zlib.compressobj(9)
    packed = b"".join(deflating.compress(piece) for piece in pieces) + deflating.flush()
    content = {"format": "airflow-ckpt-manifest", "version": 2, "backup_id": "20261121T083000Z-b000223", "name": "orders",
        "batch_id": 223, "restorable_batches": [223], "created": "2026-11-21T08:30:00+00:00", "checkpoint": "x",
        "query_id": "x", "files": files, "bytes": 1, "tags": {}, "reason": "", "made_by": "", "facts": {}, "tool_version": "",
        "file_table": base64.b64encode(packed).decode()}
    body = json.dumps(content, separators=(",", ":")).encode()
    assert len(body) < 2 * 1024 * 1024, len(body)
    return body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'
"""


def measured(setup: str, work: str, *, error: str) -> tuple[int, str]:
    """How many MiB the peak of memory grew, and what was raised."""
    code = _MEASURE.format(setup=textwrap.dedent(setup), work=work, error=error)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    grown, _, said = done.stdout.partition("\n")
    return int(grown), said


TABLES = {
    "spaces in a line": "[b'[' + b' ' * MIB] + [b' ' * MIB] * 100 + [b']\\n']",
    "spaces": "[b' ' * MIB] * 100",
    "lines of nothing": "[b'[]\\n' * MIB] * 100",
    "rows of nothing": "[b'[' + b'[],' * (MIB // 3)] + [b'[],' * MIB] * 100 + [b'[]]\\n']",
    "more files than it says": '[b\'[\' + b\'["a",0,"x"],\' * 499 + b\'["a",0,"x"]]\\n\'] * 50_000',
}


@pytest.mark.parametrize("name", of_these(TABLES, "spaces in a line", "more files than it says"))
def test_a_table_of_files(name: str) -> None:
    imports = "from airflow_ckpt_provider.errors import DamagedBackupError"
    setup = f"{_TABLE}\n{imports}\nMIB = 1024**2\ndata = document({TABLES[name]})"
    grown, said = measured(setup, "parse_manifest(data, path=PATH)", error="DamagedBackupError")
    assert said.startswith("manifest backups/orders/20261121T083000Z-b000223.json is damaged or forged"), said
    assert grown < 64, grown


_PACK = """
import hashlib, struct
from airflow_ckpt_provider.backup.content_checks import check_contents
from airflow_ckpt_provider.backup.file_entry import FileEntry
from airflow_ckpt_provider.backup.pack_file import MAGIC
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.storage.packs import content_path
from tests.support.packs import packed_repository
from tests.support.watched_stores import in_memory

count = 1_000_000
index = hashlib.sha256(b"").digest() + bytes(4)
index *= count
pack = MAGIC + index + struct.pack(">32sI8s", hashlib.sha256(index).digest(), count, MAGIC)
repository, sha256 = packed_repository(in_memory()), hashlib.sha256(b"MAGIC").hexdigest()
path = f"objects/orders/aa/{hashlib.sha256(pack).hexdigest()}-{len(pack)}.pack"
repository.location.create(path, pack)
size = len(pack) // 2 + 1
entry = FileEntry("x", size, content_path(path, sha256, 8, size), sha256)
del index, pack

def check():
    found = check_contents(repository, [entry], packs=set())
    raise RefusedError(found[0].problem)
"""


def test_the_index_of_a_pack_that_says_that_it_holds_millions() -> None:
    grown, said = measured(_PACK, "check()", error="RefusedError")
    assert said.strip() == "content"
    assert grown < 110, f"{grown} MiB: the pack alone has 34, and the part of it that is listed 17"


_STATE = """
import io, struct, zipfile, zlib
import cramjam
from airflow_ckpt_provider.checkpoint.rocksdb import key_count, lineage, shared_files
from airflow_ckpt_provider.checkpoint.state_contents import content_damage
from airflow_ckpt_provider.errors import NotJudgedError, UnreadableLogError
MIB = 1024**2

def zipped(name, size, kind=zipfile.ZIP_DEFLATED):
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", kind) as archive, archive.open(name, "w", force_zip64=True) as member:
        for _ in range(size // MIB):
            member.write(b" " * MIB)
    return held.getvalue()

def lying(name, size, says):
    data = zipped(name, size)
    # The sizes before deflating, of the directory and of the member itself.
    for kind in ("<I", "<Q"):
        data = data.replace(struct.pack(kind, size), struct.pack(kind, says))
    return data

def lz4(plain, content=b""):
    return struct.pack("<8sBiiI", b"LZ4Block", 0x25, len(content), plain, 0) + content

def zstd_of_zeros(mebibytes):
    # A frame of blocks that say "this byte, so many times": RFC 8878, 3.1.1.2.
    block = (MIB // 8 << 3 | 1 << 1).to_bytes(3, "little") + b"\\0"
    end = (1).to_bytes(3, "little")
    return struct.pack("<IBB", 0xFD2FB528, 0, 0x88) + block * 8 * mebibytes + end
"""


#: name -> the data, and what reads it.
STATE_FILES: dict[str, tuple[str, list[str]]] = {
    "zip": (
        "zipped('metadata', 100 * MIB)",
        ["shared_files(data, path='x/5.zip')", "key_count(data, path='x/5.zip')"],
    ),
    "a zip that lies": (
        "lying('metadata', 100 * MIB, 1000)",
        ["shared_files(data, path='x/5.zip')", "key_count(data, path='x/5.zip')"],
    ),
    "bzip2": (
        "zipped('metadata', 100 * MIB, zipfile.ZIP_BZIP2)",
        ["shared_files(data, path='x/5.zip')"],
    ),
    "lzma": (
        "zipped('metadata', 100 * MIB, zipfile.ZIP_LZMA)",
        ["shared_files(data, path='x/5.zip')"],
    ),
    "lz4": (
        "lz4(2**31 - 1, b'x' * 1000)",
        ["lineage(data, codec='lz4', path='x/5.changelog')"],
    ),
    "zstd": (
        "zstd_of_zeros(1000)",
        ["lineage(data, codec='zstd', path='x/5.changelog')"],
    ),
    "snappy": (
        "b'\\x82SNAPPY\\0' + b'\\0' * 8 + struct.pack('>i', 5) + b'\\xff\\xff\\xff\\xff\\x0f'",
        ["lineage(data, codec='snappy', path='x/5.changelog')"],
    ),
}


@pytest.mark.parametrize("name", of_these(STATE_FILES, "a zip that lies", "zstd", "snappy"))
def test_a_state_file(name: str) -> None:
    data, reads = STATE_FILES[name]
    for read in reads:
        setup = f"{_STATE}\ndata = {data}\nassert len(data) < 2 * MIB, len(data)"
        grown, said = measured(setup, read, error="NotJudgedError" if "zstd" in data else "UnreadableLogError")
        assert said.startswith("x/5."), said
        assert grown < 48, (read, grown)


@pytest.mark.parametrize(
    ("name", "data", "codec"),
    [
        ("5.zip", "zipped('000001.log', 100 * MIB)", "lz4"),
        ("5.zip", "zipped('000001.log', 100 * MIB, zipfile.ZIP_LZMA)", "lz4"),
        ("5.delta", "lz4(2**31 - 1, b'x' * 1000)", "lz4"),
        ("5.delta", "zstd_of_zeros(1000)", "zstd"),
        ("5.delta", "b'\\x82SNAPPY\\0' + b'\\0' * 8 + struct.pack('>i', 5) + b'\\xff\\xff\\xff\\xff\\x0f'", "snappy"),
    ],
)
def test_the_doctor_takes_no_more(name: str, data: str, codec: str) -> None:
    setup = f"{_STATE}\ndata = {data}"
    work = f"raise ValueError(content_damage(data, path='x/{name}', codec={codec!r}))"
    grown, said = measured(setup, work, error="NotJudgedError" if codec == "zstd" else "ValueError")
    assert said.strip() not in ("", "nothing", "None")
    assert grown < 48, grown


@pytest.mark.parametrize("codec", of_these(["lz4", "zstd", "snappy"], "zstd", "snappy"))
def test_a_large_file_that_is_whole_is_not_taken_for_one(codec: str) -> None:
    """A snapshot of state that can be packed well; of lz4 and snappy no more than a block is in memory."""
    setup = f"""{_STATE}
record = struct.pack(">i", 100) + b"k" * 100 + struct.pack(">i", 1000) + b"v" * 1000
content = record * 50_000 + struct.pack(">i", -1)
from airflow_ckpt_provider.checkpoint.state_codec import _LZ4_MASK, _LZ4_SEED, decompressed, xxh32

def packed(codec):
    if codec == "zstd":
        return bytes(cramjam.zstd.compress(content, 3))
    out = bytearray(b"\\x82SNAPPY\\0" + b"\\0" * 8 if codec == "snappy" else b"")
    for at in range(0, len(content), 65536):
        piece = content[at : at + 65536]
        if codec == "snappy":
            block = bytes(cramjam.snappy.compress_raw(piece))
            out += struct.pack(">i", len(block)) + block
        else:
            block = bytes(cramjam.lz4.compress_block(piece, store_size=False))
            check = xxh32(piece, seed=_LZ4_SEED) & _LZ4_MASK
            out += struct.pack("<8sBiiI", b"LZ4Block", 0x26, len(block), len(piece), check) + block
    return bytes(out + (struct.pack("<8sBiiI", b"LZ4Block", 0x16, 0, 0, 0) if codec == "lz4" else b""))

data = packed({codec!r})
assert len(data) < len(content) / 15
"""
    work = f"raise ValueError(repr(content_damage(data, path='x/5.snapshot', codec={codec!r})))"
    _, said = measured(setup, work, error="ValueError")
    assert said.strip() == "None"


DOCUMENTS = [
    "repository.json",
    "backups/orders/29991231T000000Z-b000099.json",
    "prune/orders/000001.json",
    "claims/orders/abc.end.json",
    "plans/abc.json",
]


@pytest.mark.parametrize("path", DOCUMENTS)
def test_a_document_of_three_gigabytes_is_not_read(path: str, tmp_path: Path) -> None:
    place = open_location(str(tmp_path))
    repository = Repository.open_or_create(place / "backups")
    plant(place / "orders", stream())
    create_backup(Checkpoint.at(place / "orders"), repository)
    repository.location.replace("claims/orders/abc.json", b"{}")
    repository.location.replace(path, b"{")
    os.truncate(tmp_path / "backups" / path, 3 * 1024**3)  # no room is taken
    read = {
        "repository.json": lambda: Repository.open(place / "backups"),
        "backups": lambda: repository.read_manifest("orders", "29991231T000000Z-b000099"),
        "prune": lambda: read_marks(repository.location, "orders"),
        "claims": lambda: open_claims(repository, "orders"),
        "plans": lambda: repository.kept_plan("abc"),
    }[path.partition("/")[0]]
    with pytest.raises(CkptError, match=r"has more than [\d.]+ [KMG]?i?B, which no file of its kind has") as error:
        read()
    assert path in error.value.message
    assert error.value.hint
    assert isinstance(error.value, DamagedBackupError) == path.startswith("backups/")


def test_a_lease_of_three_gigabytes_is_nobody_s(tmp_path: Path) -> None:
    place = open_location(str(tmp_path))
    plant(place / "orders", stream())
    place.replace("backups/running/orders.json", b"{")
    place.replace("backups/repository.json", b'{"format": "airflow-ckpt-repository", "version": 1, "id": "x"}')
    os.truncate(tmp_path / "backups/running/orders.json", 3 * 1024**3)
    assert create_backup(Checkpoint.at(place / "orders"), Repository.open(place / "backups")).files
