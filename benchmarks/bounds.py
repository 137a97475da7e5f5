"""The fewest requests that a step can do with, and how they come about."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchmarks.steps import Step

#: Names that S3 gives in one answer to a LIST.
PAGE = 1000
#: What our steps ask on top of the bound, however many files there are: the repository's marker, lease and claim with their
#: ends, marks of prunes, the newest logs, the look back whether history was rewritten; on a restore the seal, the order of writes
#: that no Spark starts in the middle of, and the audit record.
FIXED = {
    Step.FIRST: 35,
    Step.NOTHING: 30,
    # The notes of earlier versions, if there is no record yet of what is damaged; and a listing of the checkpoint, a page for
    # 1,000 names, where the commit was written within two seconds of the backup.
    Step.SKIPPED: 3,
    Step.CHANGED: 30,
    # From a shell what was found is recorded as well.
    Step.VERIFY: 12,
    Step.READ: 12,
    # The fence and what an undo needs are among them: the attempt and its end, the plan, and a listing of attempts.
    Step.RESTORE: 48,
}


#: And on a restore for each zip of a snapshot, copied by the store like the rest: read back, to see that all it needs is there.
READS_OF_A_ZIP = 1
#: And with packs: parts of them are read once to see that all is whole, before anything is changed, and again to be written.
READS_OF_A_PACK = 8
#: And listings of all, beyond the two of the bound: the objects for the plan, and again once no prune can take them away.
MORE_LISTINGS = 1


@dataclass(frozen=True)
class Bound:
    """The fewest requests, by kind, and in words.

    :param kinds: kind of request -> how many.
    :param words: where they come from.
    """

    kinds: dict[str, int]
    words: str

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.kinds.values())


def most_over(step: Step, *, needed: int, snapshots: int, packs: int = 0) -> int:
    """How many requests our step may ask on top of the bound.

    :param needed: files that the backup holds.
    :param snapshots: zips among them.
    :param packs: how many hold them.
    """
    if step is not Step.RESTORE:
        return FIXED[step]
    return FIXED[step] + MORE_LISTINGS * pages(needed) + READS_OF_A_ZIP * snapshots + READS_OF_A_PACK * packs


def pages(files: int) -> int:
    """LISTs that it takes to see so many files."""
    return max(1, math.ceil(files / PAGE))


def lower_bound(
    step: Step, *, files: int, needed: int, changed: int, snapshots: int = 0, packs: int | None = None, apart: int = 0
) -> Bound:
    """The fewest requests with which a backup can do a step, and know that it is right.

    What is in a checkpoint and in a repository can only be learnt by listing them, a page for 1,000 names; a content that
    stays in the store is copied by one request; that every copy is what was listed shows in one more listing.

    :param files: of the checkpoint.
    :param needed: of those, what Spark needs, and so what a backup holds.
    :param changed: of the needed ones, how many were replaced since the last backup.
    :param snapshots: zips among the needed, each of which names the table files it goes with, and has to be read for it.
    :param packs: how many packs hold what is needed; ``None``: each file is an object that the store copies.
    :param apart: of the needed files, how many the store copies although there are packs: a backup tries both ways at first.
    """
    here, there = pages(files), pages(needed)
    if packs is not None:
        objects = packs + apart
        return _with_packs(
            step, here, there, needed=needed, changed=changed, snapshots=snapshots, objects=objects, apart=apart
        )
    if step is Step.FIRST:
        return Bound(
            {"LIST": here + there, "COPY": needed, "GET": snapshots, "PUT": 1},
            "list the checkpoint, copy each file, list the copies, write the manifest",
        )
    if step is Step.NOTHING:
        return Bound(
            {"LIST": here + there, "GET": 1 + snapshots, "PUT": 1}, "two listings, the last manifest, a new one"
        )
    if step is Step.SKIPPED:
        return Bound(
            {"LIST": 3, "GET": 4},
            "list the commits, the backups and what is damaged, read the last manifest, the query's id and two log entries",
        )
    if step is Step.CHANGED:
        return Bound(
            {"LIST": here + 2 * there, "COPY": changed, "GET": 1 + snapshots, "PUT": 1},
            "as nothing changed, copy each new file, list the copies",
        )
    if step is Step.VERIFY:
        return Bound({"LIST": there, "GET": 1}, "list the objects, read the manifest")
    if step is Step.READ:
        return Bound({"LIST": there, "GET": 1 + needed}, "read each file and the manifest, list the objects")
    return Bound(
        {"LIST": 2 * there, "COPY": needed, "GET": 1},
        "read the manifest, list the objects, copy each file, list the copies",
    )


def _with_packs(
    step: Step, here: int, there: int, *, needed: int, changed: int, snapshots: int, objects: int, apart: int
) -> Bound:
    """As :func:`lower_bound`, where what is needed lies in packs, each read and listed as one object, and apart."""
    if step is Step.FIRST:
        return Bound(
            {"LIST": here, "COPY": apart, "GET": needed - apart, "PUT": objects - apart + 1},
            "list the checkpoint, read each file, write the packs and the manifest",
        )
    if step is Step.NOTHING:
        return Bound(
            {"LIST": here + pages(objects), "GET": 1 + snapshots, "PUT": 1},
            "two listings, the last manifest, a new one",
        )
    if step is Step.SKIPPED:
        return lower_bound(step, files=0, needed=0, changed=0)
    if step is Step.CHANGED:
        return Bound(
            {"LIST": here + pages(objects), "GET": 1 + snapshots + changed, "PUT": 2},
            "as nothing changed, read each new file, write them as one pack",
        )
    if step is Step.VERIFY:
        return Bound({"LIST": pages(objects), "GET": 1}, "list the packs, read the manifest")
    if step is Step.READ:
        return Bound({"LIST": pages(objects), "GET": 1 + objects}, "list and read the packs, read the manifest")
    return Bound(
        {"LIST": pages(objects) + there, "COPY": apart, "GET": 1 + objects - apart, "PUT": needed - apart},
        "read the manifest, list and read the packs, write each file, list what was written",
    )
