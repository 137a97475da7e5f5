"""The directory that a demo writes to."""

from __future__ import annotations

import shutil
from pathlib import Path

from demo.processes import ProcessFailedError

#: Says that a directory may be emptied: a demo made it.
_MARK = ".made-by-demo"


def clear_output(output: Path) -> None:
    """Remove the output of the run before, and nothing else.

    :param output: the directory; it is there and empty afterwards.
    :raises ProcessFailedError: it holds files that are not a demo's.
    """
    mark = output / _MARK
    if output.exists() and any(output.iterdir()):
        if not mark.exists():
            raise ProcessFailedError(f"{output} holds files that are not the demo's: name another directory")
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)
    mark.touch()
