"""How state files are compressed, and the checksums that come with it.

The codec is pinned in the offset log (``stateStore.compression.codec``). Spark's ``lz4`` is lz4-java's ``LZ4Block`` stream,
which carries a checksum of each block; ``snappy`` is snappy-java's ``SnappyOutputStream``; ``zstd`` is plain.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from airflow_ckpt_provider.errors import NotJudgedError

#: Of lz4-java's ``LZ4BlockOutputStream``; only 28 bits of the hash are kept.
_LZ4_SEED, _LZ4_MASK = 0x9747B28C, 0x0FFFFFFF
_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_U32 = 0xFFFFFFFF
#: lz4-java's largest block, and by how much lz4 and snappy can make anything smaller: what says more is no such block.
_LZ4_BLOCK, _LZ4_RATIO, _SNAPPY_RATIO = 1 << 25, 255, 32
#: What zstd, which is undone in one piece, may become: so many bytes, or so many times the size of the file.
_ZSTD_BYTES, _ZSTD_RATIO = 64 * 1024**2, 100
#: The largest block of zstd.
_ZSTD_BLOCK = 128 * 1024
_WHOLE = "this is no damage: Spark may read the file, and this package leaves it as it is"


def decompressed(data: bytes, codec: str, *, verify: bool = False) -> bytes:
    """Undo the compression of a small state file; see :func:`decompressed_parts`."""
    return b"".join(decompressed_parts(data, codec, verify=verify))


def decompressed_parts(data: bytes, codec: str, *, verify: bool = False) -> Iterator[bytes]:
    """Undo the compression of a state file, a part at a time; what a part may become is compared with what it can be before.

    :param codec: name or class of the codec.
    :param verify: compare the checksums of blocks too, where the codec has them; some 15 MB in a second.
    :raises ValueError: the data is damaged.
    :raises NotJudgedError: the codec is not known, or zstd becomes so much that it is not undone here.
    """
    # Imported here: a native module, needed only where contents are read.
    import cramjam

    name = codec_name(codec)
    try:
        if name == "lz4":
            yield from _lz4_blocks(data, verify=verify)
        elif name == "zstd":
            _check_zstd(data)
            yield bytes(cramjam.zstd.decompress(data))
        elif name == "snappy":
            yield from _snappy_blocks(data)
        else:
            raise NotJudgedError(
                f"compression codec {codec!r} is not known here (lz4, zstd and snappy are)", hint=_WHOLE
            )
    except cramjam.DecompressionError as e:
        raise ValueError(f"broken {name} data: {e}") from e


def codec_name(codec: str) -> str:
    """The short name of a codec that may be given by its class."""
    return codec.rpartition(".")[2].lower().removesuffix("compressioncodec")


def _lz4_blocks(data: bytes, *, verify: bool) -> Iterator[bytes]:
    """lz4-java's ``LZ4Block`` stream, which is not the ``.lz4`` frame format."""
    import cramjam

    position, ended = 0, False
    while position < len(data):
        magic, token, packed, plain, checksum = struct.unpack_from("<8sBiiI", data, position)
        if magic != b"LZ4Block":
            raise ValueError("no LZ4Block header")
        if packed < 0 or plain < 0:
            raise ValueError("a block of negative size")
        if plain > min(_LZ4_BLOCK, packed * _LZ4_RATIO + 64):
            raise ValueError(f"a block of {packed} bytes that says it becomes {plain}")
        position += 21
        block = data[position : position + packed]
        if len(block) != packed:
            raise ValueError("cut off")
        position += packed
        if plain == 0:
            ended = True
            break
        content = block if token & 0xF0 == 0x10 else bytes(cramjam.lz4.decompress_block(block, output_len=plain))
        if len(content) != plain:
            raise ValueError("a block is not as long as it says")
        if verify and xxh32(content, seed=_LZ4_SEED) & _LZ4_MASK != checksum:
            raise ValueError("a block does not match its checksum")
        yield content
    if verify and not ended:
        raise ValueError("cut off")


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """snappy-java's ``SnappyOutputStream``: a 16-byte header, then length-prefixed raw blocks."""
    import cramjam

    if not data.startswith(b"\x82SNAPPY\x00"):
        raise ValueError("no snappy-java header")
    position = 16
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        if length <= 0:
            raise ValueError("a block of no size")
        block = data[position : position + length]
        if (plain := _snappy_size(block)) > len(block) * _SNAPPY_RATIO + 64:
            raise ValueError(f"a block of {len(block)} bytes that says it becomes {plain}")
        yield bytes(cramjam.snappy.decompress_raw(block))
        position += length


