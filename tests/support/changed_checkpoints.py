"""Changes of a checkpoint on a disk, made by the command line, and what a world with them looks like."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.samples.archives import sample, write_files
from tests.support.backups import stream
from tests.support.checkpoints import (
    logs,
)
from tests.support.command_line import Finished, new_repository, run
from tests.support.damaged_samples import Files, delta_missing

ROOT = Path(__file__).parents[2]


#: Every risk is accepted: these tests are not about what is refused.
RISKS = ("sink_duplicates", "sink_skips", "sink_unknown", "source_loss", "source_unknown", "foreign_loss")


ACCEPTED = tuple(word for risk in RISKS for word in ("--accept", risk))


DO_IT = ("--apply", "--query-is-stopped", "--quiet-for", "0")


NEW_QUERY_ID = "0a6ab8f5-4b0f-4a51-93f4-0b6b8a3f0f0e"


@dataclass(frozen=True)
class Change:
    """A change of a checkpoint, and what has to be there before.

    :param argv: the command line, given the place.
    :param before: the files of the checkpoint.
    :param backed_up: the files of which the repository holds a backup; none by default.
    :param state: how state files of version ``n`` are named; the stream continues with them.
    :param below: what is compared, in the place.
    :param subject: the checkpoint that an undo is asked for, in the place.
    """

    argv: Callable[[Path], tuple[object, ...]]
    before: Files
    backed_up: Files | None = None
    state: str = "state/0/0/{}.changelog"
    below: str = "orders"
    subject: str = "orders"

    def prepare(self, place: Path, *, template: Path | None = None) -> Path:
        """Write everything to an empty place.

        :param template: one that was prepared before, whose repository will do; a backup takes its time.
        """
        repository = place / "backups"
        if template and self.backed_up:
            shutil.copytree(template / "backups", repository)
        elif self.backed_up:
            whole = write_files(place / "whole/orders", self.backed_up)
            assert run("backup", whole, new_repository(repository), "--name", "orders").code == 0
            shutil.rmtree(whole.parent)
        else:
            new_repository(repository)
        write_files(place / self.subject, self.before)
        return place

    def undo(self, place: Path, *, plan_id: str | None = None) -> Finished:
        which = ("--plan", plan_id) if plan_id else ()
        return run(
            "undo",
            place / self.subject,
            "--repository",
            place / "backups",
            *which,
            "--query-is-stopped",
            "--quiet-for",
            0,
        )


def rewind_to(batch: int) -> Callable[[Path], tuple[object, ...]]:
    return lambda place: (
        *("rewind", place / "orders", "--to-batch", batch, "--repository", place / "backups"),
        *("--sink", "foreachBatch", "--sink-policy", "keep", *ACCEPTED, *DO_IT),
    )


def reset(way: str) -> Callable[[Path], tuple[object, ...]]:
    return lambda place: (
        *("reset", place / "orders", f"--{way}", "--repository", place / "backups"),
        *("--sink", "foreachBatch", *ACCEPTED, *DO_IT),
    )


def repair(place: Path) -> tuple[object, ...]:
    return ("doctor", place / "orders", "--repair", "--repository", place / "backups", *ACCEPTED, *DO_IT)


def restore(place: Path) -> tuple[object, ...]:
    where = (place / "backups", "latest", place / "orders", "--name", "orders")
    return ("restore", *where, "--replace", "--sink", "foreachBatch", *ACCEPTED, *DO_IT)


def orders(newest: int) -> Files:
    return stream(newest, partitions=1)


def aggregation(*, damage: Callable[[Files], None] | None = None) -> Files:
    """A real one in HDFS-backed state, of batches 0 to 5."""
    found = {p: c for p, c in sample("4.0.0", "hdfs_agg").files.items() if not Path(p).name.startswith(".")}
    if damage:
        damage(found)
    return found


#: Whose files are at other places or of other batches once the change is complete, and the stream continues.
STALE = {
    "restore": Change(restore, orders(5), backed_up=orders(2)),
    "rewind": Change(rewind_to(1), orders(4)),
    "reset from scratch": Change(reset("from-scratch"), orders(2)),
    "reset keeping the position": Change(reset("keep-position"), orders(2)),
    "repair": Change(repair, aggregation(damage=delta_missing), backed_up=logs(range(2)), state="state/0/1/{}.delta"),
}
