"""rocksdb: what a zip shares, what lineage a changelog records, and that damage has one kind of error."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.rocksdb import SharedFile, lineage, shared_files
from airflow_ckpt_provider.checkpoint.state_files import StateVersion
from airflow_ckpt_provider.errors import UnreadableLogError
from tests.support.checkpoints import changelog, compact, compressed, snapshot_zip, utf
from tests.support.damaged_bytes import flipped_bits, truncated, unreadable_at_most

A, B = "436d53a7-d7a3-4d05-9a2f-5ea25d0a0a4b", "8ce7f687-e827-4dc4-82fd-b7b29b0b0658"
SST = "000013-80c4d592-1111-2222-3333-444455556666.sst"
ZIP, LOG = "state/0/0/3.zip", "state/0/0/3_x.changelog"
HINT = "the file is damaged; Spark cannot load this version either: restore an older backup or rewind"


def zipped(member: str, text: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(member, text)
    return out.getvalue()


def test_shared_files() -> None:
    found = shared_files(snapshot_zip({SST: 1276, "x.sst": 0}, {"000009-a.log": 7}), path=ZIP)
    assert found == (SharedFile(f"SSTs/{SST}", 1276), SharedFile("SSTs/x.sst", 0), SharedFile("logs/000009-a.log", 7))


def test_an_empty_store_shares_nothing() -> None:
    assert shared_files(snapshot_zip({}), path=ZIP) == ()
    assert shared_files(zipped("metadata", 'v1\n{"numKeys":0}'), path=ZIP) == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no zip",
        zipped("other", "v1\n{}"),
        zipped("metadata", ""),
        zipped("metadata", "v1\n{"),
        zipped("metadata", "v1\n[]"),
        zipped("metadata", "v1\n5"),
        zipped("metadata", 'v1\n{"sstFiles":[{"localFileName":"a"}]}'),
        zipped("metadata", 'v1\n{"sstFiles":[{"dfsSstFileName":"a","sizeBytes":"many"}]}'),
        zipped("metadata", 'v1\n{"sstFiles":5}'),
    ],
    ids=[
        "empty",
        "text",
        "no metadata",
        "empty metadata",
        "cut off",
        "list",
        "number",
        "no name",
        "no size",
        "no files",
    ],
)
def test_no_snapshot(data: bytes) -> None:
    with pytest.raises(UnreadableLogError) as error:
        shared_files(data, path=ZIP)
    assert error.value.message.startswith(f"{ZIP}: not a readable RocksDB snapshot (")
    assert (error.value.path, error.value.hint) == (ZIP, HINT)


def test_a_zip_cut_off_anywhere_is_found() -> None:
    for data in truncated(snapshot_zip({SST: 1276})):
        with pytest.raises(UnreadableLogError):
            shared_files(data, path=ZIP)


def test_a_flipped_bit_in_a_zip_raises_nothing_else() -> None:
    for data in flipped_bits(snapshot_zip({SST: 1276})):
        with unreadable_at_most(ZIP):
            shared_files(data, path=ZIP)


@pytest.mark.parametrize("codec", ["lz4", "zstd", "snappy", "org.apache.spark.io.LZ4CompressionCodec"])
@pytest.mark.parametrize("version", ["v3", "v4"])
def test_lineage(codec: str, version: str) -> None:
    short = codec.rpartition(".")[2].lower().removesuffix("compressioncodec")
    data = changelog([(17, A), (18, B)], codec=short, version=version)
    assert lineage(data, codec=codec, path=LOG) == (StateVersion(17, A), StateVersion(18, B))


def test_lineage_comes_out_in_order_and_may_be_empty() -> None:
    assert lineage(changelog([(18, B), (17, A)]), codec="lz4", path=LOG) == (StateVersion(17, A), StateVersion(18, B))
    assert lineage(changelog([]), codec="lz4", path=LOG) == ()


def test_a_long_changelog_in_many_blocks() -> None:
    data = changelog([(17, A)], rest=bytes(range(256)) * 40)
    assert lineage(data, codec="lz4", path=LOG) == (StateVersion(17, A),)


@given(st.binary(max_size=500), st.sampled_from(["lz4", "zstd", "snappy"]))
def test_whatever_follows_the_lineage(rest: bytes, codec: str) -> None:
    assert lineage(changelog([(17, A)], codec=codec, rest=rest), codec=codec, path=LOG) == (StateVersion(17, A),)


@pytest.mark.parametrize(
    ("data", "codec", "why"),
    [
        (
            b"",
            "lz4",
            "unpack_from requires a buffer of at least 2 bytes for unpacking 2 bytes at offset 0 (actual buffer size is 0)",
        ),
        (b"x" * 30, "lz4", "no LZ4Block header"),
        (changelog([]), "snappy", "no snappy-java header"),
        (compressed(utf("v2"), "lz4"), "lz4", "changelog version 'v2' has no lineage"),
        (
            compressed(utf("v3") + utf("{"), "lz4"),
            "lz4",
            "Expecting property name enclosed in double quotes at character 1",
        ),
        (compressed(utf("v3") + utf("5"), "lz4"), "lz4", "'int' object is not iterable"),
        (compressed(utf("v3") + utf(compact([{"version": 1}])), "lz4"), "lz4", "'checkpointUniqueId'"),
    ],
    ids=["empty", "no header", "other codec", "format 1", "cut off", "number", "no id"],
)
def test_no_lineage(data: bytes, codec: str, why: str) -> None:
    with pytest.raises(UnreadableLogError) as error:
        lineage(data, codec=codec, path=LOG)
    assert error.value.message == f"{LOG}: not a readable RocksDB changelog ({why})"
    assert (error.value.path, error.value.hint) == (LOG, HINT)


@pytest.mark.parametrize("codec", ["lz4", "zstd", "snappy"])
def test_a_changelog_cut_off_in_its_lineage_is_found(codec: str) -> None:
    """Beyond the lineage it cannot be seen: records are not read here. Spark finds that when it loads them."""
    whole = changelog([(17, A), (18, B)], codec=codec, rest=b"")
    for data in truncated(whole):
        try:
            found = lineage(data, codec=codec, path=LOG)
        except UnreadableLogError:
            continue
        # Only the empty block that ends an lz4 stream may be cut off unseen.
        assert codec == "lz4"
        assert len(data) == len(whole) - 21
        assert found == (StateVersion(17, A), StateVersion(18, B))


@pytest.mark.parametrize("codec", ["zstd", "snappy"])
def test_a_flipped_bit_in_a_changelog_raises_nothing_else(codec: str) -> None:
    for data in flipped_bits(changelog([(17, A)], codec=codec)):
        with unreadable_at_most(LOG):
            lineage(data, codec=codec, path=LOG)


def test_a_flipped_bit_in_an_lz4_changelog_raises_nothing_else() -> None:
    data = changelog([(17, A)])
    # The sizes in the header are flipped in a test of its own, see below.
    sizes = range(13, 17)
    for position in set(range(len(data))) - set(sizes):
        for flipped in flipped_bits(data[position : position + 1]):
            with unreadable_at_most(LOG):
                lineage(data[:position] + flipped + data[position + 1 :], codec="lz4", path=LOG)


@pytest.mark.parametrize("plain", [-1, -(2**31), 0, 63, 2**31 - 1])
def test_an_lz4_block_that_lies_about_its_size(plain: int) -> None:
    text = utf("v3") + utf(compact([{"version": 17, "checkpointUniqueId": A}])) + bytes(300)
    data = compressed(text, "lz4", block=65536)
    with pytest.raises(UnreadableLogError):
        lineage(data[:13] + struct.pack("<i", plain) + data[17:], codec="lz4", path=LOG)


@pytest.mark.parametrize("codec", ["lz4", "zstd", "snappy"])
@given(rest=st.binary(max_size=60))
def test_arbitrary_bytes_raise_nothing_else(codec: str, rest: bytes) -> None:
    for beginning in (b"", b"LZ4Block\x26", b"\x82SNAPPY\x00" + bytes(8), b"\x28\xb5\x2f\xfd"):
        if beginning.startswith(b"LZ4") and len(rest) >= 12:
            continue  # may claim any size, see above
        with unreadable_at_most(LOG):
            lineage(beginning + rest, codec=codec, path=LOG)
