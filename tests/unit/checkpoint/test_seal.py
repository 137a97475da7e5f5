"""seal: recognised whole, cut off or damaged; never taken for anything else."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_ckpt_provider.checkpoint.seal import SEAL_PREFIX, Seal, parse_seal
from tests.support.checkpoints import offsets_log
from tests.support.damaged_bytes import anything, flipped_bits, truncated

SINCE = datetime(2026, 11, 21, 8, 31, 7, tzinfo=UTC)
SEAL = Seal(6, "7f3a", "restore of 20261121T083000Z-b000223", "manual__2026-11-21", SINCE)


def test_sentence() -> None:
    assert SEAL.sentence == (
        "airflow-ckpt: sealed by plan 7f3a (restore of 20261121T083000Z-b000223, manual__2026-11-21, "
        "2026-11-21T08:31:07Z); Spark must not start"
    )
    assert SEAL.path == "offsets/6"


def test_round_trip() -> None:
    assert parse_seal(SEAL.sentence.encode(), batch_id=6) == SEAL


_WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(_WORDS, _WORDS, st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1)))
def test_any_words_round_trip(reason: str, by: str, since: datetime) -> None:
    """Reasons and names come from people: commas, brackets, line breaks and all; the sentence stays one line."""
    seal = Seal(6, "7f3a", reason, by, since.replace(microsecond=0, tzinfo=UTC))
    assert len(seal.sentence.splitlines()) == 1
    found = parse_seal(seal.sentence.encode(), batch_id=6)
    assert found is not None
    assert (found.plan_id, found.reason, found.since) == ("7f3a", " ".join(reason.split()), seal.since)
    assert found.made_by == (" ".join(by.replace(",", ";").split()) or "unknown")


@pytest.mark.parametrize("data", [b"", b"v1\n{}\n1", b"airflow-ckpt: seal", offsets_log("1"), b"x" + SEAL_PREFIX])
def test_not_a_seal(data: bytes) -> None:
    assert parse_seal(data, batch_id=6) is None


def test_cut_off_it_is_still_a_seal() -> None:
    for data in truncated(SEAL.sentence.encode()):
        found = parse_seal(data, batch_id=6)
        if len(data) < len(SEAL_PREFIX):
            assert found is None
        else:
            assert found is not None
            assert found == Seal(6, "unknown", data.decode(), "unknown", None)


def test_a_flipped_bit_leaves_it_a_seal() -> None:
    for data in flipped_bits(SEAL.sentence.encode()):
        found = parse_seal(data, batch_id=6)
        assert (found is not None) == data.startswith(SEAL_PREFIX)


@given(anything(SEAL_PREFIX, SEAL_PREFIX + b" by plan 7f3a (r, b, "))
def test_arbitrary_bytes_raise_nothing(data: bytes) -> None:
    found = parse_seal(data, batch_id=6)
    assert (found is not None) == data.startswith(SEAL_PREFIX)


def test_a_time_that_is_none() -> None:
    sentence = SEAL.sentence.replace("2026-11-21T08:31:07Z", "2026-13-45T08:31:07Z")
    found = parse_seal(sentence.encode(), batch_id=6)
    assert found is not None
    assert found.since is None
