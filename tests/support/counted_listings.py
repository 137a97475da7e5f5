"""Stores that count listings."""

from __future__ import annotations

from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.store import Listing


class ListingCounter(LocalStore):
    """Counts the reads each directory, which a walk of a local disk consists of."""

    def __init__(self) -> None:
        self.listed: list[str] = []

    def list(self, path: str) -> Listing:
        self.listed.append(path)
        return super().list(path)
