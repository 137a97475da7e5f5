"""A rewind on real Spark: with a bug between the runs, the sink in the end is that of a run that never had it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.recovery.reset.apply import apply_reset
from airflow_ckpt_provider.recovery.reset.planning import plan_reset
from airflow_ckpt_provider.recovery.reset.way import ResetWay
from airflow_ckpt_provider.recovery.rewind.apply import apply_rewind
from airflow_ckpt_provider.recovery.undo import undo
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.verdict import Verdict
from tests.support.rewinding import Story, difference
from tests.support.stopped import ACCEPTED, STOPPED
from tests.support.streams.kinds import KINDS, REWOUND
from tests.support.streams.spark_host import SparkHost, coordinates

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def format_2_host(tmp_path_factory: pytest.TempPathFactory):
    """A JVM of its own: Spark 4.0.0 cannot have both state formats in one."""
    host = SparkHost(tmp_path_factory.mktemp("format2") / "spark.log", packages=coordinates("spark-jars.txt"))
    yield host
    host.kill()


@pytest.fixture
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Story:
    kind = getattr(request, "param", "dedup_to_delta")
    name = "format_2_host" if KINDS[kind].is_format_2 else "spark_host"
    return Story(request.getfixturevalue(name), tmp_path, kind)


#: In the normal run: state and a file sink (the DAG's test: a Delta table); `make slow` has all, `make rewind-soak` often.
_OFTEN = ("windows_to_files",)


@pytest.mark.parametrize(
    "story", [kind if kind in _OFTEN else pytest.param(kind, marks=pytest.mark.slow) for kind in REWOUND], indirect=True
)
def test_row_exact_after_a_bug(story: Story) -> None:
    story.run(4)
    right = story.newest
    story.run(2, faulty=True)
    plan = story.plan("to_batch", right)
    assert plan.sink.verdict is Verdict.WILL_SKIP
    assert plan.sink_verdict is Verdict.SAFE
    outcome = story.rewind("to_batch", right)
    assert outcome.batch_id == story.newest == right
    story.run(2)
    assert difference(story.reference(), story.rows()) == (0, 0)


@pytest.mark.slow
def test_twice_in_a_row_and_to_the_oldest(story: Story) -> None:
    story.run(5)
    story.run(2, faulty=True)
    story.rewind("shift_by", -1)
    story.rewind("to_earliest")
    oldest = story.newest
    story.go_on(faulty=True)
    assert story.newest > oldest
    story.rewind("to_batch", oldest)
    story.run(1)
    assert difference(story.reference(), story.rows()) == (0, 0)


@pytest.mark.slow
def test_to_a_backup_that_is_older_than_the_checkpoint(story: Story) -> None:
    from airflow_ckpt_provider.backup.create import create_backup

    story.run(2)
    backup = create_backup(story.ckpt, story.repository)
    story.run(8, faulty=True)
    empty = Repository.open_or_create(open_location(str(story.root / "empty")))
    with pytest.raises(RefusedError, match="cannot be rewound to"):
        story.plan("to_batch", backup.batch_id, repository=empty.location)
    outcome = story.rewind("to_batch", backup.batch_id)
    assert outcome.written > 0
    story.run(1)
    assert difference(story.reference(), story.rows()) == (0, 0)


class TestControls:
    """The obvious ways, and how many rows each costs."""

    @pytest.fixture
    def broken(self, story: Story) -> Story:
        story.run(4)
        story.right = story.newest  # type: ignore[attr-defined]
        story.run(2, faulty=True)
        return story

    def _costs(self, story: Story, way: str) -> tuple[int, int]:
        story.run(1)
        lost, wrong = difference(story.reference(), story.rows())
        print(f"{way}: {lost} rows lost, {wrong} wrong or doubled")
        return lost, wrong

    @pytest.mark.slow
    def test_commits_deleted(self, broken: Story) -> None:
        for path in (broken.checkpoint / "commits").iterdir():
            if path.name.isdigit() and int(path.name) > broken.right:  # type: ignore[attr-defined]
                path.unlink()
                (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
        DeltaTable(str(broken.out)).restore(broken.right)  # type: ignore[attr-defined]
        assert self._costs(broken, "commits deleted, RESTORE")[0] > 0

    @pytest.mark.slow
    def test_checkpoint_rewound_and_the_table_restored(self, broken: Story) -> None:
        """The rewound checkpoint is right; the table remembers the batches all the same."""
        version = broken.plan("to_batch", broken.right).sink.rollback.to_version  # type: ignore[attr-defined,union-attr]
        broken.rewind("to_batch", broken.right, sink_exit="accept")  # type: ignore[attr-defined]
        DeltaTable(str(broken.out)).restore(version)
        assert broken.plan("to_current", sink_exit=None).sink.verdict is Verdict.WILL_SKIP
        assert self._costs(broken, "checkpoint rewound, RESTORE alone")[0] > 0

    @pytest.mark.slow
    def test_logs_deleted_and_state_left(self, broken: Story) -> None:
        plan = broken.plan("to_batch", broken.right)  # type: ignore[attr-defined]
        for path in plan.deletes:
            if not path.startswith("state/"):
                file = broken.checkpoint / path
                file.unlink()
                (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
        shutil.rmtree(broken.out)
        lost, wrong = self._costs(broken, "logs deleted, state left, table dropped")
        assert lost + wrong > 0


@pytest.mark.slow
def test_undo_puts_everything_back(story: Story) -> None:
    story.run(4)
    right = story.newest
    story.run(1, faulty=True)
    before = {p: f.size for p, f in story.place.walk().items() if "/." not in p and not p.startswith(".")}
    rows = story.rows()
    outcome = story.rewind("shift_by", -2)
    assert story.rows() != rows
    undone = undo(story.place, story.repository, sink=story.sink, rest=STOPPED)
    assert undone.plan_id == outcome.plan_id
    assert {p: f.size for p, f in story.place.walk().items() if "/." not in p and not p.startswith(".")} == before
    assert story.rows() == rows
    assert undo(story.place, story.repository, sink=story.sink, rest=STOPPED).already_done
    story.rewind("to_batch", right)
    story.run(1)
    assert difference(story.reference(), story.rows()) == (0, 0)


@pytest.mark.slow
def test_undo_is_refused_once_the_stream_went_on(story: Story) -> None:
    story.run(4)
    story.rewind("shift_by", -2)
    story.go_on()
    with pytest.raises(RefusedError, match="was written to since rewind"):
        undo(story.place, story.repository, sink=story.sink, rest=STOPPED)


@pytest.mark.slow
def test_a_sink_that_has_more_needs_an_exit(story: Story) -> None:
    story.run(4)
    plan = story.plan("shift_by", -2, sink_exit=None)
    with pytest.raises(RefusedError, match="needs somebody to accept: sink_skips"):
        apply_rewind(plan, story.ckpt, story.repository, sink=story.sink, rest=STOPPED)
    assert story.ckpt.progress().seal is None


@pytest.mark.slow
def test_what_others_wrote_is_not_taken_away_unasked(story: Story) -> None:
    story.run(4)
    table = DeltaTable(str(story.out))
    import pyarrow as pa
    from deltalake import write_deltalake

    row = table.to_pyarrow_table().slice(0, 1)
    write_deltalake(str(story.out), pa.table(row), mode="append")
    plan = story.plan("shift_by", -2)
    assert len(plan.sink.rollback.foreign) == 1  # type: ignore[union-attr]
    with pytest.raises(RefusedError, match="others have written into"):
        apply_rewind(plan, story.ckpt, story.repository, sink=story.sink, rest=STOPPED)


@pytest.mark.slow
def test_forward_takes_the_checkpoint_to_the_table(story: Story) -> None:
    """A checkpoint restored to an older batch, while the table continued."""
    story.run(4)
    from airflow_ckpt_provider.backup.create import create_backup

    create_backup(story.ckpt, story.repository)
    newest = story.newest
    story.rewind("shift_by", -2, sink_exit="accept")
    assert story.plan("to_current", sink_exit=None).sink.verdict is Verdict.WILL_SKIP
    story.rewind("to_current", sink_exit="forward")
    assert story.newest == newest
    story.run(1)
    assert difference(story.reference(), story.rows()) == (0, 0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_table_that_only_spark_can_restore(tmp_path: Path) -> None:
    """Deletion vectors: the plan names the feature, Spark restores by the job, the checkpoint gets a new query id."""
    packages = coordinates("spark-jars.txt")
    host = SparkHost(
        tmp_path / "spark.log",
        packages=packages,
        conf={"spark.databricks.delta.properties.defaults.enableDeletionVectors": "true"},
    )
    try:
        story = Story(host, tmp_path, "dedup_to_delta")
        story.run(4)
        right = story.newest
        story.run(2, faulty=True)
        with pytest.raises(
            RefusedError, match="has the feature deletionVectors, with which deltalake cannot restore it"
        ):
            story.rewind("to_batch", right)
        rollback = story.plan("to_batch", right).sink.rollback
        assert rollback is not None
        story.rewind("to_batch", right, sink_exit="accept")
        settings = {
            "spark.jars.ivy": str(Path(".cache/ivy").absolute()),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # A table of a few rows: by the defaults it would take longer to plan than to do.
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.sql.codegen.wholeStage": "false",
            "spark.ui.enabled": "false",
        }
        command = ["spark-submit", "--master", "local[2]", "--packages", ",".join(packages)]
        command += [argument for name, value in settings.items() for argument in ("--conf", f"{name}={value}")]
        command += ["airflow_ckpt_provider/jobs/roll_table_back.py", "--table", str(story.out)]
        command += ["--version", str(rollback.to_version), "--expected", str(rollback.from_version)]
        program = Path(sys.executable).with_name(command[0])
        for _ in range(2):  # the second run finds the first one's work
            done = subprocess.run([str(program), *command[1:]], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
            assert json.loads(done.stdout.splitlines()[-1])["version"] == (rollback.from_version or 0) + 1
        assert story.plan("to_current", sink_exit=None).sink.verdict is Verdict.WILL_SKIP
        plan = plan_reset(story.place, ResetWay.NEW_QUERY_ID, sink=story.sink)
        apply_reset(plan, story.place, story.repository, rest=STOPPED, accept=ACCEPTED)
        story.run(1)
        assert difference(story.reference(), story.rows()) == (0, 0)
    finally:
        host.kill()
