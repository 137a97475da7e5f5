"""Upgrades that have begun."""

from __future__ import annotations

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.upgrade.record import Upgrade, begin_upgrade

RUN = "upgrade_orders/run 1"


def begun(kept: Repository, run: str = RUN) -> Upgrade:
    """The upgrade of the stream ``orders`` by a run."""
    return begin_upgrade(kept, "orders", run, baseline={})
