"""The soak, `make soak`: at least 100 backups of live streams of every kind, each restored and run on.

Beside it the control: as many naive copies of the same streams. ``SOAK_BACKUPS`` and ``SOAK_COPIES`` (of each kind, 9 by
default), ``SOAK_KINDS`` (all by default) and ``SOAK_SEED`` change it.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.support.live_copies import BACKUP, LISTED_AS_IT_GOES, LISTED_FIRST, SPOILED, LiveCopies, Verdict
from tests.support.streams.kinds import SOAK
from tests.support.streams.spark_host import SparkHost

pytestmark = [pytest.mark.soak, pytest.mark.spark]

_BACKUPS = int(os.environ.get("SOAK_BACKUPS", "9"))
_COPIES = int(os.environ.get("SOAK_COPIES", str(_BACKUPS)))
_KINDS = os.environ.get("SOAK_KINDS", ",".join(SOAK)).split(",")
_FILES = 24
#: Streams at once: enough to keep two cores busy, few enough that each is fast.
_AT_ONCE = 3


@pytest.mark.timeout(4 * 3600)
def test_every_backup_is_row_exact(tmp_path: Path) -> None:
    seed = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(10**6)))
    kinds = _KINDS
    print(f"\nsoak: {len(kinds)} kinds of streams, {_BACKUPS} backups of each, SOAK_SEED={seed}", flush=True)
    verdicts: list[Verdict] = []
    began = time.monotonic()
    for number, group in enumerate(_groups()):
        verdicts += _round(tmp_path / str(number), group, seed + number)
        for kind in group:
            _report(kind, verdicts)
    _report("all", verdicts)
    print(f"soak: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)

    backups = [verdict for verdict in verdicts if verdict.how == BACKUP]
    naive = [verdict for verdict in verdicts if verdict.how != BACKUP]
    assert len(backups) == _BACKUPS * len(kinds)
    assert [verdict for verdict in backups if verdict.outcome != "exact"] == []
    assert not naive or any(verdict.outcome != "exact" for verdict in naive), "the control lost nothing: too tame"


def _round(root: Path, group: list[str], seed: int) -> list[Verdict]:
    for attempt in range(5):
        place = root / str(attempt)
        place.mkdir(parents=True)
        host = SparkHost(place / "spark.log")
        try:
            copies = LiveCopies(host, place, group, files=_FILES, seed=seed)
            copies.run_live(backups=_BACKUPS, naive_copies=_COPIES)
            copies.run_references()
            return copies.verdicts_on_naive_copies() + copies.verdicts_on_backups()
        except AssertionError as e:
            if SPOILED not in str(e):
                raise
            print(f"Spark spoiled a live stream's own state (SPARK-52637); again: {', '.join(group)}", flush=True)
        finally:
            host.kill()
            shutil.rmtree(place, ignore_errors=True)
    raise AssertionError("Spark spoiled a live stream five times in a row")


def _groups() -> list[list[str]]:
    groups = []
    for format_2 in (False, True):
        kinds = [name for name in _KINDS if SOAK[name].is_format_2 == format_2]
        groups += [kinds[first : first + _AT_ONCE] for first in range(0, len(kinds), _AT_ONCE)]
    return groups


def _report(kind: str, verdicts: list[Verdict]) -> None:
    for how in (BACKUP, LISTED_FIRST, LISTED_AS_IT_GOES):
        chosen = [verdict for verdict in verdicts if verdict.how == how and kind in ("all", verdict.kind)]
        if not chosen:
            continue
        count = Counter(verdict.outcome for verdict in chosen)
        failed = count["loud"] + count["silent"]
        lost = sum(verdict.difference.lost for verdict in chosen if verdict.difference)
        extra = sum(verdict.difference.extra for verdict in chosen if verdict.difference)
        vanished = sum(verdict.vanished > 0 for verdict in chosen)
        print(
            f"{kind:21} {how:24} {count['exact']:3} of {len(chosen):3} row-exact; failed {failed / len(chosen):4.0%}: "
            f"{count['loud']} loud, {count['silent']} silent ({lost} rows lost, {extra} wrong or doubled); "
            f"{vanished} met vanished files",
            flush=True,
        )
