"""Which of many cases run every time; the others are marked ``slow``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.samples.archives import VERSIONS, kinds_of

#: Versions of Spark whose samples are read every time: the oldest, the locked one and the newest.
_READ = (VERSIONS[0], "4.0.0", VERSIONS[-1])


def of_these(cases: Iterable[Any], *every_run: Any) -> list[Any]:
    """Parameters for all cases, those marked ``slow`` that are not among the ones of every run.

    :param cases: values of one parameter, or tuples of several.
    :param every_run: those that run every time.
    """
    found = list(cases)
    if unknown := [case for case in every_run if case not in found]:
        raise ValueError(f"{unknown} is none of {found}")
    return [
        case
        if case in every_run
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in found
    ]


#: Each sample of a checkpoint, as ``(version, kind)``; those of versions between are read by ``make slow``.
each_sample = pytest.mark.parametrize(
    ("version", "kind"),
    [
        pytest.param(version, kind, id=f"{version}-{kind}", marks=() if version in _READ else pytest.mark.slow)
        for version in VERSIONS
        for kind in kinds_of(version)
    ],
)
