"""``airflow-ckpt discover`` and ``fleet``: tables, documents, files, exit codes."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.one_checkpoint import NEWEST


@pytest.fixture
def root(checkpoint: Path) -> Path:
    """A place with ``orders``, which is whole, and ``torn``, which is not."""
    torn = checkpoint.parent / "torn"
    (torn / "offsets").mkdir(parents=True)
    (torn / "offsets" / "7").write_text("")
    return checkpoint.parent


def test_discover(root: Path, repository: Path) -> None:
    finished = run("discover", root)
    assert finished.code == 1
    assert finished.out.split().count("whole") == 1
    assert "1 repository left out" in finished.out
    assert "offsets/7: the file is empty" in " ".join(finished.out.split())
    document = run("discover", root, "--json").document
    assert document["roots"] == [str(root)]
    assert document["repositories"] == [str(repository)]
    orders, torn = document["checkpoints"]
    assert (orders["name"], orders["state"], orders["latest_committed"]) == ("orders", "whole", NEWEST)
    assert (torn["state"], torn["latest_committed"]) == ("torn", None)


def test_discover_one_that_is_fine(checkpoint: Path) -> None:
    assert run("discover", checkpoint).code == 0
    assert run("discover", checkpoint.parent, "--depth", 1).code == 0


def test_fleet(checkpoint: Path, repository: Path) -> None:
    finished = run("fleet", repository, checkpoint.parent)
    assert (finished.code, finished.err) == (0, "")
    (row,) = (line for line in finished.out.splitlines() if line.startswith("orders"))
    assert row.split()[1:3] == [str(NEWEST), "0"]
    assert row.split()[-2:] == ["UNKNOWN", "never"]
    document = run("fleet", repository, checkpoint.parent, "--json", "--max-age", "1h").document
    assert document["limits"] == {"max_age": 3600.0, "max_gap": None, "min_time_to_loss": None}
    assert [s["backup"]["batch_id"] for s in document["streams"]] == [NEWEST]


def test_a_limit_that_cannot_be_judged_is_a_finding(checkpoint: Path, repository: Path) -> None:
    finished = run("fleet", repository, checkpoint, "--min-time-to-loss", "24h")
    assert finished.code == 1
    assert "time to loss UNKNOWN: no guard was configured" in " ".join(finished.out.split())


@pytest.mark.parametrize("limit", ["--max-age=1h", "--max-gap=0", "--max-age=0"])
def test_within_a_limit(checkpoint: Path, repository: Path, limit: str) -> None:
    """A backup that holds all there is does not get old."""
    assert run("fleet", repository, checkpoint, limit).code == 0


@pytest.mark.parametrize(("limit", "code"), [("--max-age=0", 1), ("--max-age=1h", 0), ("--max-gap=0", 1)])
def test_exit_code(checkpoint: Path, repository: Path, limit: str, code: int) -> None:
    (checkpoint / "commits" / str(NEWEST)).unlink()
    assert run("fleet", repository, checkpoint, limit).code == code


def test_guards_are_asked_with_an_option(checkpoint: Path, repository: Path) -> None:
    """The source of this checkpoint makes its own rows or has files: either way somebody was asked."""
    asked = run("fleet", repository, checkpoint, "--json", "--option", "file.option.0.cleanSource=off").document
    (stream,) = asked["streams"]
    assert "no guard was configured" not in stream["time_to_loss"]["reasons"]


def test_a_declared_source_that_needs_no_option_is_asked(checkpoint: Path, repository: Path) -> None:
    place = checkpoint.parent / "streams.yaml"

    def verdict(*lines: str) -> str:
        stream = ("streams:", "  orders:", f"    checkpoint: {checkpoint}", f"    repository: {repository}")
        place.write_text("\n".join([*stream, *lines]) + "\n")
        found: str = run("fleet", repository, "--streams", place, "--json").document["streams"][0]["time_to_loss"][
            "verdict"
        ]
        return found

    assert verdict() == "UNKNOWN"
    assert verdict("    sources: {file: {}}") == "SAFE"


def test_csv_and_markdown_and_nothing_else(root: Path, repository: Path) -> None:
    lines = run("fleet", repository, root, "--csv").out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["stream", "orders", "torn"]
    assert run("fleet", repository, root, "--markdown").out.startswith("## 2 streams, 1 with problems\n")
    both = run("fleet", repository, root, "--markdown", "--json")
    assert both.code == 2


def test_metrics(checkpoint: Path, repository: Path, tmp_path: Path) -> None:
    file = tmp_path / "ckpt.prom"
    file.write_text("of before")
    assert run("fleet", repository, checkpoint, "--prometheus", file).code == 0
    assert 'ckpt_stream_latest_committed_batch{stream="orders"' in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) & 0o444 == 0o444, "the node exporter is another user"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith((".", "ckpt"))] == ["ckpt.prom"]


class TestDeclared:
    @pytest.fixture
    def declared(self, root: Path, repository: Path) -> Path:
        """Of the two streams, one has its backups here."""
        file = root / "streams.yaml"
        file.write_text(
            f"streams:\n"
            f"  sales: {{checkpoint: {root}/orders, repository: {repository}, name_in_repository: orders, "
            f"objectives: {{rpo: 1h, rto: 15m}}, max_downtime: 1d, watch: {{max_gap: 3}}}}\n"
            f"  other: {{checkpoint: {root}/torn, repository: {root}/elsewhere}}\n"
        )
        return file

    def test_its_objectives_and_limits(self, declared: Path, repository: Path, tmp_path: Path) -> None:
        metrics = tmp_path / "ckpt.prom"
        finished = run("fleet", repository, "--streams", declared, "--prometheus", metrics, "--json")
        (orders,) = finished.document["streams"]
        assert (finished.code, orders["name"], orders["problems"]) == (0, "orders", [])
        rpo, rto = orders["objectives"]["rpo"], orders["objectives"]["rto"]
        assert rpo == {"objective": 3600.0, "seconds": 0.0, "met": "met"}
        assert rto == {"objective": 900.0, "seconds": None, "met": "UNKNOWN"}
        written = metrics.read_text()
        assert re.search(r"ckpt_stream_rpo_met\{.*\} 1\n", written)
        assert re.search(r"ckpt_stream_rto_objective_seconds\{.*\} 900\n", written)
        assert "ckpt_stream_rto_met{" not in written

    def test_what_is_given_comes_first(self, declared: Path, repository: Path, root: Path) -> None:
        (root / "orders" / "commits" / str(NEWEST)).unlink()
        for given, code in (((), 0), (("--max-gap", "0"), 1), (("--max-age", "0"), 1)):
            assert run("fleet", repository, "--streams", declared, *given).code == code

    @pytest.mark.parametrize(
        ("said", "is_judged"),
        [
            ("watch: {min_time_to_loss: 12h}", True),
            ("max_downtime: 1d, sources: {kafka: {conn_id: kafka}}", True),
            ("max_downtime: 1d, sources: {delta: {}}", True),
            ("watch: {min_time_to_loss: 12h}, sources: {file: {}}", True),
            ("max_downtime: 1d, sources: {file: {}}", False),
            ("max_downtime: 1d", False),
        ],
    )
    def test_a_limit_is_not_dropped_where_no_guard_is_configured(
        self, declared: Path, repository: Path, root: Path, said: str, is_judged: bool
    ) -> None:
        declared.write_text(f"streams:\n  orders: {{checkpoint: {root}/orders, repository: {repository}, {said}}}\n")
        finished = run("fleet", repository, "--streams", declared, "--json")
        problems = finished.document["streams"][0]["problems"]
        assert [problem.partition(":")[0] for problem in problems] == (["time to loss UNKNOWN"] if is_judged else [])
        assert finished.code == is_judged

    def test_one_of_them(self, declared: Path, repository: Path) -> None:
        by_name = run("fleet", "--stream", "sales", "--streams", declared, "--json").document
        assert [each["name"] for each in by_name["streams"]] == ["orders"]

    def test_none_is_of_this_repository(self, declared: Path, tmp_path: Path) -> None:
        assert run("init", tmp_path / "third").code == 0
        finished = run("fleet", tmp_path / "third", "--streams", declared)
        assert finished.code == 1
        assert f"no declared stream has its backups in {tmp_path / 'third'}" in finished.err


class TestLists:
    def test_lines(self, checkpoint: Path, repository: Path, tmp_path: Path) -> None:
        file = tmp_path / "list"
        file.write_text(f"# ours\n{checkpoint}\tsales\n\n{tmp_path}/no such place\n")
        finished = run("fleet", repository, "--checkpoints", file, "--json")
        assert finished.code == 1
        found = {Path(s["checkpoint"]).name: s["name"] for s in finished.document["streams"]}
        assert found == {"orders": "orders", "no such place": "no_such_place"}, "it is backed up as orders"

    def test_what_discover_printed(self, root: Path, repository: Path, tmp_path: Path) -> None:
        file = tmp_path / "found.json"
        file.write_text(run("discover", root, "--json").out)
        listed = run("fleet", repository, "--checkpoints", file, "--json").document["streams"]
        assert [s["name"] for s in listed] == ["orders", "torn"]

    @pytest.mark.parametrize("content", ["{", "[1]", '{"checkpoints": 3}'])
    def test_no_list(self, repository: Path, tmp_path: Path, content: str) -> None:
        file = tmp_path / "list"
        file.write_text(content)
        finished = run("fleet", repository, "--checkpoints", file)
        assert finished.code == 1
        assert f"--checkpoints {file} cannot be read" in finished.err
        assert "HINT" in finished.err

    def test_nothing_was_given(self, repository: Path) -> None:
        assert run("fleet", repository).code == 2


def test_no_repository(checkpoint: Path, tmp_path: Path) -> None:
    finished = run("fleet", tmp_path / "typo", checkpoint)
    assert finished.code == 1
    assert "is not a repository" in finished.err


def test_the_documents_are_the_same(checkpoint: Path, repository: Path) -> None:
    document = run("fleet", repository, checkpoint, "--json").document
    assert json.loads(json.dumps(document)) == document
    assert document["problems"] == {}
