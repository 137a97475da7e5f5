"""The first part of docs/benchmarks.md, from the committed figures alone: ``python -m benchmarks.report`` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import aims
from benchmarks.bill import BACKUPS, month, of_restic_with_sync, price
from benchmarks.counted import Counted
from benchmarks.curves import (
    COSTS,
    GROWS,
    HISTORY_FILES,
    OF_OLD,
    PARTITION_FILES,
    STREAM_FILES,
    Points,
    curves,
    fleets,
    slope,
)
from benchmarks.page import write_part
from benchmarks.prices import STORES, STREAMS
from benchmarks.results import GROWTH, KINDS, MEMORY, Timings, all_timings, in_words, read
from benchmarks.steps import Step
from benchmarks.tools import ALL, AT_ONCE, MANY, OursInProcess, PacksInProcess, Restic, is_ours
from benchmarks.units import plain, seconds, size

Lines = Iterator[str]


def main() -> None:
    """Write it."""
    write_part("benchmarks.main", text())


def text() -> str:
    """The whole of it."""
    timings, counted = all_timings(), Counted.committed()
    parts = [_head(), _aims(timings, counted), *map(_times, timings), _ways()]
    if counted:
        parts += [_bounds(counted), _requests(counted), _bill(counted)]
    parts += [_growth(timings, counted), _memory(), _setting(timings)]
    return "\n".join(line for part in parts for line in [*part, ""])


def _head() -> Lines:
    yield "# Benchmarks"
    yield ""
    yield "    make bench"
    yield ""
    yield _prose(
        f"""A checkpoint is copied from one bucket to another bucket of one real S3 server (SeaweedFS), by every tool and
        every step one after the other, in another order in every round. The tables are medians and, in brackets, the
        least and the most; `x` is the ratio to the fastest other tool that does the same. {AT_ONCE} requests at once
        for every tool that has a setting for it. What was copied is compared with the source after every first backup,
        after every backup of changes and after every restore; a tool that leaves a file wrong ends the benchmark. The
        figures are committed in `benchmarks/results`; this page and the pictures are made of them alone
        (`make bench-page`)."""
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
        counts, `python -m benchmarks.growth` measures how costs grow, `python -m benchmarks.memory` how much memory a
        million files and packs need."""
    )
    yield ""
    yield _prose(
        """*Packs* are repositories of format 2: small files lie together in objects of about 16 MiB, see
        [packs](howto/packs.md). Without the word a repository has format 1: each file is an object of its own, and the
        store copies it."""
    )


def _aims(timings: Sequence[Timings], counted: Counted | None) -> Lines:
    yield "## Aims, and what was reached"
    yield ""
    yield _prose(
        """Each number is the median of the rounds beside that of the other tool, and the ratio within each round. Trees
        on HDFS are not measured: *local disk* stands for what is read by the machine that takes the backup."""
    )
    yield ""
    yield from aims.lines(aims.outcomes(timings, counted, read(MEMORY)), aims.reasons())


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
    yield f"| tool | {' | '.join(steps)} | CPU of the first backup | CPU of the server |"
    yield f"|---|{'---:|' * (len(steps) + 2)}"
    for tool in timed.tools():
        cells = [_cell(timed, tool, step) for step in steps]
        first = timed.of(tool, Step.FIRST)
        own = seconds(first.cpu) if first else ""
        server = seconds(first.server) if first and first.server is not None else "-"
        yield f"| {tool} | {' | '.join(cells)} | {own} | {server} |"
    yield ""
    lost = [
        f"{tool} {middle.runs}"
        for tool in timed.tools()
        if (middle := timed.of(tool, Step.FIRST)) and middle.runs != rounds
    ]
    if lost:
        yield f"Fewer rounds: {', '.join(lost)}."
    left_out = [kind.name for kind in ALL if kind.name not in timed.tools() and not _too_slow(timed, kind.few_files)]
    left_out += [str(step) for step in Step if step not in steps]
    if left_out:
        yield f"Not measured with this tree: {'; '.join(left_out)}."
        yield ""
    slow = [kind.name for kind in ALL if kind.name not in timed.tools() and _too_slow(timed, kind.few_files)]
    if slow:
        yield f"Only measured with up to {MANY:,} files: {'; '.join(slow)}."
        yield ""
    busy = [entry["others"] for entry in timed.rounds if entry["others"] is not None]
    said = f"; other programs kept {min(busy):.2f} to {max(busy):.2f} processors busy while a round ran" if busy else ""
    first = timed.rounds[0]["load"]
    yield f"Measured {_dates(timed)}. Load average {first:.1f} before the first round, {last['load']:.1f} before the last{said}."


