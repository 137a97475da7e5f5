"""Count what every tool asks of the server: ``python -m benchmarks.requests --files 500 5000``.

A gate before the server counts requests, by kind, and bytes of bodies, both ways. It is slow, so no time is taken here. What the
server copies by itself passes through no client; the bytes that a tool leaves in its target are counted apart.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from airflow_ckpt_provider.backup.repository import Repository
from benchmarks import report
from benchmarks.ground import Ground
from benchmarks.results import KINDS, REQUESTS, read, tree_name, write
from benchmarks.sample_tree import SampleTree
from benchmarks.setting import setting, today
from benchmarks.steps import Step
from benchmarks.tools import Tool, available, is_ours
from tests.support.s3_gate import Gate, Request, by_kind
from tests.support.s3_server import S3Server, running_s3_server


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--files", type=int, nargs="+", default=[5000], help="sizes of the tree (default: 5000)")
    parser.add_argument(
        "--snapshots", action="store_true", help="of a tree with RocksDB snapshots, not with changelogs alone"
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of tools, or parts of names")
    args = parser.parse_args()
    for files in args.files:
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            for name in ("server", "scratch"):
                Path(directory, name).mkdir()
            with running_s3_server(Path(directory, "server")) as server:
                tree = SampleTree.of_about(files, snapshots=args.snapshots)
                name = tree_name(files, snapshots=args.snapshots)
                keep(name, *count(server, Path(directory, "scratch"), tree, args.only))
    report.main()


def count(
    server: S3Server, scratch: Path, tree: SampleTree, only: list[str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Let every tool take every step once, through a gate; the tree, and a row for each step."""
    gate = Gate(server)
    rows: list[dict[str, Any]] = []
    holds: dict[str, int] = {}
    try:
        through = S3Server(urlsplit(gate.endpoint).port or 0, server.pid)
        tools = available(through, scratch, only, files=tree.partitions * tree.batches)
        ground = Ground(server, scratch, tree, local=any(tool.local for tool in tools))

        def take(tool: Tool, step: Step, work: Callable[[], None]) -> None:
            with gate.watched() as seen:
                work()
            kinds = by_kind(seen)
            if unknown := kinds.keys() - set(KINDS):
                raise AssertionError(f"{tool.name} made requests of kind {unknown}")
            failed = [str(request) for request in seen if request.status >= 500 or not request.status]
            if failed:
                raise AssertionError(f"{tool.name}, {step}: the server failed {len(failed)} times, such as {failed[0]}")
            row: dict[str, Any] = {"tool": tool.name, "step": step, **{kind: kinds[kind] for kind in KINDS}}
            row |= {
                "received": sum(request.received for request in seen),
                "sent": sum(request.sent for request in seen),
            }
            if tool.ours:
                row["where"] = where(seen)
            rows.append(row)
            print(f"{tool.name:44} {step:20} {len(seen):7} requests: {dict(kinds)}", flush=True)

        def left(tool: Tool, target: str) -> None:
            files = ground.place(target).walk()
            rows[-1] |= {"stored_files": len(files), "stored_bytes": sum(file.size for file in files.values())}
            if tool.ours and not holds:  # as it was at first
                held = Repository.open(ground.place(target)).manifest("latest")
                holds.update(held_files=len(held.files), held_bytes=held.bytes)

        ground.round(tools, list(Step), 0, take, left)
    finally:
        gate.close()
    changed = set(tree.changed_paths(0)) & set(tree.needed())
    facts = ground.facts() | holds | {"changed": len(changed), "date": today(), **setting(tools)}
    return facts, rows


def where(seen: Iterable[Request]) -> dict[str, int]:
    """How many requests of ours there were by kind and by what they are for, the most first.

    A checkpoint and what is restored have no name for it; of the repository it is the directory, or packs.
    """
    found = Counter(f"{request.kind} {_part(request)}" for request in seen)
    return dict(found.most_common())


def _part(request: Request) -> str:
    bucket, _, key = request.path.lstrip("/").partition("/")
    kind = bucket.partition("-")[0]
    if kind != "target":
        return {"source": "checkpoint", "restored": "restored"}.get(kind, kind)
    listed = parse_qs(request.query).get("prefix", [""])[0]
    path = (key or listed).partition("orders/")[2]
    if ".pack" in path:
        return "packs"
    return path.partition("/")[0] if "/" in path else "repository"


def keep(name: str, facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Put the counts in the place of earlier ones of the same tools with the same tree."""
    found = read(REQUESTS) or {"trees": {}, "rows": []}
    fresh = {row["tool"] for row in rows}
    before = found["trees"].get(name)
    is_stale = before is not None and before["code"] != facts["code"]

    def stays(row: dict[str, Any]) -> bool:
        if row["tree"] != name:
            return True
        return row["tool"] not in fresh and not (is_stale and is_ours(row["tool"]))

    kept = [row for row in found["rows"] if stays(row)]
    if before:
        facts = before | facts | {"versions": before["versions"] | facts["versions"]}
    trees = found["trees"] | {name: facts}
    rows = kept + [{"tree": name, **row} for row in rows]
    order = {
        tree: number for number, tree in enumerate(sorted(trees, key=lambda t: (t.endswith("s"), trees[t]["files"])))
    }
    write(REQUESTS, {"trees": trees, "rows": sorted(rows, key=lambda row: order[row["tree"]])})


if __name__ == "__main__":
    main()
