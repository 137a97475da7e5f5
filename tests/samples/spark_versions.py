"""Other Spark versions, each in a virtual environment of its own below ``.cache/``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]
#: What the Python side of a version works with.
_COMPANIONS = {
    "3.5.9": ["pandas<3", "pyarrow<20", "numpy<2", "setuptools"],
    "4.0.0": ["pandas<3", "pyarrow<20", "numpy<2.3", "protobuf"],
}
_NEWER = ["pandas<3", "pyarrow", "protobuf"]


def python_with(version: str, extra: str = "") -> Path:
    """Path of a Python with this pyspark; installs it the first time.

    :param extra: an extra of pyspark, such as ``pipelines``, which gets an environment of its own.
    """
    if version == _installed_here() and not extra:
        return Path(sys.executable)
    environment = _CHECKOUT / ".cache" / "-".join(filter(None, ("spark", extra, version)))
    python, ready = environment / "bin" / "python", environment / "ready"
    if not ready.exists():
        _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(environment))
        pyspark = f"pyspark[{extra}]=={version}" if extra else f"pyspark=={version}"
        packages = [pyspark, *_COMPANIONS.get(version, _NEWER)]
        _uv("pip", "install", "--quiet", "--python", str(python), *packages)
        ready.touch()
    return python


def _installed_here() -> str:
    import pyspark

    return str(pyspark.__version__)


def _uv(*arguments: str) -> None:
    subprocess.run(["dev/uv.sh", *arguments], cwd=_CHECKOUT, check=True)
