"""Where the streams of a chain are."""

from __future__ import annotations

import json

from airflow_ckpt_provider.recovery.chains.naming import stream_of
from airflow_ckpt_provider.recovery.chains.stream import ChainStream
from airflow_ckpt_provider.sinks.sink import Sink
from airflow_ckpt_provider.storage.location import Location
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.chain_changes import chained as chained
from tests.support.chain_changes import template as template


def position(place: Location, batch: int, source: int = 0) -> tuple[int, int]:
    offset = json.loads(place.read(f"offsets/{batch}").decode().split("\n")[2 + source])
    return offset["reservoirVersion"], offset["index"]


def named(text: str) -> ChainStream:
    return stream_of(
        text,
        open_checkpoint=open_location,
        named_sink=lambda name, app_id: Sink.named(name, open_location, app_id=app_id),
        repository=None,
    )
