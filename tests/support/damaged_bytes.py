"""Ways for the bytes of a file to go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import strategies as st

from airflow_ckpt_provider.errors import UnreadableLogError


def flipped_bits(data: bytes) -> Iterator[bytes]:
    """``data`` with each of its bits flipped in turn."""
    for position, byte in enumerate(data):
        for bit in range(8):
            yield data[:position] + bytes([byte ^ (1 << bit)]) + data[position + 1 :]


def truncated(data: bytes) -> Iterator[bytes]:
    """``data`` cut off after each number of bytes, but not whole."""
    for length in range(len(data)):
        yield data[:length]


def anything(*headers: bytes) -> st.SearchStrategy[bytes]:
    """Any bytes, alone and after a beginning that gets further into a parser; most often nearly text."""
    tail = st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode))
    return st.builds(bytes.__add__, st.sampled_from([b"", *headers]), tail)


#: JSON that Python's parser does not refuse with ``JSONDecodeError``: too deep, and too long a number.
HOSTILE_JSON = {
    "deep": b"[" * 100_000,
    "deep object": b'{"a":' * 100_000,
    "long number": b'{"a":' + b"1" * 5000 + b"}",
}


@contextmanager
def unreadable_at_most(path: str, batch_id: int | None = None) -> Iterator[None]:
    """Let pass that a file cannot be read, said as it must be: naming the file and its batch. Nothing else."""
    try:
        yield
    except UnreadableLogError as e:
        if (e.path, e.batch_id) != (path, batch_id) or path not in e.message:
            raise
