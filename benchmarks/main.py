"""Time backups beside other tools, on a real S3 server.

``python -m benchmarks.main --files 500 5000 50000``: starts SeaweedFS, fills it with a sample tree, lets every tool take every
step in every round, in another order each, and keeps the times in benchmarks/results. Rounds are added to those of earlier runs,
as long as code, machine and versions are the same: a long benchmark can be taken in pieces.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import report
from benchmarks.ground import Ground, warm_up
from benchmarks.results import Run, Timings, tree_name
from benchmarks.sample_tree import SampleTree
from benchmarks.setting import Others, cpu, cpu_of, differences, setting, today
from benchmarks.steps import Step
from benchmarks.tools import Tool, available
from tests.support.s3_server import S3Server, running_s3_server


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--files", type=int, nargs="+", default=[5000], help="sizes of the tree (default: 5000)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds to add (default: 5)")
    parser.add_argument(
        "--snapshots", action="store_true", help="of a tree with RocksDB snapshots, not with changelogs alone"
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of tools, or parts of names")
    parser.add_argument(
        "--steps",
        nargs="*",
        type=Step,
        default=list(Step),
        help=f"of {', '.join(map(repr, map(str, Step)))}".replace("%", "%%"),
    )
    parser.add_argument("--anew", action="store_true", help="forget the rounds of earlier runs")
    parser.add_argument("--no-report", action="store_true", help="keep no figures, leave docs/benchmarks.md alone")
    args = parser.parse_args()
    _check_settings(args)
    for files in args.files:
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            for name in ("server", "scratch"):
                Path(directory, name).mkdir()
            with running_s3_server(Path(directory, "server")) as server:
                _measure(server, Path(directory, "scratch"), files, args)
    if not args.no_report:
        report.main()


def _check_settings(args: argparse.Namespace) -> None:
    """Refuse, before hours have gone by, to put rounds beside those of another machine, version or code."""
    with tempfile.TemporaryDirectory() as directory:
        now = setting(available(S3Server(0, 0), Path(directory), args.only))
    for files in args.files:
        name = tree_name(files, snapshots=args.snapshots)
        if (before := _before(name, args)) and (changed := differences(before.setting, now)):
            raise SystemExit(
                f"the rounds of {name} were measured with another {', '.join(changed)}: --anew forgets them"
            )


def _before(name: str, args: argparse.Namespace) -> Timings | None:
    return None if args.anew or args.no_report else Timings.read(name)


def _measure(server: S3Server, scratch: Path, files: int, args: argparse.Namespace) -> None:
    tools = available(server, scratch, args.only, files=files)
    name, now = tree_name(files, snapshots=args.snapshots), setting(tools)
    before = _before(name, args)
    tree = SampleTree.of_about(files, snapshots=args.snapshots)
    warm_up(server, scratch, tools)
    ground = Ground(server, scratch, tree, local=any(tool.local for tool in tools))
    print(f"{ground.files} files, {ground.bytes / 1e6:.1f} MB at {server.endpoint}", flush=True)
    timings = before or Timings(name, ground.facts(), now, [], [])
    timings.setting["versions"] |= now["versions"]
    for _ in range(args.rounds):
        number = len(timings.rounds)
        load, others = os.getloadavg()[0], Others(server.pid)
        runs: list[Run] = []

        def take(tool: Tool, step: Step, work: Callable[[], None], to: list[Run] = runs, number: int = number) -> None:
            os.sync()  # what the one before wrote is not to be waited for by the next
            server_before, cpu_before, began = cpu_of(server.pid), cpu(), time.monotonic()
            work()
            seconds, processor, server_after = time.monotonic() - began, cpu() - cpu_before, cpu_of(server.pid)
            busy = None if server_before is None or server_after is None else round(server_after - server_before, 2)
            to.append(Run(number + 1, tool.name, step, round(seconds, 4), round(processor, 4), busy))
            print(f"round {number + 1}: {tool.name:44} {step:20} {seconds:8.2f} s", flush=True)

        ground.round(tools, args.steps, number, take)
        busy = others.busy()
        timings.runs += runs
        timings.rounds.append(
            {
                "round": number + 1,
                "date": today(),
                "load": round(load, 2),
                "others": None if busy is None else round(busy, 2),
            }
        )
        if not args.no_report:
            timings.write()  # a run that is stopped keeps the rounds it has finished


if __name__ == "__main__":
    main()
