"""Where the tools compete: a checkpoint in a bucket and in a directory, targets, and the check of what was left."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Any

import botocore.session

from airflow_ckpt_provider.backup.content_checks import structure_damage
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.packs import file_of
from airflow_ckpt_provider.storage.store import StoredFile
from benchmarks.sample_tree import SampleTree
from benchmarks.steps import Step
from benchmarks.tools import AT_ONCE, Tool
from tests.support.s3_server import ADMIN, REGION, S3Server

#: Takes a step: the tool, the step, and what does it.
Take = Callable[[Tool, Step, Callable[[], None]], None]


class Ground:
    """A checkpoint on an S3 server, filled once for all rounds.

    :param server: the server.
    :param scratch: an empty directory.
    :param tree: the checkpoint.
    :param local: whether it is wanted in a directory as well.
    """

    def __init__(self, server: S3Server, scratch: Path, tree: SampleTree, *, local: bool) -> None:
        self.server = server
        self.scratch = scratch
        self.tree = tree
        self.source = f"{server.make_bucket('source')}/checkpoints/orders"
        self._source = self.place(self.source)
        self.directory = scratch / "checkpoints" / "orders" if local else None
        self.files = self.bytes = 0
        self._listed: Mapping[str, StoredFile] | None = None
        #: What each tool has copied last, by its name.
        self._copied: dict[str, Mapping[str, StoredFile]] = {}
        self._numbers = count()
        files = iter(tree.files())
        with ThreadPoolExecutor(AT_ONCE) as pool:
            while some := list(islice(files, 1000)):  # not all contents in memory at once
                sizes = list(pool.map(lambda file: self._put(*file), some))
                self.files += len(sizes)
                self.bytes += sum(sizes)

    @cached_property
    def needed(self) -> dict[str, int]:
        """The state files that Spark needs, and their sizes, as they were at first."""
        listed = self.listed()
        return {path: listed[path].size for path in self.tree.needed()}

    def facts(self) -> dict[str, Any]:
        """The tree, for the results."""
        return {
            "files": self.files,
            "bytes": self.bytes,
            "needed_files": len(self.needed),
            "needed_bytes": sum(self.needed.values()),
            "partitions": self.tree.partitions,
            "batches": self.tree.batches,
            "snapshots": list(self.tree.snapshots),
        }

    def place(self, path: str) -> Location:
        """A ``bucket/prefix`` of the server."""
        return open_location(f"s3://{path}", storage_options=self.server.options())

    def listed(self) -> Mapping[str, StoredFile]:
        """What the checkpoint holds."""
        if self._listed is None:
            self._listed = self._source.walk()
        return self._listed

    def change(self, number: int, *, waits: bool = True) -> list[str]:
        """Replace a share of the state files; others for each number.

        :param waits: until the second is over: aws and s5cmd compare times in whole seconds.
        """
        changed = self.tree.changed_paths(number)
        if waits:
            time.sleep(1.1)
        for path in changed:
            self._put(path, self.tree.changelog(path, number + 1))
        self._listed = None
        return changed

    def round(
        self,
        tools: Sequence[Tool],
        steps: Sequence[Step],
        number: int,
        take: Take,
        left: Callable[[Tool, str], None] = lambda tool, target: None,
    ) -> None:
        """Let every tool take every step, each step by all tools one after the other, in another order for each number.

        :param number: of the round, from 0 on.
        :param take: takes a step.
        :param left: called with each tool's target after a step that wrote there.
        """
        shift = number % len(tools)
        order = [*tools[shift:], *tools[:shift]][:: -1 if number % 2 else 1]
        targets = {tool.name: self.new_bucket("target") + "/orders" for tool in order}
        sources = {tool.name: str(self.directory) if tool.local else self.source for tool in order}
        for step in Step:
            if step not in steps and step is not Step.FIRST:
                continue
            if step is Step.CHANGED:
                self.change(number)
            for tool in order:
                if step in tool.ways:
                    self._step(tool, step, sources[tool.name], targets[tool.name], take)
                    if step in (Step.FIRST, Step.CHANGED):
                        left(tool, targets[tool.name])
        for target in targets.values():
            self.drop(target)

    def _step(self, tool: Tool, step: Step, source: str, target: str, take: Take) -> None:
        if step is Step.FIRST:
            tool.begin(target)
        back = self._new_back(tool) if step is Step.RESTORE else ""
        take(tool, step, lambda: tool.take(step, source, target, back))
        if step in (Step.FIRST, Step.CHANGED):
            wrong = self._wrong(tool, target)
            self._copied[tool.name] = self.listed()
        elif step is Step.RESTORE:
            wrong = self._wrong_back(tool, back)
            self.drop(back)
        else:
            wrong = set()
        if wrong:  # a tool that skips a part of the work is fast, too
            raise AssertionError(f"{tool.name}, {step}: {len(wrong)} files are wrong, such as {sorted(wrong)[:3]}")

    def _put(self, path: str, content: bytes) -> int:
        self._source.replace(path, content)
        if self.directory:
            file = self.directory / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)
        return len(content)

    def new_bucket(self, kind: str) -> str:
        bucket = self.server.make_bucket(kind)
        # The first write into a bucket makes the server allocate space, which no tool causes.
        self.place(bucket).create("warm", b"x")
        return bucket

    def _new_back(self, tool: Tool) -> str:
        if tool.local:
            return str(self.scratch / f"restored-{next(self._numbers)}")
        return self.new_bucket("restored") + "/orders"

    def drop(self, place: str) -> None:
        """Remove a bucket, all at once, or a directory."""
        if place.startswith("/"):
            shutil.rmtree(place)
            return
        client = botocore.session.get_session().create_client(
            "s3",
            endpoint_url=self.server.endpoint,
            region_name=REGION,
            aws_access_key_id=ADMIN.access_key,
            aws_secret_access_key=ADMIN.secret_key,
        )
        client.delete_bucket(Bucket=place.partition("/")[0])

    def _wrong(self, tool: Tool, target: str) -> set[str]:
        if not tool.ours:
            # restic has a format of its own: what it restores is compared
            return set() if tool.local else self._unlike(self.place(target).walk(), self.listed())
        source = open_location(str(self.directory)) if tool.local else self.place(self.source)
        there, repository = source.walk(), Repository.open(self.place(target))
        held = {e.path: e for e in repository.manifest("latest").files}
        objects = repository.location.walk("objects")
        wrong = {p for p in self.needed if p not in held or held[p].identity != there[p].identity}
        wrong |= {e.path for e in held.values() if structure_damage(e, objects.get(file_of(e.object)))}
        for path in sorted(held.keys() - wrong)[:: max(1, len(held) // 20)]:
            if repository.location.read(held[path].object) != source.read(path):
                wrong.add(path)
        return wrong

    def _wrong_back(self, tool: Tool, back: str) -> set[str]:
        if not tool.local:
            there = self._copied[tool.name]
            wanted = {path: there[path] for path in self.needed} if tool.ours else there
            return self._unlike(self.place(back).walk(), wanted)
        assert self.directory is not None
        whole = [path.relative_to(self.directory) for path in self.directory.rglob("*") if path.is_file()]
        files = [Path(path) for path in self.needed] if tool.ours else whole
        return {str(f) for f in files if not (Path(back) / f).is_file() or _differ(Path(back) / f, self.directory / f)}

    @staticmethod
    def _unlike(here: Mapping[str, StoredFile], wanted: Mapping[str, StoredFile]) -> set[str]:
        return {path for path, file in wanted.items() if path not in here or here[path].checksum != file.checksum}


def warm_up(server: S3Server, scratch: Path, tools: Sequence[Tool]) -> None:
    """Let those that run in this process load their modules."""
    if tools := [tool for tool in tools if tool.in_process]:
        small = Ground(server, scratch / "warm", SampleTree(partitions=1), local=any(tool.local for tool in tools))
        small.round(tools, list(Step), 0, lambda tool, step, work: work())


def _differ(one: Path, other: Path) -> bool:
    return one.read_bytes() != other.read_bytes()
