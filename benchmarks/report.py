"""The first part of docs/benchmarks.md, from the committed figures alone: ``python -m benchmarks.report`` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from benchmarks.bounds import MORE_LISTINGS, READS_OF_A_ZIP, pages
from benchmarks.counted import Counted
from benchmarks.curves import curves, slope
from benchmarks.page import write_part
from benchmarks.prices import BACKUPS_A_MONTH, S3, STORES, STREAMS
from benchmarks.results import GROWTH, KINDS, Timings, all_timings, in_words, read
from benchmarks.steps import Step
from benchmarks.tools import ALL, AT_ONCE, OURS, OursInProcess, Restic
from benchmarks.units import plain, seconds, size

Lines = Iterator[str]
#: What ours is measured by: what a task of Airflow pays.
_MAIN = OursInProcess.name
_BACKUPS = (Step.FIRST, Step.NOTHING, Step.CHANGED)


def main() -> None:
    """Write it."""
    write_part("benchmarks.main", text())


def text() -> str:
    """The whole of it."""
    timings, counted = all_timings(), Counted.committed()
    parts = [_head(), _aims(timings, counted), *map(_times, timings), _ways()]
    if counted:
        parts += [_bounds(counted), _requests(counted), _bill(counted)]
    parts += [_growth(timings, counted), _setting(timings)]
    return "\n".join(line for part in parts for line in [*part, ""])


def _head() -> Lines:
    yield "# Benchmarks"
    yield ""
    yield "    make bench"
    yield ""
    yield _prose(
        f"""A checkpoint is copied from one bucket to another bucket of one real S3 server (SeaweedFS), by every tool and
        every step one after the other, in another order in every round. The tables are medians and, in brackets, the
        least and the most; `x` is the ratio to the fastest other tool. {AT_ONCE} requests at once for every tool that
        has a setting for it. What was copied is compared with the source after every first backup, after every backup of
        changes and after every restore; a tool that leaves a file wrong ends the benchmark. The figures are committed
        in `benchmarks/results`; this page and the pictures are made of them alone (`python -m benchmarks.report`,
        `python -m benchmarks.pictures`)."""
    )
    yield ""
    yield _prose(
        """The checkpoint is that of one stateful operator in RocksDB with changelogs of 0.3 to 60 KB, small ones more
        often, and 25 batches. It has no snapshots, so that Spark needs every state file and ours has to copy as many as
        the others: the worst case for ours. Where a tree *with snapshots* is shown, RocksDB has left one at every tenth
        version, as it does with Spark's defaults, and what is older than the newest is not in the closure."""
    )
    yield ""
    yield _prose(
        """`make bench` takes hours, and can be taken in pieces: `python -m benchmarks.main --files 50000 --rounds 1`
        adds a round to those there are, as long as machine, versions and code are the same (`--anew` forgets them);
        `--only` and `--steps` leave things out, `--snapshots` takes the other tree. `python -m benchmarks.requests`
        counts, `python -m benchmarks.growth` measures how costs grow."""
    )


def _aims(timings: Sequence[Timings], counted: Counted | None) -> Lines:
    yield "## Aims, and what was reached"
    yield ""
    yield "| aim | with | reached | |"
    yield "|---|---|---|---|"
    for timed in timings:
        peer = timed.fastest_peer(Step.FIRST)
        ratios = [(name, ratio) for name in OURS if (ratio := timed.ratio(name, Step.FIRST)) is not None]
        if peer and ratios:
            said = ", ".join(f"{_short(name)} {ratio:.2f}" for name, ratio in ratios)
            restic = timed.of(Restic.name, Step.FIRST)
            beside = f"; restic, of a local directory, takes {seconds(restic.seconds)}" if restic else ""
            yield _row(
                "first backup at most 1.0 of the fastest other",
                in_words(timed.name),
                f"{said} ({peer[0]}, {seconds(peer[1])}{beside})",
                _met(ratios[0][1] <= 1.0),
            )
    if counted:
        for tree, facts in counted.trees.items():
            firsts = {tool: counted.row(tree, tool, Step.FIRST) for tool in counted.tools(tree)}
            stored = {tool: row["stored_bytes"] for tool, row in firsts.items() if row}
            least = (
                min((size, tool) for tool, size in stored.items() if tool not in OURS)
                if set(stored) - set(OURS)
                else None
            )
            if _MAIN in stored and least:
                contents = facts["held_bytes"]
                yield _row(
                    "first backup of fewer bytes than any other",
                    in_words(tree),
                    f"{size(stored[_MAIN])}, of which contents {size(contents)}; {least[1]} {size(least[0])}",
                    f"{_met(stored[_MAIN] < least[0])}; of contents alone {_met(contents < least[0])}",
                )
    for timed, step in product(timings, (Step.NOTHING, Step.SKIPPED)):
        ours, own, full = timed.of(_MAIN, step), *map(timed.fastest_peer, (step, Step.FIRST))
        if ours and own and full:
            yield _row(
                f"{step} at most 1/20 of the fastest other",
                in_words(timed.name),
                f"{_part(ours.seconds, own[1])} of what {own[0]} takes when nothing changed;"
                f" {_part(ours.seconds, full[1])} of a full copy by {full[0]}",
                f"{_met(ours.seconds <= own[1] / 20)}; of the full copy {_met(ours.seconds <= full[1] / 20)}",
            )
    if counted:
        for tree in counted.trees:
            over = [
                f"{step} {total - counted.bound(tree, step).total:+}"
                for step in Step
                if (total := counted.total(tree, _MAIN, step)) is not None
            ]
            zips = f", {READS_OF_A_ZIP} for each of {counted.zips(tree):,} zips" if counted.zips(tree) else ""
            more = f"a fixed number more; on a restore {MORE_LISTINGS} more listings of all{zips}"
            yield _row("requests at the lower bound", in_words(tree), ", ".join(over), more)


