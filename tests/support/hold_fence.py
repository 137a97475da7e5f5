"""An attempt at a change in a process of its own, which holds its fence until its standard input is closed::

    python -m tests.support.hold_fence <repository> <checkpoint> <lease> <request time-out>

It says ``begun`` once it has the fence. For each line that it then reads it writes a file of that name into the checkpoint, and
says ``written``, or why it did not.
"""

from __future__ import annotations

import sys

from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.change.attempts import LeaseTerms
from airflow_ckpt_provider.change.fence import fenced
from airflow_ckpt_provider.errors import CkptError
from airflow_ckpt_provider.storage.opening import open_location


def main(repository: str, checkpoint: str, lease: str, request_timeout: str) -> None:
    place = open_location(checkpoint)
    terms = LeaseTerms(float(lease), float(request_timeout))
    held = Repository.open(open_location(repository))
    with fenced(held, place, plan_id="7f3a", what="a rewind", made_by="first", terms=terms) as fence:
        print("begun", flush=True)
        for line in sys.stdin:
            fence.guarding(place).create(line.strip(), b"")
            print("written", flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except CkptError as e:
        print(e.message, flush=True)
        sys.exit(1)
