"""`make rewind-soak`: random histories of streams that run, break, are rewound, undone, restored and run on.

``REWIND_HISTORIES`` and ``REWIND_SEED`` change how many and which; ``REWIND_FIRST`` continues with those of a run that
was stopped.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.errors import MissingFileError, RefusedError
from airflow_ckpt_provider.recovery.rewind.planning import reachable
from airflow_ckpt_provider.recovery.undo import undo
from tests.support.rewinding import Story, difference
from tests.support.stopped import STOPPED, wait_until_quiet
from tests.support.streams.kinds import KINDS, REWOUND
from tests.support.streams.spark_host import SparkHost, coordinates

pytestmark = [pytest.mark.rewind_soak, pytest.mark.spark]

_HISTORIES = int(os.environ.get("REWIND_HISTORIES", "100"))


@pytest.mark.timeout(4 * 3600)
def test_every_history_is_row_exact(tmp_path: Path) -> None:
    seed = int(os.environ.get("REWIND_SEED", random.SystemRandom().randrange(10**6)))
    print(f"\n{_HISTORIES} histories, REWIND_SEED={seed}", flush=True)
    kinds = sorted(REWOUND, key=lambda name: KINDS[name].is_format_2)
    count: Counter[str] = Counter()
    failures = []
    began = time.monotonic()
    host: SparkHost | None = None
    for number in range(int(os.environ.get("REWIND_FIRST", "0")), _HISTORIES):
        kind = kinds[number * len(kinds) // _HISTORIES]
        # Spark 4.0.0 cannot have both state formats in one JVM.
        if host is None or (KINDS[kind].is_format_2 and number * len(kinds) % _HISTORIES < len(kinds)):
            if host:
                host.kill()
            host = SparkHost(tmp_path / f"spark{number}.log", packages=coordinates("spark-jars.txt"))
        place = tmp_path / str(number)
        told = _history(Story(host, place, kind), random.Random(seed + number), count)
        print(f"{number:3} {kind:24} {told}", flush=True)
        if not told.endswith(("row-exact", "out of reach: refused")):
            failures.append(f"{number} {kind}: {told}")
        shutil.rmtree(place, ignore_errors=True)
    if host:
        host.kill()
    print(f"{dict(count)}; {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    assert failures == []


def _history(story: Story, chance: random.Random, count: Counter[str]) -> str:
    """Let things happen, and end with the right code over all input; return what happened."""
    story.run(chance.randint(2, 4))
    right = story.newest
    told = [f"ran to {right}"]
    create_backup(story.ckpt, story.repository)
    for _ in range(chance.randint(1, 4)):
        what = chance.choice(["fault", "fault", "rewind", "undo", "backup", "right"])
        count[what] += 1
        if what == "fault":
            story.run(chance.randint(1, 3), faulty=True)
        elif what == "right" and story.newest <= right:
            story.run(1)
            right = story.newest
        elif what == "backup":
            create_backup(story.ckpt, story.repository)
        elif what in ("rewind", "undo"):
            targets = [t.batch_id for t in reachable(story.ckpt, story.repository) if t.batch_id < story.newest]
            if not targets:
                continue
            to = chance.choice(targets)
            exact = chance.random() < 0.7
            try:
                outcome = story.rewind("to_batch", to, exact_replay=exact)
            except MissingFileError:
                # The oldest batch is there only with the next one's entry: a start that plans again reads the entry before it.
                assert not exact
                outcome = story.rewind("to_batch", to)
            if what == "undo" and not outcome.already_done:
                undo(story.place, story.repository, sink=story.sink, rest=STOPPED)
            else:
                right = min(right, to)
                try:
                    create_backup(
                        story.ckpt, story.repository
                    )  # the stream keeps few batches: this one has to stay in reach
                except MissingFileError:
                    # The oldest batch again: until the stream has run there is no start after it but the exact replay.
                    is_right = right == to
                    story.run(1, faulty=not is_right)
                    right = story.newest if is_right else right
                    create_backup(story.ckpt, story.repository)
                told.append(f"rewound to {to}")
                continue
        told.append(f"{what} at {story.newest}")
    if story.newest > right:
        wait_until_quiet(story.place, quiet_for=1.0, at_most=60)
        reached = [t.batch_id for t in reachable(story.ckpt, story.repository) if t.batch_id <= right]
        if not reached:  # purged, and never backed up: refused, and nothing is changed
            with pytest.raises(RefusedError, match="cannot be rewound to"):
                story.rewind("to_batch", right)
            return ", ".join([*told, f"batch {right} is out of reach: refused"])
        story.rewind("to_batch", max(reached))
        told.append(f"rewound to {max(reached)}")
    story.run(1)
    lost, wrong = difference(story.reference(), story.rows())
    told.append("row-exact" if (lost, wrong) == (0, 0) else f"{lost} rows lost, {wrong} wrong or doubled")
    return ", ".join(told)
