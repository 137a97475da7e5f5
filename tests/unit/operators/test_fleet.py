"""DiscoverCheckpointsOperator and FleetReportOperator, on real checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.observability import stats

from airflow_ckpt_provider.errors import StorageError
from airflow_ckpt_provider.fleet.options import options_of
from airflow_ckpt_provider.operators.backup import CheckpointBackupOperator
from airflow_ckpt_provider.operators.fleet import DiscoverCheckpointsOperator, FleetReportOperator, ProblemsError
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.parameters import connected_guard_options
from airflow_ckpt_provider.streams.stream import Stream
from tests.support.checkpoints import logs, plant
from tests.support.one_checkpoint import NEWEST

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def root(checkpoint: Path) -> Path:
    """Checkpoints of ``orders``, ``team/orders`` and of one that has not begun."""
    place = open_location(str(checkpoint.parent))
    plant(place / "team/orders", logs(range(3)))
    plant(place / "fresh", {k: v for k, v in logs(range(1)).items() if "commits" not in k})
    return checkpoint.parent


@pytest.fixture
def sent() -> Iterator[list[tuple[str, float, dict[str, str] | None]]]:
    """What goes to Airflow's metrics."""
    found: list[tuple[str, float, dict[str, str] | None]] = []

    class Backend:
        def gauge(self, stat: str, value: float, *, tags: dict[str, str] | None = None, **_: Any) -> None:
            found.append((stat, value, tags))

    stats.initialize(factory=lambda: Backend(), export_legacy_names=True)  # type: ignore[arg-type,return-value]
    yield found
    from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger

    stats.initialize(factory=NoStatsLogger, export_legacy_names=True)


def discover(directories: Any, **fields: Any) -> DiscoverCheckpointsOperator:
    return DiscoverCheckpointsOperator(task_id="d", directories=directories, **fields)


def report(repository: Path, **fields: Any) -> FleetReportOperator:
    return FleetReportOperator(task_id="r", repository=str(repository), **fields)


@pytest.mark.parametrize("as_text", [False, True])
def test_discovery_gives_what_mapped_backups_take(root: Path, repository: Path, run: Run, as_text: bool) -> None:
    found = discover(f" {root}, {root}/team," if as_text else [str(root)]).execute(run())
    assert found == [
        {"checkpoint": f"{root}/orders", "name": f"{root.name}.orders"},
        {"checkpoint": f"{root}/team/orders", "name": "team.orders"},
    ]
    for each in found:
        CheckpointBackupOperator(task_id="b", repository=str(repository), **each).execute(run())
    assert report(repository, checkpoints=found, max_age="1h").execute(run())["problems"] == {}


def test_depth(root: Path, run: Run) -> None:
    assert len(discover([str(root)], depth="1").execute(run())) == 1


@pytest.mark.parametrize("directories", [[], "", " , ", "None"])
def test_nowhere_to_look_is_not_retried(run: Run, directories: Any) -> None:
    with pytest.raises(AirflowFailException, match="directories is empty"):
        discover(directories).execute(run())


def test_a_store_that_says_no_is_retried(tmp_path: Path, run: Run) -> None:
    # A path through a file: the system says that it is no directory, as a store says that there is no bucket.
    with pytest.raises(StorageError):
        discover([f"{tmp_path}/{'x' * 300}"]).execute(run())


