"""The installed program: quick to start, quiet in pipes, with a progress bar on terminals only."""

from __future__ import annotations

import errno
import io
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from airflow_ckpt_provider import __version__
from airflow_ckpt_provider.cli.main import main
from tests.support.command_line import PROGRAM, Finished, new_repository, run, run_program

_SLOW = ("airflow", "fsspec", "rich", "asyncio", "botocore", "s3fs", "obstore", "pyspark")


def loaded_by(*argv: str, modules: bool = False) -> set[str]:
    """Top-level packages that a run has loaded.

    :param modules: all modules instead.
    """
    code = (
        "import sys, json\n"
        "from airflow_ckpt_provider.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(list(sys.modules)), file=sys.stderr)"
    )
    finished = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, check=True)
    loaded = set(json.loads(finished.stderr.splitlines()[-1]))
    return loaded if modules else {name.partition(".")[0] for name in loaded}


@pytest.mark.parametrize("argv", [["--help"], ["restore", "--help"], ["--version"]], ids=" ".join)
def test_help_loads_nothing_slow(argv: list[str]):
    assert loaded_by(*argv) & set(_SLOW) == set()


def test_a_verb_loads_no_airflow_and_json_no_rich(checkpoint: Path):
    loaded = loaded_by("inspect", str(checkpoint), "--json")
    assert loaded & {"airflow", "pyspark", "botocore", "s3fs", "obstore"} == set()
    assert "airflow_ckpt_provider" in loaded, "the test sees what is loaded"


def test_a_backup_loads_nothing_that_it_does_not_use(checkpoint: Path, tmp_path: Path):
    """What other verbs need, and what a declaration of streams needs, where there is none."""
    run("init", str(tmp_path / "backups"))
    loaded = loaded_by("backup", str(checkpoint), str(tmp_path / "backups"), "--json", modules=True)
    assert "airflow_ckpt_provider.backup.create" in loaded, "the test sees what is loaded"
    others = {"checkpoint.advice", "checkpoint.doctor", "checkpoint.usage", "streams.loading", "streams.stream"}
    assert loaded & {f"airflow_ckpt_provider.{module}" for module in others} == set()
    assert loaded & {"yaml", "http.client", "ssl", "statistics", "fsspec"} == set()


def test_version():
    assert run_program("--version").out == f"airflow-ckpt {__version__}\n"


