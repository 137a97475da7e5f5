"""Makes ``airflow_ckpt_provider/advisor/wordings.json``: messages of Spark, Kafka's source and Delta without their names.

An event log or a driver's log may show a message without its error condition in front. The messages are those of the
error-conditions files in the jars of the Spark that is installed and of its connectors; ``<parameters>`` stay as they are.

    python -m dev.make_wordings
"""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark

from airflow_ckpt_provider.advisor.registry import by_name, pattern_of

ROOT = Path(__file__).parents[1]
WORDINGS = ROOT / "airflow_ckpt_provider/advisor/wordings.json"


@functools.cache
def messages() -> Mapping[str, str]:
    """Name of each error condition in the jars -> its message, of a sub-condition without that of the condition."""
    jars = [*Path(pyspark.__file__).parent.glob("jars/spark-*.jar")]
    for connector in ("delta-spark", "spark-sql-kafka"):
        jars += (ROOT / ".cache/ivy/jars").glob(f"*{connector}*.jar")
    return {name: text for jar in sorted(jars) for name, text in _of_jar(jar)}


def _of_jar(jar: Path) -> Iterator[tuple[str, str]]:
    with zipfile.ZipFile(jar) as archive:
        for file in archive.namelist():
            if file.startswith("error/") and file.endswith(("conditions.json", "classes.json")):
                for name, about in json.loads(archive.read(file)).items():
                    if isinstance(about, dict):
                        yield name, " ".join(about.get("message") or ())
                        for sub, more in (about.get("subClass") or {}).items():
                            yield f"{name}.{sub}", " ".join(more.get("message") or ())


def wordings() -> dict[str, str]:
    """Those messages that say which condition of the registry it is, and no other."""
    every = messages()
    found = {}
    for name, message in sorted(every.items()):
        condition, pattern = by_name(name), pattern_of(message)
        if condition is None or pattern is None:
            continue
        others = (other for other, text in every.items() if by_name(other) is not condition and pattern.search(text))
        if next(others, None) is None:
            found[name] = message
    return found


if __name__ == "__main__":
    WORDINGS.write_text(json.dumps(wordings(), indent=1, sort_keys=True) + "\n")
