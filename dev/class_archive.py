"""Start the Sparks of tests and demos with less work: further jars on the class path, and classes from an archive.

    python -m dev.class_archive

makes the archive (class data sharing, JEP 350) by running streams once, about a minute. With it a Spark needs half
of the processor time up to the end of its first batch. Java ignores an archive of another Java or class path.
``spark.jars.packages`` adds the same jars, but resolves them at every start, and Java loads no archived classes from
them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from dev.fetch_jars import IVY, coordinates, ready

ROOT = Path(__file__).resolve().parents[1]
ARCHIVES = ROOT / ".cache" / "java"
#: What is on the class path of all Sparks: it has to be the same for the archive to be taken.
LISTINGS = ("spark-jars", "iceberg-jars")
#: A Spark that runs for seconds: compiling less saves half of its processor time; not verifying the classes of released jars,
#: and starting programs (Hadoop asks ``readlink`` and ``chmod`` for each file) without a second one that starts them, a tenth.
#: One that runs for minutes fills the 48 MB that Java then has for compiled code, and a thread sweeps them all the time.
OPTIONS = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions "
    "-XX:-BytecodeVerificationRemote -Djdk.lang.Process.launchMechanism=VFORK"
)

#: What most tests do: streams with state from one table into another, of Delta and of Iceberg.
STREAMS = """
import sys
from pyspark.sql import SparkSession

where, archive = sys.argv[1:]
settings = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.extensions":
        "io.delta.sql.DeltaSparkSessionExtension,org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.lake.type": "hadoop",
    "spark.sql.catalog.lake.warehouse": where + "/lake",
    "spark.sql.streaming.stateStore.providerClass":
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={archive} -Xlog:disable",
}
spark = SparkSession.builder.master("local[2]").config(map=settings).getOrCreate()
spark.range(10).write.json(where + "/files")


def run(source, name, mode, form="delta"):
    stream = source.writeStream.outputMode(mode).format(form).trigger(availableNow=True)
    stream = stream.option("checkpointLocation", f"{where}/checkpoint-{name}")
    table = f"lake.files.{name}" if form == "iceberg" else f"{where}/{name}"
    if form == "iceberg":
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.files")
        spark.sql(f"CREATE TABLE IF NOT EXISTS {table} (id long) USING iceberg")
        stream.toTable(table).awaitTermination()
        spark.table(table).collect()
    else:
        stream.start(table).awaitTermination()
        spark.read.format(form).load(table).collect()


run(spark.readStream.schema("id long").json(where + "/files"), "rows", "append")
run(spark.readStream.format("delta").load(where + "/rows").groupBy("id").count(), "counts", "complete")
run(spark.readStream.schema("id long").json(where + "/files"), "snapshots", "append", "iceberg")
java = spark.sparkContext._gateway.proc
spark.stop()
java.stdin.close()
java.wait()  # it writes the archive at its end
"""


@cache
def class_path() -> str:
    """What `make jars` has fetched and Spark does not bring itself, as Java takes it."""
    own = {_artifact(jar.name) for jar in (_pyspark() / "jars").glob("*.jar")}
    found = []
    for listing in _fetched():
        for jar in (IVY / f"{listing.stem}.jars").read_text().split():
            # Ivy puts the organisation before the name.
            if not any(_artifact(Path(jar).name).endswith(f"_{name}") for name in own):
                found.append(jar)
    return os.pathsep.join(dict.fromkeys(found))


def not_on_class_path(packages: Iterable[str]) -> list[str]:
    """Which of some Maven coordinates Spark has to resolve.

    :param packages: Maven coordinates.
    """
    known = {package for listing in _fetched() for package in coordinates(listing)}
    return [package for package in packages if package not in known]


def _fetched() -> list[Path]:
    """Those of :data:`LISTINGS` that were fetched as they are now; none for a Spark that they are not made for."""
    listings = [ROOT / "dev" / f"{name}.txt" for name in LISTINGS]
    if not any(each.endswith(f":{version('pyspark')}") for each in coordinates(listings[0])):
        return []
    return [listing for listing in listings if ready(listing).exists()]


def environment() -> dict[str, str]:
    """Variables that Spark's start scripts hand to Java; none where no jars were fetched for this Spark.

    The class path goes behind Spark's own.
    """
    if not class_path():
        return {}
    archive = ARCHIVES / f"spark-{_key()}.jsa"
    shared = f" -XX:SharedArchiveFile={archive} -Xlog:disable" if archive.exists() else ""
    return {
        "SPARK_DIST_CLASSPATH": class_path(),
        "SPARK_LAUNCHER_OPTS": OPTIONS,
        "SPARK_SUBMIT_OPTS": OPTIONS + shared,
    }


def _artifact(jar: str) -> str:
    """The name of a jar without its version."""
    return re.split(r"-\d", jar, maxsplit=1)[0]


def _pyspark() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise SystemExit("pyspark is not installed: make venv")
    return Path(found.origin).parent


def _java() -> str:
    """The Java that Spark takes."""
    return shutil.which("java", path=f"{os.environ.get('JAVA_HOME', '')}/bin:{os.environ['PATH']}") or "java"


@cache
def _key() -> str:
    """Of what an archive depends on."""
    release = subprocess.run([_java(), "-version"], capture_output=True, check=True).stderr.decode()
    return hashlib.sha256(f"{release} {version('pyspark')} {class_path()} {STREAMS}".encode()).hexdigest()[:16]


def main() -> int:
    """Make the archive. Spark starts without it too, so a failure is a line and no error."""
    archive = ARCHIVES / f"spark-{_key()}.jsa"
    if archive.exists():
        return 0
    ARCHIVES.mkdir(parents=True, exist_ok=True)
    log = ARCHIVES / "spark.log"
    print("keeping the classes that Spark loads (once, about a minute)", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=ARCHIVES) as where, log.open("w") as out:
        new = Path(where) / "spark.jsa"
        command = [sys.executable, "-c", STREAMS, f"{where}/streams", str(new)]
        try:
            subprocess.run(command, stdout=out, stderr=out, check=True, timeout=600, env=os.environ | environment())
            for other in ARCHIVES.glob("spark-*.jsa"):
                other.unlink()
            new.replace(archive)
        except (OSError, subprocess.SubprocessError) as error:
            print(f"Spark starts without an archive of its classes: {type(error).__name__}; see {log}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