def _times(timed: Timings) -> Lines:
    last, rounds = timed.rounds[-1], len(timed.rounds)
    yield f"## Times: {in_words(timed.name)}"
    yield ""
    tree = timed.tree
    closure = ""
    if tree["snapshots"]:
        closure = f", of which Spark needs {tree['needed_files']:,} state files, {size(tree['needed_bytes'])}"
    extent = f"{tree['files']:,} files, {size(tree['bytes'])}, {tree['partitions']:,} state partitions{closure}"
    yield f"{extent}. {rounds} round{'s' if rounds > 1 else ''}."
    yield ""
    yield f"![Times, {in_words(timed.name)}](images/bench-times-{timed.name}.png)"
    yield ""
    steps = [step for step in Step if any(timed.of(tool, step) for tool in timed.tools())]
    yield f"| tool | {' | '.join(steps)} | CPU of the first backup |"
    yield f"|---|{'---:|' * (len(steps) + 1)}"
    for tool in timed.tools():
        cells = [_cell(timed, tool, step) for step in steps]
        first = timed.of(tool, Step.FIRST)
        yield f"| {tool} | {' | '.join(cells)} | {seconds(first.cpu) if first else ''} |"
    yield ""
    lost = [
        f"{tool} {middle.runs}"
        for tool in timed.tools()
        if (middle := timed.of(tool, Step.FIRST)) and middle.runs != rounds
    ]
    if lost:
        yield f"Fewer rounds: {', '.join(lost)}."
    left_out = [tool.name for tool in ALL if tool.name not in timed.tools()] + [str(s) for s in Step if s not in steps]
    if left_out:
        yield f"Not measured with this tree: {', '.join(left_out)}."
        yield ""
    busy = [entry["others"] for entry in timed.rounds if entry["others"] is not None]
    said = f"; other programs kept {min(busy):.2f} to {max(busy):.2f} processors busy while a round ran" if busy else ""
    first = timed.rounds[0]["load"]
    yield f"Measured {_dates(timed)}. Load average {first:.1f} before the first round, {last['load']:.1f} before the last{said}."


def _cell(timed: Timings, tool: str, step: Step) -> str:
    middle, ratio = timed.of(tool, step), timed.ratio(tool, step)
    if middle is None:
        return "-"
    beside = f" **{ratio:.2f} x**" if ratio is not None else ""
    spread = f" ({plain(middle.least)} to {plain(middle.most)})" if middle.runs > 1 else ""
    return f"{seconds(middle.seconds)}{spread}{beside}"


