"""When the silence of a stopped query proves its end: the rule of ``docs/design.md``, on both sides of each limit."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from airflow_ckpt_provider.change.rest import RestEvidence, RestProof, RestRule, prove_rest
from airflow_ckpt_provider.errors import QueryNotStoppedError
from airflow_ckpt_provider.storage.opening import open_location
from tests.samples.archives import sample
from tests.support import rest_oracle

DAY = 86_400_000


def ask(checkpoint: Path, rule: RestRule) -> RestProof | QueryNotStoppedError:
    try:
        return prove_rest(open_location(str(checkpoint)), rule)
    except QueryNotStoppedError as e:
        return e


@pytest.mark.parametrize(
    ("pauses", "history", "reason"),
    [
        ([250] * 5, 0, None),
        ([250] * 4, 0, None),
        ([250] * 3, 0, rest_oracle.FEW),
        ([125, 125, 625, 125, 125], 0, None),
        ([125, 125, 626, 125, 125], 0, rest_oracle.UNEVEN),
        ([125, 125, DAY, 125, 125], 86400, rest_oracle.UNEVEN),
        ([250] * 5, 1.25, None),
        ([250] * 5, 1.251, rest_oracle.SHORT),
        ([250, 250, 250, 250, -1], 0, rest_oracle.BACKWARDS),
        ([250] * 5, 0, rest_oracle.UNDER_WAY),
    ],
)
def test_the_rule_to_the_millisecond(tmp_path: Path, pauses: list[int], history: float, reason: str | None) -> None:
    """Spark's own files, and in them times that lie on both sides of each limit."""
    checkpoint = sample("4.0.0", "file_to_file_compact").unpack(tmp_path / "checkpoint")
    for batch in rest_oracle.logged(checkpoint, "offsets")[: -len(pauses) - 1]:
        for log in ("offsets", "commits"):
            (checkpoint / f"{log}/{batch}").unlink()
    rest_oracle.set_times(checkpoint, list(accumulate(pauses, initial=1_800_000_000_000)))
    if reason == rest_oracle.UNDER_WAY:
        (checkpoint / f"commits/{rest_oracle.logged(checkpoint, 'commits')[-1]}").unlink()
    assert rest_oracle.obstacles(checkpoint, history=history) == ({reason} if reason else set())

    rule = RestRule(quiet_for=0.5, wait_at_most=120, minimum=0, history=history)
    found = ask(checkpoint, rule)
    if reason:
        assert isinstance(found, QueryNotStoppedError), found
        assert (reason in found.message, found.needed) == (True, None)
        return
    assert isinstance(found, RestProof), found
    assert found.how == RestEvidence.QUIET
    for minimum in (0, 60):
        needed = rest_oracle.silence(checkpoint, factor=rule.factor, minimum=minimum)
        refused = ask(checkpoint, replace(rule, minimum=minimum, wait_at_most=needed / 2))
        assert isinstance(refused, QueryNotStoppedError), refused
        assert refused.needed == needed