def _too_slow(timed: Timings, few_files: bool) -> bool:
    return few_files and timed.tree["files"] > MANY


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
        """* Ours lists, copies, compares every checksum with the listed one, leaves out what Spark does not need, and
        writes a manifest; with packs it reads each file and writes the packs itself. Every backup stays, and is whole to
        restore. s5cmd, rclone, aws and s3fs keep one copy, which the next run writes over: returning to an earlier one
        is not possible with them."""
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
        Ours of a *local disk* does the same: their backups and restores are compared with each other, and those of the
        other tools among themselves."""
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
        """Counted by a gate before the server, in a run of its own. The bound is what a backup that knows that it is right
        cannot do without: a LIST for each 1,000 names; in format 1 a COPY for each file; with packs a GET for each file
        and a PUT for each 16 MiB, and a COPY for the few files with which a backup of a big tree tries both ways. What is
        added is the same however many files there are: the repository's marker,
        lease and claim (so that no prune and no second backup runs meanwhile), the newest logs, a check whether history
        was rewritten; on a restore the seal and the order of writes. A step that takes long also renews its lease: of
        50,000 files, which the gate makes slow, that is 3 to 18 requests. With snapshots, a backup has to read each
        partition's zip to know what belongs to it, and keeps what it has read under its SHA-256; a restore of format 1
        reads it three times. A restore also lists twice what the bound lists once: the objects for the plan and again
        when it is carried out, the target after the writing and again before the seal is lifted."""
    )
    for name in (PacksInProcess.name, OursInProcess.name):
        trees = [tree for tree in counted.trees if name in counted.tools(tree)]
        if not trees:
            continue
        yield ""
        yield f"| {name}: step | what the bound is | {' | '.join(map(in_words, trees))} |"
        yield f"|---|---|{'---:|' * len(trees)}"
        for step in Step:
            cells = []
            for tree in trees:
                total, bound = counted.total(tree, name, step), counted.bound(tree, name, step).total
                cells.append("-" if total is None else f"{total:,} = {bound:,} + {total - bound}")
            yield f"| {step} | {counted.bound(trees[0], name, step).words} | {' | '.join(cells)} |"


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
    yield from _what_for(counted, tree)


def _what_for(counted: Counted, tree: str) -> Lines:
    rows = [(step, counted.row(tree, PacksInProcess.name, step)) for step in Step]
    known = [(step, row["where"]) for step, row in rows if row and "where" in row]
    if known:
        yield ""
        yield f"What the requests of *{PacksInProcess.name}* are for, with {in_words(tree)}:"
        yield ""
        yield "| step | requests |"
        yield "|---|---|"
    for step, where in known:
        yield _row(step, ", ".join(f"{count:,} {what}" for what, count in where.items()))


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
    for tree in counted.trees:
        for tool in counted.tools(tree):
            dollars = [price(counted, tree, tool, step) for step in BACKUPS]
            # A tool without a second run copies all again.
            yield _row(in_words(tree), tool, *_dollars([d if d is not None else dollars[0] or 0.0 for d in dollars]))
        sums = [of_restic_with_sync(counted, tree, step) for step in BACKUPS]
        if None not in sums:
            name = f"{Restic.name}, and a sync of the bucket to its directory"
            yield _row(in_words(tree), name, *_dollars([each or 0.0 for each in sums]))


def _dollars(of_backups: Sequence[float]) -> list[str]:
    return [*(f"${each:.5f}" for each in of_backups), f"${month(of_backups[-1]):,.0f}"]


def _growth(timings: Sequence[Timings], counted: Counted | None) -> Lines:
    yield "## How costs grow"
    yield ""
    found, document = list(curves()), read(GROWTH)
    if not found or document is None:
        yield "Not measured yet: `python -m benchmarks.growth`."
        return
    yield "![Growth](images/bench-growth.png)"
    yield ""
    dates = sorted({row["date"] for row in document["rows"]})
    yield _prose(
        f"""{PacksInProcess.name}. The exponent is the slope of the straight line that fits best through the points on
        logarithmic scales: 1 grows as what it depends on, 0 does not grow. Seconds are medians of runs in one process;
        requests, bytes of bodies both ways, and the most memory are those of a run in a process of its own. The
        checkpoint has {HISTORY_FILES} state files where backups are added, of which 1 % are new in each, and
        {STREAM_FILES} where other streams are; {PARTITION_FILES:,} where the partitions are more. Measured
        {dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"} on {document["setting"]["machine"]}.
        {document.get("note", "")}"""
    )
    for grows, words in GROWS.items():
        mine = [curve for curve in found if curve.grows == grows]
        if not mine:
            continue
        yield ""
        yield f"| by {words}: step | {' | '.join(f'{cost} | exponent' for cost in COSTS)} |"
        yield f"|---|{'---|---:|' * len(COSTS)}"
        for curve in mine:
            cells = []
            for cost in COSTS:
                points: Points = getattr(curve, cost)
                cells += [", ".join(f"{x:,}: {_amount(cost, y)}" for x, y in points), _exponent(points)]
            yield _row(curve.step, *cells)
        if grows in OF_OLD:
            yield ""
            yield _prose(_growing(words, [(curve.step, curve.requests) for curve in mine]))
    yield from _fleets(timings, counted)


def _growing(words: str, requests: Sequence[tuple[Step, Points]]) -> str:
    """Which steps make more requests with more of what no step asks for."""
    more = [
        f"{step} ({points[-1][1] - points[0][1]:+,.0f} from {points[0][0]:,} to {points[-1][0]:,}, exponent {slope(points):.2f})"
        for step, points in requests
        if len(points) > 1 and points[-1][1] > points[0][1]
    ]
    if not more:
        return f"No step makes more requests with more {words}."
    return f"Steps that make more requests with more {words}: {', '.join(more)}. A listing has a page for 1,000 names."


def _fleets(timings: Sequence[Timings], counted: Counted | None) -> Lines:
    tree = counted.main_tree() if counted else ""
    found = list(fleets(timings, counted, tree))
    if not found:
        return
    yield ""
    yield _prose(
        f"""Streams beyond what one machine holds are a model: an hour of backups of streams of {in_words(tree)} each, of
        which 1 % has changed. What one backup costs was measured (the tables above) and is multiplied, so every exponent
        is 1; that it costs the same beside other streams in the repository is measured by the streams above. *Workers*
        is how many backups run at once on average."""
    )
    yield ""
    yield "| streams | requests an hour | bytes an hour | seconds an hour | workers | memory of each | requests, a month |"
    yield "|---:|---:|---:|---:|---:|---:|---:|"
    for fleet in found:
        memory = size(fleet.memory) if fleet.memory is not None else "-"
        busy = f"{fleet.seconds / 3600:.3f}"
        amounts = (
            f"{fleet.requests:,}",
            size(fleet.bytes),
            f"{fleet.seconds:,.1f}",
            busy,
            memory,
            f"${fleet.dollars:,.2f}",
        )
        yield _row(f"{fleet.streams:,}", *amounts)


def _memory() -> Lines:
    document = read(MEMORY)
    yield "## Memory"
    yield ""
    if document is None:
        yield "Not measured yet: `python -m benchmarks.memory`."
        return
    yield _prose(
        f"""The most memory that a process has had, in a process of its own. *Made up*: a store that makes up names and
        contents (300 to 600 bytes) of files as they are asked for; logs, manifests and packs are really written. Measured
        {document["date"]}."""
    )
    yield ""
    yield "| store | files | format | step | before the step | at most | bytes a file |"
    yield "|---|---:|---:|---|---:|---:|---:|"
    for row in document["rows"]:
        each = f"{(row['peak'] - row['before']) / row['files']:,.0f}"
        sizes = size(row["before"]), size(row["peak"]), each
        yield _row(row["store"], f"{row['files']:,}", str(row["format"]), row["step"], *sizes)


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
        yield f"Versions: {', '.join(f'{name} {known}' for name, known in versions.items() if not is_ours(name))}."


def _exponent(points: Sequence[tuple[float, float]]) -> str:
    if len({x for x, _ in points}) < 2:
        return "-"
    return f"{slope(points):.2f}"


def _amount(cost: str, value: float) -> str:
    if cost == "seconds":
        return plain(value)
    return f"{value:,.0f}" if cost == "requests" else size(value)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _prose(text: str) -> str:
    """A paragraph of Markdown on one line."""
    return " ".join(text.split())


def _dates(timed: Timings) -> str:
    dates = list(dict.fromkeys(entry["date"] for entry in timed.rounds))
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"


if __name__ == "__main__":
    main()