def _ways() -> Lines:
    yield "## What each step is, and what is not alike"
    yield ""
    yield f"| tool | {' | '.join(Step)} |"
    yield f"|---|{'---|' * len(Step)}"
    for kind in ALL:
        yield f"| {kind.name} | {' | '.join(kind.ways.get(step, '-') for step in Step)} |"
    yield ""
    yield _prose(
        """* Ours lists, copies, compares every checksum with the listed one, leaves out what Spark does not need, and writes a
        manifest: every backup stays, and is whole to restore. s5cmd, rclone, aws and s3fs keep one copy, which the next run
        writes over: returning to an earlier one is not possible with them."""
    )
    yield _prose(
        """* *Nothing committed* is an option of ours, for schedules that are tighter than the stream: the newest commit is that
        of the newest backup, and none is made. It is shown beside what the others take when nothing has changed. restic has
        such an option from version 0.17 on."""
    )
    yield _prose(
        """* **restic cannot read from a bucket.** It is given the same tree in a local directory, and restores to one;
        getting the files there is not in its times, nor in its counts, and neither is `restic init`. It packs small
        files into few big objects, so it makes few requests; every byte passes through the client, and is encrypted.
        For its backups and restores it is not among the tools that `x` is the ratio to."""
    )
    yield _prose(
        """* The *verify* of s5cmd, aws and rclone is a comparison with the source, which has to be there and unchanged
        still; ours and restic's need the repository alone. s5cmd and aws compare sizes and times and cannot read
        contents. s3fs has no second run and no check: it copies everything again."""
    )
    yield _prose(
        """* *In process* is what a task of Airflow pays, modules loaded already; *from shell* has Python's start in it. The
        others are programs started from a shell, but for s3fs, which is in process too."""
    )


def _bounds(counted: Counted) -> Lines:
    yield "## Requests of ours beside the lower bound"
    yield ""
    yield _prose(
        """Counted by a gate before the server, in a run of its own. The bound is what a backup that copies within the
        store and knows that it is right cannot do without: a LIST for each 1,000 names, a COPY for each file. What
        is added is the same however many files there are: the repository's marker, lease and claim (so that no
        prune and no second backup runs meanwhile), the newest logs, a check whether history was rewritten; on a
        restore the seal and the order of writes. With snapshots, a backup has to read each partition's zip to know what
        belongs to it, and keeps what it has read under its SHA-256; a restore reads it
        three times. A restore also lists twice what the bound lists once: the objects for the plan and again when it is
        carried out, the target after the writing and again before the seal is lifted."""
    )
    yield ""
    yield f"| step | what the bound is | {' | '.join(in_words(tree) for tree in counted.trees)} |"
    yield f"|---|---|{'---:|' * len(counted.trees)}"
    for step in Step:
        cells = []
        for tree in counted.trees:
            total, bound = counted.total(tree, _MAIN, step), counted.bound(tree, step).total
            cells.append("-" if total is None else f"{total:,} = {bound:,} + {total - bound}")
        yield f"| {step} | {counted.bound(counted.main_tree(), step).words} | {' | '.join(cells)} |"


def _requests(counted: Counted) -> Lines:
    tree = counted.main_tree()
    yield f"## Requests and bytes: {in_words(tree)}"
    yield ""
    yield "![Requests and bytes](images/bench-requests.png)"
    yield ""
    yield _prose(
        """Bytes are those of bodies, to and from the server; what the server copies by itself passes through no client. *Left*
        is what the target holds after the step, manifests and all."""
    )
    yield ""
    yield f"| tool | step | {' | '.join(KINDS)} | all | to the server | from the server | left |"
    yield f"|---|---|{'---:|' * (len(KINDS) + 4)}"
    for tool in counted.tools(tree):
        for step in Step:
            row = counted.row(tree, tool, step)
            if not row:
                continue
            kinds = (f"{row[kind]:,}" if row[kind] else "" for kind in KINDS)
            left = f"{row['stored_files']:,} files, {size(row['stored_bytes'])}" if "stored_bytes" in row else ""
            total = counted.total(tree, tool, step)
            yield _row(tool, step, *kinds, f"{total:,}", size(row["received"]), size(row["sent"]), left)
    others = [name for name in counted.trees if name != tree]
    if others:
        yield ""
        yield "With the other trees, all requests and what is left after the first backup:"
        yield ""
        yield f"| tree | tool | {' | '.join(Step)} | left |"
        yield f"|---|---|{'---:|' * (len(Step) + 1)}"
    for name in others:
        for tool in counted.tools(name):
            totals = [counted.total(name, tool, step) for step in Step]
            cells = " | ".join("-" if total is None else f"{total:,}" for total in totals)
            first = counted.row(name, tool, Step.FIRST) or {}
            yield f"| {in_words(name)} | {tool} | {cells} | {size(first['stored_bytes'])} |"


