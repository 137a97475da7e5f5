"""What a backup of a huge checkpoint costs on a cluster: a model, from costs that are measured and limits that are assumed.

python -m benchmarks.huge --measure      measures the costs of a file on this machine into benchmarks/huge_costs.json
python -m benchmarks.huge                prints the tables of docs/howto/huge-checkpoints.md from them
python -m benchmarks.huge --latency 0.1 --copy-rate 50 --terabytes 40     other assumptions
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.engine import Threads
from airflow_ckpt_provider.backup.objects import Objects
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.checkpoint.tree import Tree
from airflow_ckpt_provider.jobs.spark_engine import BYTES_PER_TASK, FILES_PER_TASK, WORKERS
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.storage.store import StoredFile
from benchmarks.sample_tree import SampleTree
from tests.support.s3_server import running_s3_server

_COSTS = Path(__file__).with_name("huge_costs.json")
#: Sizes of files that 10 TB are made of, and clusters that copy them; the first is the local engine.
_SIZES = (64 * 1024**2, 8 * 1024**2, 1024**2, 64 * 1024)
_EXECUTORS = (0, 2, 8, 32, 128)
_TERABYTE = 1024**4


@dataclass(frozen=True)
class Costs:
    """Processor seconds for each file, measured.

    :param driver: both listings, closure, deciding, manifests: all that one process does.
    :param copy: a copy inside the store, at the client.
    :param through: reading, hashing and writing a file, at the client, without its bytes.
    :param through_byte: and for each of its bytes.
    """

    driver: float
    copy: float
    through: float
    through_byte: float


@dataclass(frozen=True)
class Assumed:
    """What depends on the store and the cluster; the defaults are S3 in one region and machines of 4 cores.

    :param latency: seconds until a request that moves nothing is answered.
    :param copy_rate: bytes a second of one copy inside the store.
    :param list_seconds: of a listing's page of 1,000 files.
    :param copies_a_second: what the store takes of copies, all together: S3's 3,500 for each of the prefixes it has split to.
    :param cores: of an executor.
    :param network: bytes a second of an executor, each way.
    :param task_seconds: Spark's own time for a task.
    """

    latency: float = 0.03
    copy_rate: float = 150e6
    list_seconds: float = 0.15
    copies_a_second: float = 4 * 3500
    cores: int = 4
    network: float = 0.6e9
    task_seconds: float = 0.1


@dataclass(frozen=True)
class Estimate:
    """What a first backup takes.

    :param requests: number of requests by kind.
    :param driver: seconds of the one process that lists, decides and writes the manifest.
    :param copying: seconds of the copies.
    """

    requests: dict[str, int]
    driver: float
    copying: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.driver + self.copying

    @property
    def dollars(self) -> float:
        """The requests at S3's list prices (us-east-1, standard)."""
        prices = {"LIST": 0.005, "COPY": 0.005, "PUT": 0.005, "GET": 0.0004}
        return sum(count * prices[kind] / 1000 for kind, count in self.requests.items())


