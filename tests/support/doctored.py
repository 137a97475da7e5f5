"""Sample checkpoints for the doctor."""

from __future__ import annotations

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.damaged_samples import Placed


def opened(place: Placed) -> Checkpoint:
    return Checkpoint.at(open_location(str(place.checkpoint)))
