"""Compare repositories of format 1 and 2: ``python -m benchmarks.formats --files 5000``.

Times are taken side by side, each step with one format after the other and in another order in every round; requests
and bytes are counted in one more round, through a gate before the server. Other tools can be asked for by name
(``--peers s5cmd restic``).
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.ground import Ground, warm_up
from benchmarks.page import write_part
from benchmarks.results import KINDS
from benchmarks.sample_tree import SampleTree
from benchmarks.setting import today
from benchmarks.steps import Step
from benchmarks.tools import Format1, Format2, Tool, available
from tests.support.s3_gate import Gate, by_kind
from tests.support.s3_server import S3Server, running_s3_server

#: Tool and step -> seconds of each round; and requests by kind, bytes sent and received by the tool.
Times = dict[tuple[str, Step], list[float]]
Counts = dict[tuple[str, Step], tuple[dict[str, int], int, int]]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, default=5000, help="size of the tree (default: 5000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--peers", nargs="*", default=[], help="parts of names of other tools")
    parser.add_argument("--no-report", action="store_true", help="leave docs/benchmarks.md alone")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        for name in ("server", "timed", "counted"):
            Path(directory, name).mkdir()
        with running_s3_server(Path(directory, "server")) as server:
            tree = SampleTree.of_about(args.files)
            ground, times = timed(server, Path(directory, "timed"), tree, args.rounds, args.peers)
            counts = counted(server, Path(directory, "counted"), tree, args.peers)
    text = report(ground, times, counts, files=args.files, rounds=args.rounds, peers=args.peers)
    print(text)
    if not args.no_report:
        write_part("benchmarks.formats", text)


def tools_for(server: S3Server, scratch: Path, peers: list[str]) -> list[Tool]:
    """Both formats, and the other tools that are available."""
    return [Format1(server, scratch), Format2(server, scratch), *(available(server, scratch, peers) if peers else ())]


def timed(server: S3Server, scratch: Path, tree: SampleTree, rounds: int, peers: list[str]) -> tuple[Ground, Times]:
    """Take every step with every tool in every round."""
    tools = tools_for(server, scratch, peers)
    warm_up(server, scratch, tools)
    ground = Ground(server, scratch, tree, local=any(tool.local for tool in tools))
    times: Times = defaultdict(list)

    def take(tool: Tool, step: Step, work: Callable[[], None]) -> None:
        os.sync()
        began = time.monotonic()
        work()
        times[tool.name, step].append(time.monotonic() - began)
        print(f"{tool.name:26} {step:20} {times[tool.name, step][-1]:8.2f} s", flush=True)

    for number in range(rounds):
        ground.round(tools, list(Step), number, take)
    return ground, times


def counted(server: S3Server, scratch: Path, tree: SampleTree, peers: list[str]) -> Counts:
    """Take every step once, through a gate."""
    gate = Gate(server)
    counts: Counts = {}
    try:
        through = S3Server(urlsplit(gate.endpoint).port or 0, server.pid)
        tools = tools_for(through, scratch, peers)
        ground = Ground(server, scratch, tree, local=any(tool.local for tool in tools))

        def take(tool: Tool, step: Step, work: Callable[[], None]) -> None:
            with gate.watched() as seen:
                work()
            kinds = by_kind(seen)
            sent, received = (sum(getattr(r, name) for r in seen) for name in ("received", "sent"))
            counts[tool.name, step] = ({kind: kinds[kind] for kind in KINDS if kinds[kind]}, sent, received)

        ground.round(tools, list(Step), 0, take)
    finally:
        gate.close()
    return counts


def report(ground: Ground, times: Times, counts: Counts, *, files: int, rounds: int, peers: list[str]) -> str:
    """The tables, in Markdown."""
    facts = ground.facts()
    names = list(dict.fromkeys(name for name, _ in times))
    options = f"--files {files} --rounds {rounds}" + (f" --peers {' '.join(peers)}" if peers else "")
    words = f"""Format 2 puts small files into packs; format 1 stores each as an object of its own. {facts["files"]} files,
        {facts["bytes"] / 1e6:.0f} MB, from one bucket to another bucket of one S3 server (SeaweedFS), in process; {today()},
        {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f} at the end. Seconds: the median of {rounds}, and in brackets
        the least and the most. Where the load is above the number of cores, trust the ratios."""
    lines = [
        "## Formats of the repository",
        "",
        f"    python -m benchmarks.formats {options}",
        "",
        *textwrap.wrap(" ".join(words.split()), 119),
        "",
        f"| step | {' | '.join(names)} | format 2 / format 1 |",
        f"|---|{'---|' * len(names)}---|",
    ]
    for step in Step:
        row = [_time(times.get((name, step), [])) for name in names]
        one, two = (times.get((name, step)) for name in (Format1.name, Format2.name))
        ratio = f"{statistics.median(two) / statistics.median(one):.2f}" if one and two else ""
        lines.append(f"| {step} | {' | '.join(row)} | {ratio} |")
    lines += ["", "Requests, and MB that the tool sent and received:", ""]
    lines += [f"| step | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for step in Step:
        lines.append(f"| {step} | {' | '.join(_count(counts.get((name, step))) for name in names)} |")
    return "\n".join(lines) + "\n"


def _time(seconds: list[float]) -> str:
    if not seconds:
        return ""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


def _count(found: tuple[dict[str, int], int, int] | None) -> str:
    if found is None:
        return ""
    kinds, sent, received = found
    words = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
    return f"{words}; {sent / 1e6:.1f} / {received / 1e6:.1f} MB"


if __name__ == "__main__":
    main()
