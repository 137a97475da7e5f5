"""State files that are damaged in themselves: what their own checksums and records tell."""

from __future__ import annotations

import json
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.state_codec import decompressed, xxh32
from airflow_ckpt_provider.checkpoint.state_contents import (
    content_damage,
    crc32c,
    is_self_checking,
    parse_checksum,
)
from airflow_ckpt_provider.errors import NotJudgedError
from tests.samples.archives import VERSIONS, kinds_of, sample
from tests.support.damaged_bytes import anything, truncated

STATE_FILES = (".delta", ".snapshot", ".zip", ".changelog")


def state_files() -> list[tuple[str, bytes]]:
    return [
        (path, content)
        for version in VERSIONS
        for kind in kinds_of(version)
        for path, content in sample(version, kind).files.items()
        if path.startswith("state/") and path.endswith(STATE_FILES) and "/." not in path
    ]


def test_every_state_file_of_every_spark_is_whole() -> None:
    files = state_files()
    assert len(files) > 1_000
    assert [path for path, content in files if content_damage(content, path=path, codec="lz4")] == []


def test_every_file_that_is_cut_off_is_found() -> None:
    chance = random.Random(1)
    for path, content in chance.sample(state_files(), 60):
        for part in chance.sample(list(truncated(content)), 5):
            assert content_damage(part, path=path, codec="lz4"), f"{path} cut off after {len(part)} bytes"


def test_a_changed_byte_of_the_content_is_found() -> None:
    """lz4 blocks carry a hash, zip members a CRC."""
    chance = random.Random(2)
    for path, content in chance.sample([f for f in state_files() if not f[0].endswith(".zip") and len(f[1]) > 60], 60):
        at = chance.randrange(30, len(content) - 22)  # behind the first block's header, before the end mark
        changed = content[:at] + bytes([content[at] ^ (1 << chance.randrange(8))]) + content[at + 1 :]
        try:
            same = decompressed(changed, "lz4") == decompressed(content, "lz4")
        except ValueError:
            same = False
        # A match may be found at two places: then nothing is changed by pointing to the other one.
        assert same or content_damage(changed, path=path, codec="lz4"), f"{path} changed at {at}"


def test_checksum_files_of_spark_match() -> None:
    found = 0
    for version in ("4.1.4", "4.2.1", "4.3.0"):
        files = sample(version, "rocks_ckptv2_maint").files
        for path in (p for p in files if p.endswith(".crc") and "/." not in p):
            main = files[path.removesuffix(".crc")]
            checksum = parse_checksum(files[path])
            assert (checksum.size, checksum.value) == (len(main), crc32c(main))
            found += 1
    assert found == 48


def test_known_values() -> None:
    # RFC 3720, appendix B.4, and the specification of xxHash.
    assert crc32c(b"\x00" * 32) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(b"123456789") == 0xE3069283
    assert xxh32(b"", seed=0) == 0x02CC5D05
    assert xxh32(b"abc", seed=0) == 0x32D153FF
    assert xxh32(b"Nobody inspects the spammish repetition", seed=0) == 0xE2293B2F


@pytest.mark.parametrize("text", [b"", b"x", b"{}", b'{"algorithm":"MD5","value":1,"mainFileSize":2}', b"[]"])
def test_what_is_no_checksum_file(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_checksum(text)


def test_a_negative_value_is_the_same_in_32_bits() -> None:
    text = json.dumps({"algorithm": "CRC32C", "value": -1, "mainFileSize": 3})
    assert parse_checksum(text.encode()).value == 0xFFFFFFFF


@pytest.mark.parametrize(
    ("path", "codec", "whole"),
    [
        ("5.zip", "zstd", True),
        ("5.delta", "lz4", True),
        ("5.delta", "org.apache.spark.io.LZ4CompressionCodec", True),
        ("5.changelog", "zstd", False),
        ("schema", "lz4", False),
    ],
)
def test_what_carries_checksums_of_its_own(path: str, codec: str, whole: bool) -> None:
    assert is_self_checking(path, codec=codec) is whole


@given(data=anything(b"LZ4Block", b"PK\x03\x04", zlib.compress(b"x")), ending=st.sampled_from(STATE_FILES))
def test_whatever_is_in_a_file_is_no_crash(data: bytes, ending: str) -> None:
    for codec in ("lz4", "zstd", "snappy"):
        assert content_damage(data, path=f"state/0/0/5{ending}", codec=codec) != ""


def test_an_unknown_codec_is_said_to_be() -> None:
    with pytest.raises(NotJudgedError, match="'lzf' is not known here"):
        decompressed(b"x", "lzf")
    with pytest.raises(NotJudgedError, match=r"^state/0/0/5\.delta: compression codec 'lzf' is not known here"):
        content_damage(b"x", path="state/0/0/5.delta", codec="lzf")
