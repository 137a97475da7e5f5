"""The run that never failed: version 2 over all of the orders.

python -m demo.upgrade.reference ORDERS DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

from demo.stream import start_spark
from demo.upgrade.place import Place
from demo.upgrade.stream import CONF, start_stream
from demo.upgrade.versions import INPUT


def main(orders: Path, place: Place) -> int:
    """Run it to the end of the input.

    :param orders: the input, complete.
    :param place: for its checkpoint and its table.
    """
    spark = start_spark({**CONF, INPUT: str(orders)})
    start_stream(spark, "2", place.checkpoint, place.table, available_now=True).awaitTermination()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).absolute(), Place(Path(sys.argv[2]).absolute())))
