"""``chain backup`` and ``chain restore``: a set of backups from a shell; and streams by their declared application."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.storage.opening import open_location
from tests.support.command_line import run
from tests.support.json_documents import documented
from tests.support.several_sinks import IDS, NEWEST, Application

STOPPED = ("--query-is-stopped", "--quiet-for", 0)


@pytest.fixture
def application(tmp_path: Path) -> Application:
    return Application.planted(open_location(str(tmp_path)))


@pytest.fixture
def declared(application: Application) -> Path:
    place = Path(application.root.root) / "streams.yaml"
    lines = ["defaults:", f"  repository: {application.root.root}/backups", "streams:"]
    for name in IDS:
        lines += [f"  {name}:", f"    checkpoint: {application.root.root}/{name}", "    application: shop"]
    lines += ["  alone:", f"    checkpoint: {application.root.root}/alone"]
    place.write_text("\n".join(lines) + "\n")
    return place


def named(application: Application) -> list[object]:
    places = [word for name in IDS for word in ("--stream", f"{name}={application.root.root}/{name}")]
    return [*places, "--repository", f"{application.root.root}/backups"]


def newest(application: Application) -> dict[str, int | None]:
    return {name: Checkpoint.at(application.root / name).progress().latest_committed for name in IDS}


def test_there_and_back(application: Application) -> None:
    made = run("chain", "backup", *named(application), "--tag", "env=prod", "--json").document
    assert made.keys() == documented("chain", 2).keys()
    application.go_on()
    plan = run("chain", "restore", *named(application), "--replace", "--json").document
    assert plan.keys() == documented("chain", 3).keys()
    assert plan["set_id"] == made["set_id"]
    how = ("--set", made["set_id"], "--replace", "--fingerprint", plan["fingerprint"], *STOPPED, "--apply")
    done = run("chain", "restore", *named(application), *how)
    assert done.code == 0, done.err
    assert f"Set {made['set_id']} is restored" in done.out
    assert newest(application) == NEWEST
    back = run("chain", "undo", *named(application), *STOPPED)
    assert back.code == 0, back.err
    assert newest(application) == {name: batch + 2 for name, batch in NEWEST.items()}


def test_by_the_application(application: Application, declared: Path) -> None:
    """Of the three streams that are declared, two are of it."""
    of = ("--application", "shop", "--streams", declared)
    made = run("chain", "backup", *of)
    assert made.code == 0, made.err
    application.go_on()
    done = run("chain", "restore", *of, "--replace", *STOPPED, "--apply")
    assert done.code == 0, done.err
    assert newest(application) == NEWEST
    assert run("chain", "undo", *of, *STOPPED).code == 0
    plan = run("chain", "rewind", *of, "--shift-by=-1", "--json").document
    assert plan["batches"] == {name: batch + 1 for name, batch in NEWEST.items()}


def test_the_list(application: Application) -> None:
    place = f"{application.root.root}/backups"
    assert "holds no set" in run("backups", place, "--sets").out
    set_id = run("chain", "backup", *named(application), "--json").document["set_id"]
    listed = run("backups", place, "--sets", "--json")
    assert listed.code == 0
    assert listed.document.keys() == documented("backups", 1).keys()
    assert [each["set_id"] for each in listed.document["sets"]] == [set_id]
    assert "orders 4, returns 6" in run("backups", place, "--sets").out
    for path in list((application.root / "backups").walk("backups/returns")):
        (application.root / "backups").delete(path)
    broken = run("backups", place, "--sets", "--name", "orders")
    assert broken.code == 1
    assert f"set {set_id}: it has no backup of returns" in broken.out
    resumed = run("chain", "backup", *named(application), "--set", set_id, "--json").document
    assert resumed["whole"] is True


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["backup"], 2, "no stream is named"),
        (["backup", "--stream", "a=/none", "--application", "shop"], 2, "both streams and an application"),
        (["backup", "--stream", "a=/none"], 2, "no repository is named"),
        (["restore", "--application", "shop", "--streams", "{declared}"], 1, "has no whole set of backups"),
        (["restore", "--application", "shops", "--streams", "{declared}"], 1, "no stream with application: shops"),
        (["backup", "--stream", "a/b=/none", "--repository", "{repository}"], 1, "cannot be the name of a stream"),
    ],
)
def test_what_does_not_fit(application: Application, declared: Path, words: list[str], code: int, said: str) -> None:
    given = [word.format(declared=declared, repository=f"{application.root.root}/backups") for word in words]
    finished = run("chain", *given)
    assert (finished.code, said in finished.err) == (code, True), finished.err


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("restore", ("--to-datetime", "2020-01-01T00:00:00Z", "--apply")),
        ("restore", ("--shift-by=0",)),
        ("restore", ("--plan", "4f1c")),
        ("undo", ("--set", "4f1c")),
        ("undo", ("--to-latest",)),
        ("rewind", ("--to-latest", "--set", "4f1c")),
        ("rewind", ("--to-latest", "--replace")),
        ("backup", ("--to-batch", 3)),
        ("backup", ("--replace",)),
        ("backup", ("--stop-running",)),
        ("restore", ("--no-exact-replay",)),
        ("undo", ("--from", "orders")),
    ],
)
def test_an_option_of_another_action_is_refused(
    application: Application, action: str, words: tuple[object, ...]
) -> None:
    """A restore to a time was one of the newest set."""
    run("chain", "backup", *named(application))
    application.go_on()
    before = newest(application)
    refused = run("chain", action, *named(application), *words, *STOPPED)
    option = next(str(word) for word in reversed(words) if str(word).startswith("--") and word != "--apply").split("=")[
        0
    ]
    assert refused.code == 2
    assert f"chain {action} takes no {option}" in refused.err
    assert newest(application) == before


@pytest.mark.parametrize("action", ["backup", "restore", "rewind", "undo"])
def test_a_stream_that_is_named_twice_is_refused(application: Application, action: str) -> None:
    """A backup of two streams was one of one."""
    one, other = IDS
    root = Path(application.root.root)
    before = {path for path in root.rglob("*") if path.is_file()}
    words = ("--to-latest",) if action == "rewind" else ()
    for names in ((one, one), (one, "copy")):
        places = [other, one] if names[1] == one else [one, one]
        streams = [
            w for name, at in zip(names, places, strict=True) for w in ("--stream", f"{name}={application.root / at}")
        ]
        refused = run("chain", action, *streams, "--repository", root / "backups", *words, *STOPPED)
        assert refused.code == 1
        assert "two streams have the" in refused.err
    assert {path for path in root.rglob("*") if path.is_file()} == before
