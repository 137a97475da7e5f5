"""A Spark that audits on request: ``audit_state`` in a process of its own, one JSON line for each request.

python -m tests.support.state_auditor
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.jobs import audit_state
from tests.support.streams.session import start_session


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = start_session()
    print(json.dumps({"spark": spark.version}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = audit_state.audit(spark, **request)
        except audit_state.NothingToRead as e:
            answer = {"nothing": str(e)}
        print(json.dumps(answer), file=answers, flush=True)
    # Streams of Python workers keep a session from ending in time.
    os._exit(0)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    main()
