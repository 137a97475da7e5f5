"""Errors of this package reach another process as they were raised: tasks of Spark answer with them."""

from __future__ import annotations

import pickle

import pytest

from airflow_ckpt_provider.errors import (
    CkptError,
    DamagedBackupError,
    FileChangedError,
    LeaseLostError,
    OtherStreamError,
    UntrustedError,
)


@pytest.mark.parametrize(
    "error",
    [
        LeaseLostError("the lease is lost", hint="run it again"),
        DamagedBackupError("damaged", findings=("one", "two"), hint="choose another backup"),
        FileChangedError("changed", path="state/0", listed="3 bytes", found=None, hint="see who writes there"),
        OtherStreamError("another stream", other=True),
        UntrustedError("not signed", data=b"{}"),
    ],
)
def test_pickled(error: CkptError) -> None:
    error.add_hint("or ask")
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
