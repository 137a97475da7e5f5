"""The topic of MirrorMaker's offset syncs: records of a real one, what still holds of them, and the names of topics."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.guards.mirror_syncs import MirrorNames, OffsetSync, SyncTrail, parse_sync, trails
from tests.support.recorded_syncs import RECORDED


def recorded(first: int = 10) -> dict[int, tuple[list[tuple[int, int]], int | None]]:
    """Partition -> its trail by the first records."""
    found = trails(parse_sync(bytes.fromhex(key), bytes.fromhex(value)) for key, value in RECORDED[:first])
    assert {topic for topic, _ in found} == {"orders"}
    return {
        n: ([(s.upstream, s.downstream) for s in trail.syncs], trail.highest_before) for (_, n), trail in found.items()
    }


def test_records_of_a_real_mirror() -> None:
    assert recorded(5) == {0: ([(50, 0), (151, 101), (252, 202)], None), 1: ([(0, 0), (46, 45)], None)}


def test_a_mirror_that_began_again_makes_its_earlier_syncs_invalid() -> None:
    assert recorded() == {0: ([(50, 275), (151, 376), (252, 477)], 252), 1: ([(0, 50), (46, 95)], 46)}


def test_the_same_offset_again_is_a_step_back_and_the_same_sync_again_is_none() -> None:
    def of(*pairs: tuple[int, int]) -> SyncTrail:
        return trails(OffsetSync(("orders", 0), up, down) for up, down in pairs)["orders", 0]

    assert of((0, 0), (0, 1)) == SyncTrail((OffsetSync(("orders", 0), 0, 1),), 0)
    assert of((5, 5), (5, 5)).highest_before is None


KEY, VALUE = (bytes.fromhex(text) for text in RECORDED[0])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", VALUE),
        (KEY[:-1], VALUE),
        (KEY + b"\0", VALUE),
        (KEY, VALUE[:-1]),
        (KEY, VALUE + b"\0"),
        (b"\xff\xff" + KEY[2:], VALUE),
        (KEY, b"\xff" * 16),
        (b"\0\1\xff\0\0\0\0", VALUE),
    ],
)
def test_what_is_no_sync_is_an_error(key: bytes, value: bytes) -> None:
    with pytest.raises(ValueError, match="no offset sync of MirrorMaker 2"):
        parse_sync(key, value)


def test_names() -> None:
    names = MirrorNames("east", "west")
    topics = {
        "orders",
        "mm2-offset-syncs.west.internal",
        "mm2-offset-syncs.north.internal",
        "mm2-offset-syncs.east.internal",
    }
    assert names.remote("orders") == "east.orders"
    assert MirrorNames("east", policy="identity").remote("orders") == "orders"
    assert MirrorNames("east", separator="_").remote("orders") == "east_orders"
    assert names.syncs_topic("source", topics) == "mm2-offset-syncs.west.internal"
    assert names.syncs_topic("target", topics) == "mm2-offset-syncs.east.internal"
    assert MirrorNames("e").syncs_topic("source", {"a", "mm2-offset-syncs_w_internal"}) == "mm2-offset-syncs_w_internal"
    assert MirrorNames("e", "w", separator="_").syncs_topic("source", topics | {"mm2-offset-syncs_w_internal"}) == (
        "mm2-offset-syncs_w_internal"
    )


@pytest.mark.parametrize(
    ("names", "location", "words"),
    [
        (MirrorNames("east"), "source", "the old cluster has several topics of offset syncs: .*--mirrored-to"),
        (MirrorNames("east", "south"), "source", "the old cluster has no topic mm2-offset-syncs.south.internal"),
        (MirrorNames("east"), "target", "the new cluster has no topic mm2-offset-syncs.east.internal"),
    ],
)
def test_no_topic_of_syncs(names: MirrorNames, location: str, words: str) -> None:
    with pytest.raises(RefusedError, match=f"(?s){words}"):
        names.syncs_topic(location, {"mm2-offset-syncs.west.internal", "mm2-offset-syncs.north.internal"})
    with pytest.raises(RefusedError, match="'other' is no replication policy that is known here"):
        MirrorNames("east", policy="other")
