"""The benchmark itself, with the tools that need no download: it counts what a tool asks, and finds out who skips work."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.backup import way
from benchmarks.alone import alone, run
from benchmarks.bounds import lower_bound, most_over
from benchmarks.ground import Ground
from benchmarks.memory import one
from benchmarks.requests import count
from benchmarks.sample_tree import SampleTree
from benchmarks.steps import Step
from benchmarks.tools import Fsspec, OursInProcess, PacksInProcess, PacksLocalInProcess
from tests.support.s3_gate import Gate
from tests.support.s3_server import S3Server

_TREE = SampleTree(partitions=2, snapshots=(10, 20))


@pytest.mark.slow
@pytest.mark.format_1("it counts the requests of both formats, each in repositories of its own")
def test_requests_and_bytes_are_counted(s3_server: S3Server, tmp_path: Path) -> None:
    facts, rows = count(s3_server, tmp_path, _TREE, ["in process", "s3fs"])
    found = {(row["tool"], row["step"]): row for row in rows}
    assert facts["files"] == len(list(_TREE.files()))
    assert {step for tool, step in found if tool == OursInProcess.name} == set(Step)
    sizes = {"files": facts["files"], "needed": facts["held_files"], "changed": facts["changed"]}
    for step in Step:
        row = found[OursInProcess.name, step]
        total = sum(row[kind] for kind in ("LIST", "GET", "HEAD", "PUT", "COPY", "POST", "DELETE"))
        bound = lower_bound(step, **sizes, snapshots=_TREE.partitions).total
        assert bound <= total <= bound + most_over(step, needed=facts["held_files"], snapshots=_TREE.partitions), (
            step,
            row,
        )
    read = found[OursInProcess.name, Step.READ]
    assert read["sent"] > facts["held_bytes"] > facts["needed_bytes"], "every content comes out of the server"
    copied = found[Fsspec.name, Step.FIRST]
    assert (copied["stored_files"], copied["stored_bytes"]) == (facts["files"], facts["bytes"])
    assert copied["sent"] < facts["bytes"], "the server copies by itself"
    assert found[OursInProcess.name, Step.FIRST]["stored_bytes"] < facts["bytes"], (
        "what Spark does not need is left out"
    )


def test_packs_are_counted_beside_their_own_bound(s3_server: S3Server, tmp_path: Path) -> None:
    facts, rows = count(s3_server, tmp_path, _TREE, [PacksInProcess.name, PacksLocalInProcess.name])
    found = {(row["tool"], row["step"]): row for row in rows}
    assert {step for tool, step in found if tool == PacksLocalInProcess.name} == set(Step)
    sizes = {"files": facts["files"], "needed": facts["held_files"], "changed": facts["changed"]}
    for step in Step:
        where = found[PacksInProcess.name, step]["where"]
        bound = lower_bound(step, **sizes, snapshots=_TREE.partitions, packs=1).total
        more = most_over(step, needed=facts["held_files"], snapshots=_TREE.partitions, packs=1)
        assert bound <= sum(where.values()) <= bound + more, (step, where)
    first = found[PacksInProcess.name, Step.FIRST]["where"]
    assert first["PUT packs"] == 1
    assert first["GET checkpoint"] >= facts["held_files"]
    assert "GET checkpoint" not in found[PacksLocalInProcess.name, Step.FIRST]["where"], "it reads a directory"


@pytest.mark.slow
def test_a_local_restore_that_lacks_a_file_is_found_out(s3_server: S3Server, tmp_path: Path) -> None:
    class Lazy(PacksLocalInProcess):
        def restore(self, target: str, back: str) -> None:
            super().restore(target, back)
            Path(back, "state/0/1/25.changelog").unlink()

    ground = Ground(s3_server, tmp_path, _TREE, local=True)
    with pytest.raises(AssertionError, match=r"restore: 1 files are wrong, such as \['state/0/1/25.changelog'\]"):
        ground.round([Lazy(s3_server, tmp_path)], list(Step), 0, lambda tool, step, work: work())


def test_a_step_in_a_process_of_its_own_says_what_it_needed(s3_server: S3Server, tmp_path: Path) -> None:
    ground = Ground(s3_server, tmp_path, _TREE, local=False)
    target = ground.new_bucket("target") + "/orders"
    PacksInProcess(s3_server, tmp_path).begin(target)
    found = alone(s3_server.port, PacksInProcess.name, Step.FIRST, ground.source, target, "")
    assert found["seconds"] > 0
    assert 10 * 2**20 < found["before"] < found["peak"] < 500 * 2**20


@pytest.mark.parametrize("repository_format", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_files_that_are_made_up_are_backed_up_and_restored(tmp_path: Path, repository_format: int) -> None:
    for step in (Step.FIRST, Step.NOTHING, Step.RESTORE):
        found = run("benchmarks.memory", "one", "5000", str(tmp_path), str(repository_format), str(step))
        assert found["before"] < found["peak"]


def test_packs_of_files_that_are_made_up_on_a_slow_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store cannot copy these contents, so it is not to be asked to, however long reading takes."""
    monkeypatch.setattr(way, "WORTH", 0.0)
    monkeypatch.setattr(way, "FACTOR", 0.0)
    one(5000, str(tmp_path), 2, Step.FIRST)


def test_a_tool_that_skips_a_file_is_found_out(s3_server: S3Server, tmp_path: Path) -> None:
    class Lazy(Fsspec):
        def copy(self, source: str, target: str) -> None:
            super().copy(source, target)
            fs = self.server.filesystem()
            fs.rm_file(f"{target}/state/0/1/7.changelog")

    ground = Ground(s3_server, tmp_path, _TREE, local=False)
    with pytest.raises(AssertionError, match=r"first backup: 1 files are wrong, such as \['state/0/1/7.changelog'\]"):
        ground.round([Lazy(s3_server, tmp_path)], list(Step), 0, lambda tool, step, work: work())


def test_the_gate_knows_the_bytes_of_both_directions(s3_server: S3Server) -> None:
    gate, bucket = Gate(s3_server), s3_server.make_bucket()
    try:
        fs = S3Server(int(gate.endpoint.rpartition(":")[2]), s3_server.pid).filesystem()
        with gate.watched() as seen:
            fs.pipe_file(f"{bucket}/one", b"x" * 1234)
            assert fs.cat_file(f"{bucket}/one") == b"x" * 1234
    finally:
        gate.close()
    assert [request.received for request in seen if request.kind == "PUT"] == [1234]
    assert [request.sent for request in seen if request.kind == "GET"] == [1234]
