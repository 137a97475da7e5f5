"""Running ``airflow-ckpt`` in tests: in this process, or in one of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_ckpt_provider.cli.main import main

#: The console script beside the Python that runs the tests.
PROGRAM = Path(sys.executable).with_name("airflow-ckpt")
#: Programs print as in a window of this width, and see no store but the ones they are told of.
_ENVIRONMENT = {"COLUMNS": "100"}


@dataclass(frozen=True)
class Finished:
    """A run of the program."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        """The one JSON document on standard output; anything else there is an error."""
        found: dict[str, Any] = json.loads(self.out)
        return found


def run(*argv: object) -> Finished:
    """Run the program in this process."""
    out, err = io.StringIO(), io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ.update(_ENVIRONMENT)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main([str(a) for a in argv])
    except SystemExit as e:  # argparse
        code = int(e.code or 0)
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return Finished(code, out.getvalue(), err.getvalue())


def new_repository(place: Path | str, *options: object) -> Path | str:
    """Make a repository from the shell, and return its place."""
    finished = run("init", place, *options)
    assert finished.code == 0, finished.err
    return place


def run_program(*argv: object, environment: Mapping[str, str] | None = None, **more: Any) -> Finished:
    """Run the installed program in a process of its own."""
    finished = subprocess.run(
        [PROGRAM, *map(str, argv)],
        env={**os.environ, **_ENVIRONMENT, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        **more,
    )
    return Finished(finished.returncode, finished.stdout, finished.stderr)