def _bill(counted: Counted) -> Lines:
    yield "## The bill for requests"
    yield ""
    prices = "; ".join(
        f"{p.store}: ${p.writing:g} for 1,000 PUT, COPY, POST or LIST, ${p.reading:g} for 1,000 GET or HEAD, DELETE free"
        f" (as of {p.published})"
        for p in STORES
    )
    yield _prose(
        f"""At list prices ({prices}; `benchmarks/prices.py`, to be edited), which come to the same sums in both stores. The
        last column is a month of hourly backups of {STREAMS} streams of which 1 % has changed each time. What is stored
        is not in it, nor bytes that leave a region."""
    )
    yield ""
    yield "| tree | tool | first backup | nothing changed | 1 % changed | month |"
    yield "|---|---|---:|---:|---:|---:|"
    for tree, facts in counted.trees.items():
        for tool in counted.tools(tree):
            dollars = [_price(counted, tree, tool, step) for step in _BACKUPS]
            # A tool without a second run copies all again.
            first, nothing, changed = (d if d is not None else dollars[0] or 0.0 for d in dollars)
            cells = (f"${dollars:.5f}" for dollars in (first, nothing, changed))
            yield _row(in_words(tree), tool, *cells, f"${changed * BACKUPS_A_MONTH:,.0f}")
        if Restic.name in counted.tools(tree):
            fetched = [_fetched(facts, step) for step in _BACKUPS]
            sums = [
                (_price(counted, tree, Restic.name, step) or 0.0) + more
                for step, more in zip(_BACKUPS, fetched, strict=True)
            ]
            name = "restic, and a sync of the bucket to its directory"
            yield _row(
                in_words(tree), name, *(f"${dollars:.5f}" for dollars in sums), f"${sums[2] * BACKUPS_A_MONTH:,.0f}"
            )


def _price(counted: Counted, tree: str, tool: str, step: Step) -> float | None:
    kinds = counted.kinds(tree, tool, step)
    return S3.dollars(kinds) if kinds is not None else None


def _fetched(facts: Mapping[str, Any], step: Step) -> float:
    """What it costs to bring a directory up to date: a listing, and a GET for each file that is new."""
    new = {Step.FIRST: facts["files"], Step.NOTHING: 0, Step.CHANGED: facts["changed"]}[step]
    return S3.dollars({"LIST": pages(facts["files"]), "GET": new})


def _growth(timings: Sequence[Timings], counted: Counted | None) -> Lines:
    yield "## How costs grow"
    yield ""
    yield "![Growth](images/bench-growth.png)"
    yield ""
    yield _prose(
        """Ours, in process. The exponent is the slope of the straight line that fits best through the points on logarithmic
        scales: 1 grows as what it depends on, 0 does not grow."""
    )
    yield ""
    yield "| grows with | step | seconds | exponent | requests | exponent |"
    yield "|---|---|---|---:|---|---:|"
    for curve in curves(timings, counted):
        times = ", ".join(f"{x:,}: {plain(y)}" for x, y in curve.seconds)
        asked = ", ".join(f"{x:,}: {y:,}" for x, y in curve.requests)
        exponents = _exponent(curve.seconds), _exponent(curve.requests)
        yield _row(curve.grows, curve.step, times, exponents[0], asked, exponents[1])
    document = read(GROWTH)
    if document:
        yield ""
        yield (
            f"History and partitions with {document['files']:,} state files, medians of {document['repeats']} runs,"
            f" measured {document['date']}; in the history, 1 % of the files are new in every backup. Files: the tables above."
        )


def _setting(timings: Sequence[Timings]) -> Lines:
    yield "## Machine and versions"
    yield ""
    for machine in dict.fromkeys(timed.setting["machine"] for timed in timings):
        yield _prose(
            f"""{machine}. Server and tools share it, so what costs the server costs every tool: on a local server there is no
            network to wait for, and requests at once matter less than on a distant one."""
        )
    versions = {name: known for timed in timings for name, known in timed.setting["versions"].items()}
    if versions:
        yield f"Versions: {', '.join(f'{name} {known}' for name, known in versions.items() if name not in OURS)}."


def _exponent(points: Sequence[tuple[float, float]]) -> str:
    if len({x for x, _ in points}) < 2:
        return "-"
    return f"{slope(points):.2f}"


def _short(tool: str) -> str:
    return tool.rpartition(", ")[2]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _prose(text: str) -> str:
    """A paragraph of Markdown on one line."""
    return " ".join(text.split())


def _met(met: bool) -> str:
    return "met" if met else "**not met**"


def _part(ours: float, other: float) -> str:
    return f"1/{other / ours:.1f}" if ours <= other else f"{ours / other:.2f}"


def _dates(timed: Timings) -> str:
    dates = list(dict.fromkeys(entry["date"] for entry in timed.rounds))
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


if __name__ == "__main__":
    main()
