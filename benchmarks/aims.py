"""What was aimed at, and what the committed figures say of it: each aim is met, not met, or not measured yet."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.bill import month, of_restic_with_sync, price
from benchmarks.counted import Counted
from benchmarks.prices import STREAMS
from benchmarks.results import Timings, in_words
from benchmarks.steps import Step
from benchmarks.tools import (
    PacksFromShell,
    PacksInProcess,
    PacksLocalFromShell,
    PacksLocalInProcess,
    Restic,
    S5cmd,
    is_ours,
)
from benchmarks.units import plain, seconds, size

#: What a person has found out about an aim that is not met: key of the aim -> a sentence.
REASONS = Path(__file__).with_name("reasons.json")
#: Trees that the aims are about, and the one of those that are about one.
_TREES = ("500", "5000", "50000")
_ONE_TREE = "5000"
#: Bytes that one GET of a restore reads at least, and requests that a first backup makes beside its GETs, at most.
_BYTES_A_GET, _BESIDE_GETS = 4 * 1024**2, 60
_MILLION, _MEMORY, _PACK_TIMES = 1_000_000, 500e6, 4


@dataclass(frozen=True)
class Outcome:
    """An aim beside what was reached.

    :param key: of :data:`REASONS`.
    :param step: what is done.
    :param aim: what was aimed at.
    :param tree: with what it was measured.
    :param reached: what was measured; empty if nothing was yet.
    :param parts: each part that the aim has -> whether it is met.
    :param measured: where the time or the requests are, of a part that is not met.
    """

    key: str
    step: str
    aim: str
    tree: str
    reached: str = ""
    parts: Mapping[str, bool] = field(default_factory=dict)
    measured: str = ""

    @property
    def met(self) -> bool | None:
        """Whether all of it is met; ``None``: it was not measured."""
        return all(self.parts.values()) if self.parts else None

    @property
    def verdict(self) -> str:
        """The same in words."""
        if self.met is None:
            return "not measured"
        if len(set(self.parts.values())) == 1:
            return _word(self.met)
        return ", ".join(f"{name} {_word(met)}" for name, met in self.parts.items())


@dataclass(frozen=True)
class _Timed:
    """An aim about the time of a step.

    :param limits: tool of ours -> the most that its time may be of the other one's.
    :param peer: the other one; ``None``: the fastest that does the same.
    """

    key: str
    step: Step
    words: str
    limits: Mapping[str, float]
    peer: str | None
    local: bool = False


def _both(of: float, *, local: bool = False) -> dict[str, float]:
    kinds = (PacksLocalInProcess, PacksLocalFromShell) if local else (PacksInProcess, PacksFromShell)
    return {kind.name: of for kind in kinds}


_DISK = "local disk to S3"
_TIMED = (
    _Timed("first", Step.FIRST, "S3 to S3", {PacksInProcess.name: 0.6, PacksFromShell.name: 0.7}, S5cmd.name),
    _Timed("first-local", Step.FIRST, _DISK, _both(1.0, local=True), Restic.name, local=True),
    _Timed("changed", Step.CHANGED, "S3 to S3", _both(1.0), None),
    _Timed("changed-local", Step.CHANGED, _DISK, _both(1.0, local=True), None, local=True),
    _Timed("nothing", Step.NOTHING, "without the option, S3 to S3", _both(0.5), None),
    _Timed("nothing-local", Step.NOTHING, f"without the option, {_DISK}", _both(0.5, local=True), None, local=True),
    _Timed("read", Step.READ, "", _both(1.0), Restic.name),
    _Timed("restore", Step.RESTORE, "S3 to S3", _both(0.8), S5cmd.name),
    _Timed("restore-local", Step.RESTORE, "S3 to local disk", _both(1.0, local=True), Restic.name, local=True),
)


def outcomes(timings: Sequence[Timings], counted: Counted | None, memory: Mapping[str, Any] | None) -> list[Outcome]:
    """All aims, in order.

    :param timings: of ``benchmarks.main``.
    :param counted: of ``benchmarks.requests``; ``None``: not measured.
    :param memory: of ``benchmarks.memory``; ``None``: not measured.
    """
    by_name = {timed.name: timed for timed in timings}
    found: list[Outcome] = []
    for aim in _TIMED:
        found += (_of_time(aim, tree, by_name.get(tree), counted) for tree in _TREES)
        if aim.key == "first":
            found += (outcome for tree in _TREES for outcome in (_bill_of_first(counted, tree), _bytes(counted, tree)))
        elif aim.key == "first-local":
            found += (_requests_local(counted, tree) for tree in _TREES)
    return [*found, _first_requests(counted), _restore_requests(counted), *_memory(memory), _month(counted)]


def reasons() -> dict[str, str]:
    """What a person has found out: key of an aim -> a sentence."""
    found: dict[str, str] = json.loads(REASONS.read_text())
    return found


def lines(found: Sequence[Outcome], said: Mapping[str, str]) -> Iterator[str]:
    """The table, and why an aim is not met."""
    yield "| step | with | aim | reached | |"
    yield "|---|---|---|---|---|"
    for outcome in found:
        yield f"| {outcome.step} | {outcome.tree} | {outcome.aim} | {outcome.reached or '-'} | {outcome.verdict} |"
    missed = [outcome for outcome in found if outcome.met is False]
    if missed:
        yield ""
        yield "Where an aim is not met, the figures say where the time, the requests or the bytes are:"
        yield ""
    for outcome in missed:
        beside = [outcome.measured, said.get(outcome.key, "")]
        yield f"* {outcome.step}, {outcome.tree}, {outcome.aim}: {' '.join(text for text in beside if text)}"


def _of_time(aim: _Timed, tree: str, timed: Timings | None, counted: Counted | None) -> Outcome:
    limits = ", ".join(f"{_short(name)} {limit:g}" for name, limit in aim.limits.items())
    alike = set(aim.limits.values())
    most = f"{next(iter(alike)):g}" if len(alike) == 1 else limits
    of = f"{aim.peer}'s time" if aim.peer else "the time of the fastest other"
    step = f"{aim.step}, {aim.words}" if aim.words else str(aim.step)
    blank = Outcome(f"{aim.key} {tree}", step, f"at most {most} of {of}", in_words(tree))
    peer = _peer(aim, timed) if timed else None
    if timed is None or peer is None or not any(timed.of(name, aim.step) for name in aim.limits):
        return blank
    said, parts, measured = [], {}, []
    for name, limit in aim.limits.items():
        if middle := timed.of(name, aim.step):
            ratio, pairs = middle.seconds / peer[1], timed.pairs(name, peer[0], aim.step)
            of_pairs = f" (each round {_range(pairs)})" if len(pairs) > 1 else ""
            said.append(f"{_short(name)} {ratio:.2f}{of_pairs}")
            parts[_short(name)] = ratio <= limit
            if ratio > limit:
                measured += [_spent(timed, counted, tree, each, aim.step) for each in (name, peer[0])]
    reached = f"{', '.join(said)}; {peer[0]} {seconds(peer[1])}"
    return _with(blank, reached, parts, " ".join(dict.fromkeys(measured)))


def _peer(aim: _Timed, timed: Timings) -> tuple[str, float] | None:
    if aim.peer is None:
        return timed.fastest_peer(aim.step, local=aim.local)
    middle = timed.of(aim.peer, aim.step)
    return (aim.peer, middle.seconds) if middle else None


def _spent(timed: Timings, counted: Counted | None, tree: str, tool: str, step: Step) -> str:
    """Where the time of a step is, as far as it was measured."""
    middle = timed.of(tool, step)
    if middle is None:
        return ""
    said = [f"{tool}: {seconds(middle.seconds)}, of which it computed {plain(middle.cpu)} s"]
    total = counted.total(tree, tool, step) if counted else None
    if middle.server is not None:
        each = f", {1000 * middle.server / total:.2f} ms for each of {total:,} requests" if total else ""
        said.append(f"the server computed {plain(middle.server)} s{each}")
    elif total:
        said.append(f"{total:,} requests")
    return f"{'; '.join(said)}."


def _bill_of_first(counted: Counted | None, tree: str) -> Outcome:
    aim = "at most 1/10 of s5cmd's bill"
    blank = Outcome(f"first-bill {tree}", f"{Step.FIRST}, S3 to S3", aim, in_words(tree))
    ours, other = (price(counted, tree, name, Step.FIRST) for name in (PacksInProcess.name, S5cmd.name))
    if ours is None or other is None or counted is None:
        return blank
    reached = f"${ours:.5f} of ${other:.5f}: {ours / other:.3f}"
    return _with(
        blank, reached, {"": ours <= other / 10}, f"{_requests_of(counted, tree, PacksInProcess.name, Step.FIRST)}."
    )


def _bytes(counted: Counted | None, tree: str) -> Outcome:
    aim = "fewer bytes than any other, with manifest and all"
    blank = Outcome(f"first-bytes {tree}", f"{Step.FIRST}, S3 to S3", aim, in_words(tree))
    rows = {name: counted.row(tree, name, Step.FIRST) for name in counted.tools(tree)} if counted else {}
    stored = {name: row["stored_bytes"] for name, row in rows.items() if row and "stored_bytes" in row}
    others = {name: amount for name, amount in stored.items() if not is_ours(name)}
    if PacksInProcess.name not in stored or not others or counted is None:
        return blank
    ours, least = stored[PacksInProcess.name], min(others, key=others.__getitem__)
    held = counted.trees[tree]["held_bytes"]
    measured = f"The contents have {size(held)}; indexes of packs, manifest and the rest have {size(ours - held)}."
    return _with(blank, f"{size(ours)}; {least} {size(others[least])}", {"": ours < others[least]}, measured)


def _requests_local(counted: Counted | None, tree: str) -> Outcome:
    aim = "at most 1 of restic's requests"
    blank = Outcome(f"first-local-requests {tree}", f"{Step.FIRST}, {_DISK}", aim, in_words(tree))
    names = (PacksLocalInProcess.name, Restic.name)
    ours, other = (counted.total(tree, name, Step.FIRST) if counted else None for name in names)
    if counted is None or ours is None or other is None:
        return blank
    said = [f"{name}: {_requests_of(counted, tree, name, Step.FIRST)}." for name in names]
    return _with(blank, f"{ours:,} of {other:,}: {ours / other:.2f}", {"": ours <= other}, " ".join(said))


def _first_requests(counted: Counted | None) -> Outcome:
    aim = f"one GET a file and at most {_BESIDE_GETS} more"
    blank = Outcome("first-requests", f"{Step.FIRST}, S3 to S3", aim, in_words(_ONE_TREE))
    total = counted.total(_ONE_TREE, PacksInProcess.name, Step.FIRST) if counted else None
    if counted is None or total is None:
        return blank
    files = counted.trees[_ONE_TREE]["held_files"]
    reached = f"{total:,} requests for {files:,} files that Spark needs: {total - files} more"
    return _with(
        blank,
        reached,
        {"": total <= files + _BESIDE_GETS},
        f"{_requests_of(counted, _ONE_TREE, PacksInProcess.name, Step.FIRST)}.",
    )


def _restore_requests(counted: Counted | None) -> Outcome:
    aim = "at most one GET for each 4 MiB, one PUT a file"
    blank = Outcome("restore-requests", f"{Step.RESTORE}, S3 to S3", aim, in_words(_ONE_TREE))
    kinds = counted.kinds(_ONE_TREE, PacksInProcess.name, Step.RESTORE) if counted else None
    if counted is None or kinds is None:
        return blank
    facts, row = counted.trees[_ONE_TREE], counted.row(_ONE_TREE, PacksInProcess.name, Step.RESTORE) or {}
    where = row.get("where", {})
    files, gets = facts["held_files"], math.ceil(facts["held_bytes"] / _BYTES_A_GET)
    of_packs, of_files = where.get("GET packs", 0), where.get("PUT restored", 0)
    reached = (
        f"of packs {of_packs} GET for {gets} x 4 MiB, of files {of_files:,} PUT for {files:,}; "
        f"with all that protects the restore {kinds.get('GET', 0)} GET, {kinds.get('PUT', 0):,} PUT"
    )
    parts = {
        "of contents": of_packs <= gets and of_files <= files,
        "of all": kinds.get("GET", 0) <= gets and kinds.get("PUT", 0) <= files,
    }
    said = _requests_of(counted, _ONE_TREE, PacksInProcess.name, Step.RESTORE)
    return _with(blank, reached, parts, f"{said}.")


def _memory(document: Mapping[str, Any] | None) -> Iterator[Outcome]:
    rows = document["rows"] if document else []
    blank = Outcome(
        "memory-million", "memory", "at most 500 MB for a million files", "1,000,000 files that are made up"
    )
    made_up = [row for row in rows if row["store"] == "made up" and row["files"] >= _MILLION and row["format"] == 2]
    if made_up:
        said = ", ".join(f"{row['step']} {size(row['peak'])}" for row in made_up)
        most = max(made_up, key=lambda row: row["peak"])
        bytes_a_file = (most["peak"] - most["before"]) / most["files"]
        measured = f"{most['step']}: {size(most['before'])} before it began, then {bytes_a_file:.0f} bytes a file."
        yield _with(blank, said, {"": most["peak"] <= _MEMORY}, measured)
    else:
        yield blank
    aim = f"packs at most {_PACK_TIMES} times their size, on top of format 1"
    for files in sorted({row["files"] for row in rows if row["store"] == "S3"}) or [0]:
        blank = Outcome(f"memory-packs {files}", "memory", aim, f"{files:,} files on S3" if files else "S3")
        peaks = {(row["step"], row["format"]): row for row in rows if (row["store"], row["files"]) == ("S3", files)}
        sizes, parts = [], {}
        for step in Step:
            one, two = peaks.get((step, 1)), peaks.get((step, 2))
            if document is not None and one and two:
                more, pack = two["peak"] - one["peak"], document["pack_size"]
                both = f"{size(two['peak'])} with packs, {size(one['peak'])} without"
                sizes.append(f"{step} {both}: {more / pack:.1f} packs of {size(pack)}")
                parts[str(step)] = more <= _PACK_TIMES * pack
        yield _with(blank, "; ".join(sizes), parts, "")


def _month(counted: Counted | None) -> Outcome:
    aim = "at most restic's with its sync"
    step = f"bill of {STREAMS} streams, hourly, 1 % changed"
    blank = Outcome("month", step, aim, f"{in_words(_ONE_TREE)} each")
    changed = price(counted, _ONE_TREE, PacksInProcess.name, Step.CHANGED)
    other = of_restic_with_sync(counted, _ONE_TREE, Step.CHANGED)
    if counted is None or changed is None or other is None:
        return blank
    said = _requests_of(counted, _ONE_TREE, PacksInProcess.name, Step.CHANGED)
    reached = f"${month(changed):,.0f} of ${month(other):,.0f} a month: {changed / other:.2f}"
    return _with(blank, reached, {"": changed <= other}, f"{said}.")


def _requests_of(counted: Counted, tree: str, tool: str, step: Step) -> str:
    """The requests of a step by what they are for, or by kind, the most first."""
    row = counted.row(tree, tool, step) or {}
    found = row.get("where") or counted.kinds(tree, tool, step) or {}
    return ", ".join(f"{count:,} {kind}" for kind, count in sorted(found.items(), key=lambda item: -item[1]))


def _with(blank: Outcome, reached: str, parts: Mapping[str, bool], measured: str) -> Outcome:
    missed = not all(parts.values())
    return Outcome(blank.key, blank.step, blank.aim, blank.tree, reached, parts, measured if missed else "")


def _range(ratios: Sequence[float]) -> str:
    return f"{min(ratios):.2f} to {max(ratios):.2f}, median {statistics.median(ratios):.2f}"


def _short(tool: str) -> str:
    return tool.rpartition(", ")[2]


def _word(met: bool) -> str:
    return "met" if met else "**not met**"