class TestReport:
    @pytest.fixture
    def backed_up(self, checkpoint: Path, repository: Path, run: Run) -> Path:
        CheckpointBackupOperator(task_id="b", checkpoint=str(checkpoint), repository=str(repository)).execute(run())
        return repository

    def test_result(self, checkpoint: Path, backed_up: Path, run: Run) -> None:
        result = report(backed_up, checkpoints=[str(checkpoint)], max_age="1h", max_gap="3").execute(run())
        assert json.loads(json.dumps(result)) == result
        assert result["limits"] == {"max_age": 3600.0, "max_gap": 3, "min_time_to_loss": None}
        (orders,) = result["streams"]
        assert orders["backup"]["age_seconds"] < 60
        assert result["markdown"].startswith("## 1 stream, 0 with problems")

    def test_problems_fail_the_task_and_leave_the_report(self, root: Path, backed_up: Path, run: Run) -> None:
        context = run()
        with pytest.raises(ProblemsError) as e:
            report(backed_up, directories=[str(root)], max_age="1h").execute(context)
        assert f"problems: 1; streams found: 3\n{root}/team/orders: no backup" in str(e.value)
        assert set(context["pushed"]["report"]["problems"]) == {f"{root}/team/orders"}

    def test_it_is_kept_for_the_page_and_replaced_by_the_next(self, root: Path, backed_up: Path, run: Run) -> None:
        for _ in range(2):
            report(backed_up, directories=str(root), on_finding="warn").execute(run("report"))
        (kept,) = (backed_up / "reports").iterdir()
        document = json.loads(kept.read_text())
        assert document["writer"] == "dag.report"
        assert len(document["streams"]) == 3
        assert sorted(str(row["oldest"] and row["oldest"]["batch_id"]) for row in document["streams"]) == [
            "0",
            "0",
            "None",
        ]

    def test_a_connection_that_may_only_read_is_no_reason_to_fail(self, root: Path, backed_up: Path, run: Run) -> None:
        (backed_up / "reports").write_text("no directory can be made here")
        assert report(backed_up, directories=str(root), on_finding="warn").execute(run())["streams"]

    def test_or_only_tell(self, root: Path, backed_up: Path, run: Run) -> None:
        result = report(backed_up, directories=str(root), max_age="1h", on_finding="warn").execute(run())
        assert set(result["problems"]) == {f"{root}/team/orders"}

    def test_what_cannot_be_known_is_a_problem(self, checkpoint: Path, backed_up: Path, run: Run) -> None:
        operator = report(backed_up, checkpoints=str(checkpoint), min_time_to_loss="1d", on_finding="warn")
        assert operator.execute(run())["problems"] == {
            str(checkpoint): ["time to loss UNKNOWN: no guard was configured"]
        }

    def test_metrics(self, root: Path, backed_up: Path, run: Run, sent: list[Any]) -> None:
        report(backed_up, directories=[str(root)], on_finding="warn", sizes=True).execute(run())
        by_name = {(name, (tags or {}).get("stream")): value for name, value, tags in sent}
        assert 0 <= by_name["ckpt.stream.backup_age_seconds", "orders"] < 60
        assert (
            by_name["ckpt.stream.orders.backup_age_seconds", None]
            == by_name["ckpt.stream.backup_age_seconds", "orders"]
        )
        assert by_name["ckpt.stream.checkpoint_bytes", "fresh"] > 0
        assert ("ckpt.stream.backup_age_seconds", "fresh") not in by_name

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({}, "no streams were given"),
            ({"checkpoints": ["x"], "max_age": "soon"}, "max_age is 'soon'"),
            ({"checkpoints": ["x"], "max_gap": "-1"}, "max_gap is -1"),
            ({"checkpoints": ["x"], "on_finding": "shout"}, "on_finding is 'shout'"),
            ({"checkpoints": [{"checkpoint": "x", "name": "a/b"}]}, "'a/b' cannot be the name of a stream"),
        ],
    )
    def test_refused(self, backed_up: Path, run: Run, fields: dict[str, Any], message: str) -> None:
        with pytest.raises(AirflowFailException, match=message):
            report(backed_up, **fields).execute(run())


class TestGivenBesidesADeclaration:
    def test_limits_come_first(self, checkpoint: Path, repository: Path, run: Run) -> None:
        (checkpoint / "commits" / str(NEWEST)).unlink()
        stream = Stream("orders", checkpoint=str(checkpoint), repository=str(repository), watch={"max_gap": 3})

        def problems(**given: Any) -> list[str]:
            operator = FleetReportOperator(task_id="f", streams=[stream], on_finding="warn", **given)
            found: list[str] = operator.execute(run())["problems"].get(str(checkpoint), [])
            return found

        assert problems() == []
        assert problems(max_gap=0) == ["gap 1, more than 0"]
        assert problems(min_time_to_loss="1d") == ["time to loss UNKNOWN: no guard was configured"]

    def test_options_are_added_to_those_of_the_stream(self) -> None:
        """Without its connection, the guard of Kafka would ask the cluster of all other streams."""
        kafka = {"conn_id": "kafka_prod", "options": {"buffer": "1h", "timeout": 5}}
        stream = Stream("orders", checkpoint="/orders", sources={"kafka": kafka, "delta": {"tables": {"0": "/t"}}})
        given = {"orders": {"kafka": {"buffer": "2h"}}, "other": {"file": {"x": 1}}}
        assert options_of([stream], given, connected_guard_options) == {
            "orders": {
                "kafka": {"conn_id": "kafka_prod", "buffer": "2h", "timeout": 5},
                "delta": {"tables": {"0": "/t"}},
            },
            "other": {"file": {"x": 1}},
        }

    @pytest.mark.parametrize("options", ["x", {"orders": "x"}, {"orders": {"kafka": "x"}}])
    def test_options_that_are_none(self, checkpoint: Path, repository: Path, run: Run, options: Any) -> None:
        with pytest.raises(AirflowFailException, match="stream_options"):
            report(repository, checkpoints=str(checkpoint), stream_options=options).execute(run())


def test_a_declared_source_that_needs_no_option_is_asked(checkpoint: Path, repository: Path, run: Run) -> None:
    def verdict(**sources: Any) -> str:
        stream = Stream("orders", checkpoint=str(checkpoint), repository=str(repository), sources=sources)
        report = FleetReportOperator(task_id="f", streams=[stream], on_finding="warn").execute(run())
        found: str = report["streams"][0]["time_to_loss"]["verdict"]
        return found

    assert verdict() == "UNKNOWN"
    assert verdict(file={}) == "SAFE"