def estimate(costs: Costs, assumed: Assumed, *, files: int, size: int, executors: int, within: bool = True) -> Estimate:
    """Work the model out.

    :param files: of the closure; the checkpoint is taken to hold as many again that Spark needs no more.
    :param size: bytes of each.
    :param executors: 0 for the local engine.
    :param within: the store copies by itself; else every byte passes through an executor.
    """
    tasks = math.ceil(files / min(FILES_PER_TASK, max(1, BYTES_PER_TASK // size))) if executors else 0
    pages = math.ceil(2 * files / 1000) + math.ceil(files / 1000)  # the checkpoint; the objects, when all are copied
    requests = {"LIST": pages, "GET": 20 + tasks, "PUT": 6, "COPY": files}
    if not within:
        requests |= {"GET": requests["GET"] + files, "PUT": requests["PUT"] + files, "COPY": 0}
    cores = executors * assumed.cores if executors else 1
    under_way = cores * WORKERS if executors else 64
    if within:
        one = assumed.latency + size / assumed.copy_rate
        limits = [files * one / under_way, files * costs.copy / cores, files / assumed.copies_a_second]
    else:
        processor = costs.through + size * costs.through_byte
        limits = [
            files * 2 * assumed.latency / under_way,
            files * processor / cores,
            files * size / (assumed.network * max(executors, 1)),
            files / assumed.copies_a_second,
        ]
    driver = pages * assumed.list_seconds + files * costs.driver
    return Estimate(requests, driver, max(limits) + tasks * assumed.task_seconds / cores)


def tables(costs: Costs, assumed: Assumed, terabytes: float) -> Iterator[str]:
    """Lines of Markdown."""
    for within in (True, False):
        heads = ["local" if not e else f"{e} executors" for e in _EXECUTORS]
        title = "copied by the store" if within else "through the executors"
        yield f"| {terabytes:g} TB {title}, in files of | files | requests | price | driver | {' | '.join(heads)} |"
        yield f"|---|---:|---:|---:|---:|{'---:|' * len(heads)}"
        for size in _SIZES:
            files = round(terabytes * _TERABYTE / size)
            found = [
                estimate(costs, assumed, files=files, size=size, executors=executors, within=within)
                for executors in _EXECUTORS
            ]
            last = found[-1]
            cells = [
                _size(size),
                f"{files:,}",
                f"{sum(last.requests.values()):,}",
                f"${last.dollars:,.2f}",
                _time(last.driver),
            ]
            yield f"| {' | '.join([*cells, *(_time(each.seconds) for each in found)])} |"
        yield ""


def _size(size: int) -> str:
    return f"{size // 1024**2} MB" if size >= 1024**2 else f"{size // 1024} KB"


def _time(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# ---- measuring ----------------------------------------------------------------------------------


@contextmanager
def _processor_time(found: list[float]) -> Iterator[None]:
    gc.collect()
    began = time.process_time()
    yield
    found.append(time.process_time() - began)


def measure() -> Costs:
    """Measure on an S3 server of this machine: processor time of this process, so that other work on it does not matter."""
    with tempfile.TemporaryDirectory(prefix="huge-") as directory, running_s3_server(Path(directory) / "s3") as server:
        root = f"s3://{server.make_bucket()}"

        def place(name: str) -> Location:
            return open_location(f"{root}/{name}", storage_options=server.options())

        driver: list[float] = []
        counts = []
        for partitions in (4, 40, 200):  # the first one only warms up
            checkpoint = place(f"orders-{partitions}")
            with ThreadPoolExecutor(32) as pool:
                list(pool.map(lambda file, to=checkpoint: to.create(*file), SampleTree(partitions=partitions).files()))
            repository = Repository.open_or_create(place(f"backups-{partitions}"))
            create_backup(Checkpoint.at(checkpoint), repository)
            with _processor_time(driver):  # all that there is to do but the copies
                result = create_backup(Checkpoint.at(checkpoint), repository)
            counts.append(result.files)
        files = [file for file in checkpoint.walk().values() if file.path.endswith(".changelog")][:2000]
        copy: list[float] = []
        objects = Objects(place("copied"), "x", vouched=())
        with _processor_time(copy):
            Threads(WORKERS).store(Tree(checkpoint), objects, files, lambda stored: None, lambda file: None)
        through: list[float] = []
        for some in (files[:1000], _big(place("big"))):
            elsewhere = Objects(open_location(f"{directory}/through-{len(some)}"), "x", vouched=())
            origin = checkpoint if len(some) == 1000 else place("big")
            with _processor_time(through):
                Threads(WORKERS).store(Tree(origin), elsewhere, some, lambda stored: None, lambda file: None)
    per_byte = through[1] / (8 * 32 * 1024**2)
    small = sum(file.size for file in files[:1000]) / 1000
    return Costs(
        driver=max(0.0, (driver[2] - driver[1]) / (counts[2] - counts[1])),
        copy=copy[0] / len(files),
        through=max(0.0, through[0] / 1000 - small * per_byte),
        through_byte=per_byte,
    )


def _big(place: Location) -> list[StoredFile]:
    for number in range(8):
        place.create(f"{number}", bytes([number]) * (32 * 1024**2))
    return list(place.walk().values())


def committed() -> Costs:
    """The costs that were measured last."""
    return Costs(**json.loads(_COSTS.read_text()))


def main() -> None:
    """Measure, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--terabytes", type=float, default=10)
    parser.add_argument("--latency", type=float, help="seconds of a request")
    parser.add_argument("--copy-rate", type=float, help="MB a second of one copy inside the store")
    parser.add_argument("--cores", type=int, help="of an executor")
    args = parser.parse_args()
    if args.measure:
        _COSTS.write_text(json.dumps(asdict(measure()), indent=2) + "\n")
    assumed = Assumed()
    if args.latency is not None:
        assumed = replace(assumed, latency=args.latency)
    if args.copy_rate is not None:
        assumed = replace(assumed, copy_rate=args.copy_rate * 1e6)
    if args.cores is not None:
        assumed = replace(assumed, cores=args.cores)
    print("\n".join(tables(committed(), assumed, args.terabytes)))


if __name__ == "__main__":
    main()
