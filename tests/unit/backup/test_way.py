"""Which way small contents take into packs: the rule, by a clock of the test."""

from __future__ import annotations

import pytest

from airflow_ckpt_provider.backup import way
from airflow_ckpt_provider.backup.way import Way


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def run(files: int, *, read: float, copy: float) -> tuple[Way, list[bool]]:
    """Ask for each file, one after the other; what was decided for each."""
    clock = Clock()
    asked, decided = Way(files, now=clock), []
    for _ in range(files):
        by_store = asked.by_store()
        clock.seconds += copy if by_store else read
        asked.took(by_store=by_store)
        decided.append(by_store)
    return asked, decided


@pytest.mark.parametrize(
    ("files", "read", "copy", "by_store"),
    [
        (200, 10.0, 0.001, 0),  # all of them are the sample
        (5_000, 0.005, 0.0005, 0),  # 47 s for all others: not worth a question
        (50_000, 0.005, 0.004, 256),  # 8 min, but copies are no faster than half of that
        (50_000, 0.005, 0.0024, 50_000 - 256),
        (5_000, 0.2, 0.001, 5_000 - 256),
    ],
)
def test_the_rule(files: int, read: float, copy: float, by_store: int) -> None:
    asked, decided = run(files, read=read, copy=copy)
    assert sum(decided) == by_store
    assert not any(decided[: way.SAMPLE])
    assert (asked.says is None) == (by_store == 0)


def test_what_it_says() -> None:
    asked, _ = run(5_000, read=0.2, copy=0.001)
    assert asked.says == "a small file takes 400 ms through this process and 1 ms by the store, which copied 4744"
    asked, _ = run(50_000, read=0.005, copy=0.004)
    assert asked.says == (
        "a small file takes 10 ms through this process and 4 ms by the store, which copied 256 to be timed"
    )


def test_what_was_under_way_when_the_other_way_began_is_not_timed() -> None:
    clock = Clock()
    asked = Way(100_000, now=clock)
    late = [asked.by_store() for _ in range(64)]
    for _ in range(way.SAMPLE):
        assert not asked.by_store()
        clock.seconds += 0.1
        asked.took(by_store=False)
    assert asked.by_store()
    for by_store in late:
        clock.seconds += 5
        asked.took(by_store=by_store)
    for _ in range(way.SAMPLE - 1):
        asked.took(by_store=asked.by_store())
    asked.took(by_store=True)
    assert not asked.by_store(), "320 s for 256 copies: reading takes less than four times as long"
