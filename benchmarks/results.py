"""The figures, as committed under benchmarks/results: read and written, one row a line."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.steps import Step
from benchmarks.tools import ALL, is_local, is_ours

RESULTS = Path(__file__).with_name("results")
#: Names of documents.
REQUESTS, GROWTH, MEMORY = "requests", "growth", "memory"
#: Kinds of request that are counted.
KINDS = ("LIST", "GET", "HEAD", "PUT", "COPY", "POST", "DELETE")


@dataclass(frozen=True)
class Run:
    """A step of a tool in a round.

    :param seconds: by the clock.
    :param cpu: processor seconds of the tool alone, which other programs on the machine do not lengthen.
    :param server: those of the S3 server meanwhile; ``None`` where the system does not say.
    """

    round: int
    tool: str
    step: Step
    seconds: float
    cpu: float
    server: float | None = None


@dataclass(frozen=True)
class Middle:
    """The runs of a tool's step over all rounds.

    :param seconds: median.
    :param least: of the seconds.
    :param most: of the seconds.
    :param cpu: median.
    :param server: median; ``None`` where it was not measured.
    """

    runs: int
    seconds: float
    least: float
    most: float
    cpu: float
    server: float | None = None


@dataclass
class Timings:
    """Times with one tree.

    :param tree: ``files``, ``bytes``, and so on.
    :param setting: as :func:`benchmarks.setting.setting` says.
    :param rounds: number, date and load of each.
    :param runs: all of them.
    """

    name: str
    tree: dict[str, Any]
    setting: dict[str, Any]
    rounds: list[dict[str, Any]]
    runs: list[Run]

    def of(self, tool: str, step: Step) -> Middle | None:
        """Median and range, or ``None`` where the tool does not know the step, or was left out."""
        runs = [run for run in self.runs if (run.tool, run.step) == (tool, step)]
        if not runs:
            return None
        seconds = [run.seconds for run in runs]
        cpu = statistics.median(run.cpu for run in runs)
        server = [run.server for run in runs if run.server is not None]
        middle = statistics.median(server) if server else None
        return Middle(len(runs), statistics.median(seconds), min(seconds), max(seconds), cpu, middle)

    def tools(self) -> list[str]:
        """Names, in the order of :data:`benchmarks.tools.ALL`."""
        found = dict.fromkeys(run.tool for run in self.runs)
        known = [kind.name for kind in ALL if kind.name in found]
        return known + [name for name in found if name not in known]

    def pairs(self, tool: str, peer: str, step: Step) -> list[float]:
        """The ratio of a tool's seconds to another one's, for each round in which both took the step."""
        mine, others = (
            {run.round: run.seconds for run in self.runs if (run.tool, run.step) == (name, step)}
            for name in (tool, peer)
        )
        return [mine[number] / others[number] for number in sorted(mine.keys() & others.keys())]

    def fastest_peer(self, step: Step, *, local: bool = False) -> tuple[str, float] | None:
        """Name and median seconds of the fastest other tool that does the same.

        To see that nothing was committed is beside what the others do when nothing has changed.

        :param local: between a local directory and a bucket, and not from bucket to bucket. All verify a bucket.
        """
        step = Step.NOTHING if step is Step.SKIPPED else step
        of_a_bucket = step in (Step.VERIFY, Step.READ)
        peers = [name for name in self.tools() if not is_ours(name) and (of_a_bucket or is_local(name) == local)]
        found = [(middle.seconds, name) for name in peers if (middle := self.of(name, step))]
        return min(found)[::-1] if found else None

    def ratio(self, tool: str, step: Step) -> float | None:
        """Median to that of the fastest other tool that does the same."""
        middle, peer = self.of(tool, step), self.fastest_peer(step, local=is_local(tool))
        return middle.seconds / peer[1] if middle and peer else None

    @classmethod
    def read(cls, name: str) -> Timings | None:
        """What was measured with the tree of this name, if anything was."""
        found = read(f"timings-{name}")
        if found is None:
            return None
        runs = [Run(**{**row, "step": Step(row["step"])}) for row in found["runs"]]
        return cls(name, found["tree"], found["setting"], found["rounds"], runs)

    def write(self) -> None:
        """Keep it."""
        document = {"tree": self.tree, "setting": self.setting, "rounds": self.rounds}
        write(f"timings-{self.name}", {**document, "runs": [asdict(run) for run in self.runs]})


def all_timings() -> list[Timings]:
    """Those of all trees, small ones first, those with snapshots last."""
    names = [path.stem.removeprefix("timings-") for path in RESULTS.glob("timings-*.json")]
    found = [timings for name in names if (timings := Timings.read(name))]
    return sorted(found, key=lambda t: (bool(t.tree["snapshots"]), t.tree["files"]))


def tree_name(files: int, *, snapshots: bool) -> str:
    """Name of a tree in the results."""
    return f"{files}{'-snapshots' if snapshots else ''}"


def in_words(tree: str) -> str:
    """A tree's name, for people."""
    files, _, snapshots = tree.partition("-")
    return f"{int(files):,} files{', with snapshots' if snapshots else ''}"


def read(name: str) -> dict[str, Any] | None:
    """A document, or ``None`` if it was not made yet."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def write(name: str, document: dict[str, Any]) -> None:
    """Write a document at once, with one line for each item of a list."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    fresh = path.with_suffix(".new")
    fresh.write_text("{\n" + ",\n".join(_members(document)) + "\n}\n")
    fresh.replace(path)


def _members(document: dict[str, Any]) -> Iterator[str]:
    for key, value in document.items():
        if isinstance(value, list):
            items = ",\n  ".join(json.dumps(item) for item in value)
            yield f' "{key}": [\n  {items}\n ]' if value else f' "{key}": []'
        else:
            yield f' "{key}": {json.dumps(value)}'
