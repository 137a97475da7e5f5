"""Finding the user's build function, and everything that can be wrong with it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.jobs.build_function import BuildError, frame_of, load_build, settings_of


def code_of(given: str) -> str:
    with pytest.raises(BuildError) as caught:
        load_build(given)
    assert "HINT:" in str(caught.value)
    return caught.value.code


def test_a_file_and_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "orders_v2.py").write_text(
        "import neighbour\ndef build(spark): return neighbour.N\ndef other(spark): return 2\n"
    )
    (tmp_path / "neighbour.py").write_text("N = 1\n")
    one: Any = None
    assert load_build(f"{tmp_path}/orders_v2.py")(one) == 1
    assert load_build(f"{tmp_path}/orders_v2.py:other")(one) == 2
    assert load_build("orders_v2:build")(one) == 1
    assert load_build("orders_v2")(one) == 1


def test_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "empty_one.py").write_text("build = 3\n")
    assert code_of("no_such_module:build") == "BUILD-MISSING"
    assert code_of(f"{tmp_path}/nowhere.py:build") == "BUILD-MISSING"
    assert code_of("empty_one:build") == "BUILD-MISSING"
    assert code_of("empty_one:other") == "BUILD-MISSING"


def test_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "broken_one.py").write_text("import no_such_library\n")
    (tmp_path / "wrong_one.py").write_text("def build(spark:\n")
    assert code_of("broken_one:build") == "BUILD-FAILED"
    assert code_of(f"{tmp_path}/wrong_one.py") == "BUILD-FAILED"


def test_what_is_no_streaming_frame():
    session: Any = None
    streaming: Any = SimpleNamespace(isStreaming=True)
    assert frame_of(lambda _: streaming, session, "m:f") is streaming
    for given in (None, SimpleNamespace(isStreaming=False)):
        with pytest.raises(BuildError, match="not a streaming frame") as caught:
            frame_of(lambda _, found=given: found, session, "m:f")  # type: ignore[misc]
        assert caught.value.code == "BUILD-NOT-STREAMING"

    def fail(_: Any) -> Any:
        raise KeyError("customers")

    with pytest.raises(BuildError, match="KeyError: 'customers'") as caught:
        frame_of(fail, session, "m:f")
    assert caught.value.code == "BUILD-FAILED"


def test_settings():
    assert settings_of(["a=1", "b=x=y"]) == {"a": "1", "b": "x=y"}
    with pytest.raises(RefusedError, match="KEY=VALUE"):
        settings_of(["a"])
