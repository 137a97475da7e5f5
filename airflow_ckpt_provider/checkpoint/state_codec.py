"""How state files are compressed, and the checksums that come with it.

The codec is pinned in the offset log (``stateStore.compression.codec``). Spark's ``lz4`` is lz4-java's ``LZ4Block`` stream,
which carries a checksum of each block; ``snappy`` is snappy-java's ``SnappyOutputStream``; ``zstd`` is plain.
"""

from __future__ import annotations

import struct

#: Of lz4-java's ``LZ4BlockOutputStream``; only 28 bits of the hash are kept.
_LZ4_SEED, _LZ4_MASK = 0x9747B28C, 0x0FFFFFFF
_P1, _P2, _P3, _P4, _P5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_U32 = 0xFFFFFFFF


def decompressed(data: bytes, codec: str, *, verify: bool = False) -> bytes:
    """Undo the compression of a state file.

    :param codec: name or class of the codec.
    :param verify: compare the checksums of blocks too, where the codec has them; some 15 MB in a second.
    :raises ValueError: the data is damaged, or the codec is not known.
    """
    # Imported here: a native module, needed only where contents are read.
    import cramjam

    name = codec_name(codec)
    try:
        if name == "lz4":
            return _lz4_blocks(data, verify=verify)
        if name == "zstd":
            return bytes(cramjam.zstd.decompress(data))
        if name == "snappy":
            return _snappy_blocks(data)
    except cramjam.DecompressionError as e:
        raise ValueError(f"broken {name} data: {e}") from e
    raise ValueError(f"compression codec {codec!r} is not known here (lz4, zstd and snappy are)")


def codec_name(codec: str) -> str:
    """The short name of a codec that may be given by its class."""
    return codec.rpartition(".")[2].lower().removesuffix("compressioncodec")


def _lz4_blocks(data: bytes, *, verify: bool) -> bytes:
    """lz4-java's ``LZ4Block`` stream, which is not the ``.lz4`` frame format."""
    import cramjam

    out = bytearray()
    position, ended = 0, False
    while position < len(data):
        magic, token, packed, plain, checksum = struct.unpack_from("<8sBiiI", data, position)
        if magic != b"LZ4Block":
            raise ValueError("no LZ4Block header")
        if packed < 0 or plain < 0:
            raise ValueError("a block of negative size")
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
        out += content
    if verify and not ended:
        raise ValueError("cut off")
    return bytes(out)


def _snappy_blocks(data: bytes) -> bytes:
    """snappy-java's ``SnappyOutputStream``: a 16-byte header, then length-prefixed raw blocks."""
    import cramjam

    if not data.startswith(b"\x82SNAPPY\x00"):
        raise ValueError("no snappy-java header")
    out = bytearray()
    position = 16
    while position < len(data):
        (length,) = struct.unpack_from(">i", data, position)
        position += 4
        out += bytes(cramjam.snappy.decompress_raw(data[position : position + length]))
        position += length
    return bytes(out)


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