def completed(line: str, place: Path) -> list[str]:
    """What a shell is offered for the last word of a command line."""
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(place / "completed"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    subprocess.run([PROGRAM], env=environment, cwd=place, check=True, capture_output=True)
    return (place / "completed").read_text().split("\n")


def test_a_shell_completes_verbs_options_choices_and_declared_streams(tmp_path: Path):
    (tmp_path / "streams.yaml").write_text(
        "streams: {orders: {checkpoint: /o}, orders_eu: {checkpoint: /e}, clicks: {checkpoint: /c}}"
    )
    assert completed("airflow-ckpt res", tmp_path) == ["restore", "reset"]
    assert completed("airflow-ckpt backup --rea", tmp_path) == ["--reason "]
    assert completed("airflow-ckpt streams che", tmp_path) == ["check "]
    assert completed("airflow-ckpt backup --stream or", tmp_path) == ["orders", "orders_eu"]
    (tmp_path / "streams.yaml").write_text("streams: {")
    assert completed("airflow-ckpt backup --stream or", tmp_path) == [""]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_a_shell_evaluates_for_completion(shell: str):
    finished = run_program("--completion", shell)
    assert finished.code == 0
    assert "airflow-ckpt" in finished.out


def test_codes_reach_the_shell(checkpoint: Path, tmp_path: Path):
    assert run_program("inspect", checkpoint).code == 0
    assert run_program("inspect", tmp_path / "nowhere").code == 1
    assert run_program("inspect").code == 2
    assert run_program("inspect", "nosuchscheme://x/y").code == 3


def test_no_traceback_unless_asked_for(tmp_path: Path):
    plain = run("inspect", tmp_path)
    assert "Traceback" not in plain.err
    debugged = run("inspect", tmp_path, "--debug")
    assert debugged.err.startswith("Traceback (most recent call last):\n")
    assert debugged.err.endswith(plain.err)


def test_a_defect_says_so(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(call: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("airflow_ckpt_provider.cli.verbs.inspect.inspect", broken)
    finished = run("inspect", checkpoint)
    assert (finished.code, finished.out, finished.err) == (
        3,
        "",
        "error: unexpected ZeroDivisionError: division by zero\n"
        "HINT: this is a defect; run it again with --debug and report what it prints\n",
    )


def test_ctrl_c(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(call: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airflow_ckpt_provider.cli.verbs.inspect.inspect", interrupted)
    finished = run("inspect", checkpoint)
    assert (finished.code, finished.err) == (130, "\ninterrupted; the same command again continues from here\n")
    assert run("inspect", checkpoint, "--json").document["error"]["type"] == "KeyboardInterrupt"


def test_ctrl_c_before_the_verb_begins(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("airflow_ckpt_provider.cli.profile.profile_of", interrupted)
    finished = run("inspect", checkpoint, "--json")
    assert (finished.code, finished.document["error"]["type"]) == (130, "KeyboardInterrupt")
    assert "Traceback" not in finished.err


@pytest.mark.parametrize("options", [(), ("--json",)], ids=str)
def test_ctrl_c_while_modules_are_loaded(options: tuple[str, ...], checkpoint: Path):
    """In the first moment of the program, before it knows any verb."""
    code = (
        "import sys\n"
        "from importlib.metadata import entry_points\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'airflow_ckpt_provider.cli.by_stream':\n"
        "            sys.meta_path.remove(self)\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "(program,) = entry_points(group='console_scripts', name='airflow-ckpt')\n"
        "sys.exit(program.load()())"
    )
    argv = [sys.executable, "-c", code, "inspect", str(checkpoint), *options]
    finished = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (finished.returncode, finished.stderr) == (
        130,
        "\ninterrupted; the same command again continues from here\n",
    )
    assert json.loads(finished.stdout)["error"]["type"] == "KeyboardInterrupt" if options else finished.stdout == ""


def test_a_reader_that_has_had_enough_is_no_error(repository: Path):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed_pipe:
        finished = subprocess.run(
            [PROGRAM, "backups", repository], stdout=closed_pipe, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (finished.returncode, finished.stderr) == (0, "")


def without_reader(*argv: object) -> Finished:
    """Run the program in this process; whoever read its output has ended."""
    reading, writing = os.pipe()
    os.close(reading)
    err = io.StringIO()
    with os.fdopen(writing, "w") as closed_pipe, redirect_stdout(closed_pipe), redirect_stderr(err):
        return Finished(main([str(each) for each in argv]), "", err.getvalue())


def test_a_change_is_applied_also_if_nobody_reads_its_plan_any_more(repository: Path, tmp_path: Path):
    """``restore … --apply | head -1``: ending at the first line would be exit code 0 of a restore that did nothing."""
    finished = without_reader("restore", repository, "latest", tmp_path / "new", "--apply")
    assert (finished.code, finished.err) == (0, "")
    assert (tmp_path / "new" / "offsets" / "5").exists()


def test_what_was_found_and_what_failed_is_the_exit_code_also_without_a_reader(checkpoint: Path, tmp_path: Path):
    (checkpoint / "metadata").unlink()
    assert without_reader("inspect", checkpoint).code == 1
    assert without_reader("inspect", checkpoint, "--json").code == 1
    refused = without_reader("inspect", tmp_path / "nowhere", "--json")
    assert refused == Finished(1, "", run("inspect", tmp_path / "nowhere").err)


def test_a_connection_that_broke_is_an_error(checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    """Not the pipe of our own output: the verb has not done what it was asked for."""

    def broken(call: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr("airflow_ckpt_provider.cli.verbs.inspect.inspect", broken)
    finished = run("inspect", checkpoint)
    assert (finished.code, finished.err.splitlines()[0]) == (3, "error: BrokenPipeError: [Errno 32] Broken pipe")


@pytest.mark.parametrize("argv", [("backups",), ("backups", "--json"), ("restore", "latest", "nowhere")], ids=str)
def test_an_answer_that_cannot_be_written_is_an_error(argv: tuple[str, ...], repository: Path):
    """On a full disk, for example: two lines and no traceback, also not at the end of the process."""
    with open("/dev/full", "w") as full:
        finished = subprocess.run(
            [PROGRAM, argv[0], repository, *argv[1:]], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (finished.returncode, finished.stderr) == (
        3,
        "error: standard output could not be written: No space left on device\n"
        "HINT: see where it is redirected to, then run the same command again\n",
    )


def test_streams_that_the_caller_has_closed(checkpoint: Path, tmp_path: Path):
    """As of a daemon; what is opened later must not get their numbers either."""
    finished = run_program("inspect", checkpoint, preexec_fn=lambda: os.closerange(1, 3))
    assert finished.code == 0
    refused = run_program("inspect", tmp_path / "nowhere", "--json", preexec_fn=lambda: os.close(2))
    assert (refused.code, refused.document.keys()) == (1, {"error"})


def test_a_terminal_that_cannot_show_a_character(checkpoint: Path):
    """Nor can UTF-8 show a name that is none."""
    place = checkpoint.rename(checkpoint.with_name("bad\udcff"))
    (place / "metadata").unlink()
    for encoding in ("latin-1", "utf-8:strict"):
        finished = run_program("inspect", place, environment={"PYTHONIOENCODING": encoding})
        assert (finished.code, finished.err) == (1, "")


def test_what_somebody_wrote_does_not_control_the_terminal(checkpoint: Path, repository: Path):
    """Anybody who writes into a repository gives reasons, and could clear the screen or write over a line."""
    evil = "fine\x1b[2J\x1b]0;title\x07\rall is well\x9b1A"
    for argv in (
        ("backup", checkpoint, repository, "--reason", evil),
        ("backups", repository),
        ("seal", checkpoint, "--reason", evil),
        ("inspect", checkpoint),
        ("inspect", checkpoint, "--debug"),
        ("inspect", checkpoint.parent / evil),
        ("restore", repository, evil, checkpoint),
    ):
        finished = run(*argv)
        assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", finished.out + finished.err) == []
    assert "fine\\x1b[2J" in run("backups", repository).out


def test_nothing_but_the_answer_in_a_pipe(checkpoint: Path, tmp_path: Path):
    finished = run_program("backup", checkpoint, new_repository(tmp_path / "backups"))
    assert finished.err == ""
    assert "\x1b" not in finished.out


def on_a_terminal(*argv: object, out: int | None = None) -> str:
    """Run the program with a terminal as its standard error and return what was shown there."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"}
    process = subprocess.Popen([PROGRAM, *map(str, argv)], stdout=out or theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # so a terminal ends on Linux
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    assert process.wait() == 0
    return shown.decode()


def test_a_progress_bar_on_a_terminal(checkpoint: Path, tmp_path: Path):
    place = new_repository(tmp_path / "backups")
    shown = on_a_terminal("backup", checkpoint, place)
    assert "Backing up" in shown
    assert "━" in shown
    assert "Reading" in on_a_terminal("verify", place, "--read-data")
    assert "Restoring" in on_a_terminal("restore", place, "latest", tmp_path / "restored", "--apply")


def test_the_bar_does_not_spoil_json(checkpoint: Path, tmp_path: Path):
    answer, place = tmp_path / "answer.json", new_repository(tmp_path / "backups")
    with answer.open("w") as file:
        shown = on_a_terminal("backup", checkpoint, place, "--json", out=file.fileno())
    assert "Backing up" in shown
    assert json.loads(answer.read_text())["name"] == "orders"
