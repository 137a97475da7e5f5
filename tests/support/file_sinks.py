"""Logs of Spark's file sink."""

from __future__ import annotations

import json

from airflow_ckpt_provider.storage.location import Location

NEWEST = 6


def entry(place: Location, batch: int, name: str = "part") -> str:
    path = f"memory://{place.root}/{name} {batch}.json".replace(" ", "%20")
    return json.dumps({"path": path, "size": 3, "isDir": False, "action": "add"})


def file_sink(place: Location, newest: int = NEWEST, *, compact: int | None = None, purged: bool = False) -> Location:
    """A sink with one data file a batch, whose names need escaping in a URI."""
    for batch in range(newest + 1):
        (place / f"part {batch}.json").store.replace(f"{place.root}/part {batch}.json", b"row")
        if not (purged and compact is not None and batch < compact):
            place.replace(f"_spark_metadata/{batch}", f"v1\n{entry(place, batch)}".encode())
    if compact is not None:
        place.delete(f"_spark_metadata/{compact}")
        lines = "\n".join(entry(place, batch) for batch in range(compact + 1))
        place.replace(f"_spark_metadata/{compact}.compact", f"v1\n{lines}".encode())
    return place
