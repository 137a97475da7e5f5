"""Queries that a test has stopped itself, or never started."""

from __future__ import annotations

import time

from airflow_ckpt_provider.change.rest import RestRule
from airflow_ckpt_provider.change.risks import RISKS
from airflow_ckpt_provider.change.target import Target, inspect_target
from airflow_ckpt_provider.storage.location import Location

#: A person's word, as the tests know what runs.
STOPPED = RestRule(query_is_stopped=True, said_by="a test", quiet_for=0.0)
#: Every risk, for tests that are about something else.
ACCEPTED = RISKS


def wait_until_quiet(location: Location, *, quiet_for: float, at_most: float) -> Target:
    """Wait until nothing changes for ``quiet_for`` seconds."""
    deadline = time.monotonic() + at_most
    before = inspect_target(location)
    while True:
        time.sleep(quiet_for)
        now = inspect_target(location)
        if now.fingerprint == before.fingerprint:
            return now
        assert time.monotonic() < deadline, f"{location} is still written to"
        before = now