def _snappy_size(block: bytes) -> int:
    """The size that a raw snappy block says it becomes: seven bits a byte, the lowest first."""
    size = 0
    for number, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            break
    return size


def _check_zstd(data: bytes) -> None:
    """See what zstd frames become at the most, by the headers of their blocks (RFC 8878).

    :raises NotJudgedError: that is more than is held in memory here. What is damaged otherwise shows when it is undone.
    """
    most, allowed = 0, max(_ZSTD_BYTES, _ZSTD_RATIO * len(data))
    position = 0
    while position + 5 <= len(data):
        (magic,) = struct.unpack_from("<I", data, position)
        if magic & 0xFFFFFFF0 == 0x184D2A50:  # a frame to be skipped
            if position + 8 > len(data):
                return
            position += 8 + struct.unpack_from("<I", data, position + 4)[0]
            continue
        if magic != 0xFD2FB528:
            return
        descriptor = data[position + 4]
        single, dictionary = descriptor >> 5 & 1, (0, 1, 2, 4)[descriptor & 3]
        content_size = (single, 2, 4, 8)[descriptor >> 6]
        position += 5 + (not single) + dictionary + content_size
        last = False
        while not last and position + 3 <= len(data):
            header = int.from_bytes(data[position : position + 3], "little")
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            most += _ZSTD_BLOCK if kind == 2 else size
            if most > allowed:
                raise NotJudgedError(f"it becomes more than {allowed} bytes, out of {len(data)}", hint=_WHOLE)
            position += 3 + (1 if kind == 1 else size)
        position += 4 * (descriptor >> 2 & 1)


def xxh32(data: bytes, *, seed: int) -> int:
    """XXH32, the checksum of lz4 blocks (https://github.com/Cyan4973/xxHash, ``doc/xxhash_spec.md``)."""
    length = len(data)
    stripes = length // 16
    if stripes:
        a, b, c, d = (seed + _P1 + _P2) & _U32, (seed + _P2) & _U32, seed & _U32, (seed - _P1) & _U32
        for w, x, y, z in struct.iter_unpack("<4I", data[: stripes * 16]):
            a = (a + w * _P2) & _U32
            a = ((a << 13 | a >> 19) * _P1) & _U32
            b = (b + x * _P2) & _U32
            b = ((b << 13 | b >> 19) * _P1) & _U32
            c = (c + y * _P2) & _U32
            c = ((c << 13 | c >> 19) * _P1) & _U32
            d = (d + z * _P2) & _U32
            d = ((d << 13 | d >> 19) * _P1) & _U32
        h = (_rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)) & _U32
    else:
        h = (seed + _P5) & _U32
    h = (h + length) & _U32
    rest = data[stripes * 16 :]
    words = len(rest) // 4
    for (word,) in struct.iter_unpack("<I", rest[: words * 4]):
        h = (_rotated((h + word * _P3) & _U32, 17) * _P4) & _U32
    for byte in rest[words * 4 :]:
        h = (_rotated((h + byte * _P5) & _U32, 11) * _P1) & _U32
    h = ((h ^ h >> 15) * _P2) & _U32
    h = ((h ^ h >> 13) * _P3) & _U32
    return h ^ h >> 16


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _U32
