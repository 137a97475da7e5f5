"""Describes versions of the stream, for the comparison with its checkpoint before they are deployed.

    python -m demo.upgrade.describe DIRECTORY VERSION ...

Of a version that cannot be described because it does not even start, the description of the version before is taken: the
comparison has nothing to say then, and the health gate finds out.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.jobs.describe_query import describe
from demo.stream import start_spark
from demo.upgrade.place import Place
from demo.upgrade.stream import settings
from demo.upgrade.versions import VERSIONS


def main(place: Place, versions: list[str]) -> int:
    """Describe them.

    :param place: where all of it is.
    :param versions: which, each the next one of the one before.
    """
    spark = start_spark(settings(place))
    text = ""
    for version in versions:
        with tempfile.TemporaryDirectory() as scratch:
            build = VERSIONS[version]
            try:
                found = describe(spark, build, given=f"{build.__module__}:{build.__name__}", scratch=scratch)
                text = json.dumps(found.to_json(), indent=2)
            except RefusedError as e:
                print(e)
        (place.descriptions / f"{version}.json").write_text(text)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Place(Path(sys.argv[1]).absolute()), sys.argv[2:]))
