"""The soak, `make soak`: at least 100 backups of live streams of every kind, each restored and run on.

Beside it the control: as many naive copies of the same streams. ``SOAK_BACKUPS`` (a kind, 9 by default) and ``SOAK_SEED``
change it.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.live_copies import LiveCopies, Verdict
from tests.integration.streams.kinds import SOAK
from tests.integration.streams.spark_host import SparkHost

pytestmark = [pytest.mark.soak, pytest.mark.spark]

_BACKUPS = int(os.environ.get("SOAK_BACKUPS", "9"))
_FILES = 30
#: Streams at once: enough to keep two cores busy, few enough that each is fast.
_AT_ONCE = 3


@pytest.mark.timeout(4 * 3600)
def test_every_backup_is_row_exact(tmp_path: Path) -> None:
    seed = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(10**6)))
    kinds = list(SOAK)
    print(f"\nsoak: {len(kinds)} kinds of streams, {_BACKUPS} backups of each, SOAK_SEED={seed}", flush=True)
    backups: list[Verdict] = []
    naive: list[Verdict] = []
    began = time.monotonic()
    for number, group in enumerate(_groups()):
        root = tmp_path / str(number)
        root.mkdir()
        host = SparkHost(root / "spark.log")
        try:
            copies = LiveCopies(host, root, group, files=_FILES, seed=seed + number)
            copies.run_live(backups=_BACKUPS, naive_copies=_BACKUPS)
            copies.run_references()
            naive += copies.verdicts_on_naive_copies()
            backups += copies.verdicts_on_backups()
        finally:
            host.kill()
        shutil.rmtree(root)
        for kind in group:
            print(f"{_row(kind, 'backup', backups)}\n{_row(kind, 'naive copy', naive)}", flush=True)
    print(f"{_row('all', 'backup', backups)}\n{_row('all', 'naive copy', naive)}")
    print(f"soak: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)

    assert len(backups) >= min(100, _BACKUPS * len(kinds))
    assert [verdict for verdict in backups if verdict.outcome != "exact"] == []
    assert any(verdict.outcome != "exact" for verdict in naive), "the control lost nothing: these streams are too tame"


def _groups() -> list[list[str]]:
    groups = []
    for format_2 in (False, True):
        kinds = [name for name, kind in SOAK.items() if kind.is_format_2 == format_2]
        groups += [kinds[first : first + _AT_ONCE] for first in range(0, len(kinds), _AT_ONCE)]
    return groups


def _row(kind: str, how: str, verdicts: list[Verdict]) -> str:
    chosen = [verdict for verdict in verdicts if kind in ("all", verdict.kind)]
    count = Counter(verdict.outcome for verdict in chosen)
    failed = count["loud"] + count["silent"]
    vanished = sum(verdict.vanished > 0 for verdict in chosen)
    lost = sum(verdict.difference.lost for verdict in chosen if verdict.difference)
    extra = sum(verdict.difference.extra for verdict in chosen if verdict.difference)
    return (
        f"{kind:21} {how:11} {count['exact']:3} of {len(chosen):3} row-exact; failed {failed / len(chosen):4.0%}: "
        f"{count['loud']} loud, {count['silent']} silent ({lost} rows lost, {extra} wrong or doubled); "
        f"{vanished} copies met vanished files"
    )
