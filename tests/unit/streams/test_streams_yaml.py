"""streams.yaml: the same model as in Python, every problem at once with its line, and quick to read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import jsonschema
import pytest
import yaml

from airflow_ckpt_provider.errors import RefusedError
from airflow_ckpt_provider.streams import schema
from airflow_ckpt_provider.streams.declared import kinds_of
from airflow_ckpt_provider.streams.loading import MERGED, load_streams, parse_streams
from airflow_ckpt_provider.streams.problems import DeclarationError, dotted
from airflow_ckpt_provider.streams.settings import SETTINGS
from airflow_ckpt_provider.streams.stream import Backup, Stream
from airflow_ckpt_provider.streams.streams import Streams, UnknownStreamError

FULL = """\
version: 1
defaults:
  repository: s3://backups/streams
  repository_conn_id: aws_backups
  storage_conn_id: aws_lake
  objectives: {rpo: 1h}
  stop: ./stop.sh {stream}
  tags: [gold]
streams:
  orders:
    checkpoint: s3://lake/checkpoints/orders
    sources:
      kafka: {conn_id: kafka_prod}
      delta: {tables: {table.0: s3://lake/tables/customers}}
    sinks:
      - s3://lake/tables/orders
      - {sink: foreachBatch, txn_app_id: orders-batch}
    driver: {progress_log: s3://lake/logs/orders.jsonl, log: s3://lake/logs/orders.log}
    start: {dag: start_orders}
    deploy: {operator: {operator: airflow.providers.standard.operators.bash.BashOperator, arguments: {bash_command: "true"}}}
    roll_back: {databricks_job: {job_id: 17, conn_id: dbc}}
    max_downtime: PT24H
    objectives: {rto: 15m, restorable_for: 30d}
    backup: {schedule: 30 2 * * *, verify: 1/7}
    retention: {hourly: 48, daily: 30}
    watch: {stuck_after: 10min}
    drill: {build: "orders.stream:build", scratch: "s3a://lake/scratch"}
    notifiers: [airflow_ckpt_provider.notifications.recovery_advice.RecoveryAdviceNotifier]
    owner: team-orders
  clicks:
    checkpoint: s3://lake/checkpoints/clicks
    stop: {spark_application: {name: clicks, namespace: streams}}
    tags: bronze
  no:
    checkpoint: s3://lake/checkpoints/no
"""


def problems_of(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(DeclarationError) as caught:
        parse_streams(text)
    return [(each.line, dotted(each.path), each.message) for each in caught.value.problems]


def test_a_full_file_is_read() -> None:
    streams = parse_streams(FULL)
    assert list(streams) == ["orders", "clicks", "no"]
    orders = streams.named("orders")
    assert orders.repository == "s3://backups/streams"
    assert orders.kafka == "kafka_prod"
    assert orders.sources["delta"].tables == {"table.0": "s3://lake/tables/customers"}
    assert [sink.sink for sink in orders.sinks] == ["s3://lake/tables/orders", "foreachBatch"]
    assert orders.max_downtime == timedelta(days=1)
    assert orders.schedule == "30 2 * * *"
    assert orders.watch.stuck_after == timedelta(minutes=10)
    assert orders.tags == ("gold",)
    assert [getattr(orders, name).way for name in ("stop", "start", "deploy", "roll_back")] == [
        "command",
        "dag",
        "operator",
        "databricks_job",
    ]
    assert orders.roll_back is not None
    assert orders.roll_back.databricks_job is not None
    assert orders.roll_back.databricks_job.job_id == "17"


def test_defaults_are_filled_in_and_overridden() -> None:
    streams = parse_streams(FULL)
    orders, clicks = streams["orders"], streams["clicks"]
    # Field by field where fields belong together, as a whole otherwise; {stream} is the name of the stream.
    assert orders.objectives.rpo == timedelta(hours=1)
    assert orders.objectives.rto == timedelta(minutes=15)
    assert orders.stop is not None
    assert orders.stop.command == "./stop.sh orders"
    assert clicks.stop is not None
    assert clicks.stop.way == "spark_application"
    assert clicks.tags == ("bronze",)
    assert clicks.schedule == timedelta(hours=1)  # from rpo


def test_python_declares_the_same() -> None:
    [stream] = parse_streams(
        """
        streams:
          orders:
            checkpoint: s3://lake/checkpoints/orders
            sinks: s3://lake/tables/orders
            stop: ./stop.sh
            max_downtime: 1d 12h
            objectives: {rpo: 30min}
        """
    ).values()
    assert stream == Stream(
        "orders",
        checkpoint="s3://lake/checkpoints/orders",
        sinks="s3://lake/tables/orders",  # type: ignore[arg-type]  # as short as in YAML
        stop="./stop.sh",  # type: ignore[arg-type]
        max_downtime=timedelta(hours=36),
        objectives={"rpo": "PT30M"},  # type: ignore[arg-type]
    )


def test_python_is_told_all_problems_at_once() -> None:
    with pytest.raises(DeclarationError) as caught:
        Stream("orders", checkpoint="lake/orders", max_downtime="24 hrs", stop={"comand": "x"})  # type: ignore[arg-type]
    assert [dotted(each.path) for each in caught.value.problems] == ["checkpoint", "stop.comand", "max_downtime"]
    assert "did you mean 'command'?" in str(caught.value)


@pytest.mark.parametrize("given", ["checkpoint", "sinks", "backup", "retention", "watch"])
def test_none_in_python_means_what_nothing_in_the_file_means(given: str) -> None:
    fields = {"checkpoint": "/c/orders", given: None}
    if given == "checkpoint":  # such as os.environ.get("CHECKPOINT")
        with pytest.raises(DeclarationError, match="checkpoint is missing"):
            Stream("orders", **fields)
    else:
        declared = parse_streams(f"streams: {{orders: {{checkpoint: /c/orders, {given}: }}}}")["orders"]
        assert Stream("orders", **fields) == declared


#: A value of each field that may be left out, other than its default.
GIVEN = {
    "repository": "/r",
    "name_in_repository": "b",
    "application": "app",
    **dict.fromkeys((name for name in kinds_of(Stream) if name.endswith("conn_id")), "other"),
    "sources": {"file": {"conn_id": "aws"}},
    "sinks": ["/t"],
    "driver": {"progress_log": "/log", "log": "/text", "conn_id": "aws", "spark_api_url": "http://spark"},
    **dict.fromkeys(("stop", "start", "deploy", "roll_back"), "true"),
    "max_downtime": "1h",
    "objectives": {"rpo": "1h", "rto": "1h", "restorable_for": "1h"},
    "backup": {"schedule": "1h", "verify": "all", "restorable_batches": 2, "create": True, "immutable_for": "1h", "workers": 2},
    "retention": {"daily": 3},
    "watch": {"stuck_after": "1h", "behind_after": "1h", "silent_after": "1h", "max_gap": 3, "min_time_to_loss": "1h"},
    "drill": {"build": "a.b:c", "scratch": "/s", "output_mode": "update", "batches": 4},
    "notifiers": ["a.B"],
    "tags": ["gold"],
    "owner": "team",
}  # fmt: skip
BY_SCHEMA = jsonschema.Draft202012Validator(schema.streams_schema())
NESTED = [(name, inner) for name in (*MERGED, "drill") for inner in GIVEN[name]]  # type: ignore[attr-defined]


def stream_of(defaults: object, own: dict[str, object], **settings: str) -> Stream:
    """The stream of a document, which the schema takes as well."""
    document = {"defaults": defaults, "streams": {"a": {"checkpoint": "/a", **own}}}
    BY_SCHEMA.validate(document)
    return parse_streams(yaml.safe_dump(document), settings=settings)["a"]


def test_null_in_a_stream_removes_the_default_of_every_field() -> None:
    assert {"name", "checkpoint", *GIVEN} == set(kinds_of(Stream))
    nothing = stream_of({}, {})
    for name in GIVEN.keys() - {"name_in_repository"}:
        base = {"repository": "/r"} if name == "drill" else {}
        given = stream_of({**base, name: GIVEN[name]}, {})
        assert getattr(given, name) != getattr(nothing, name), name
        assert stream_of({**base, name: GIVEN[name]}, {name: None}) == stream_of(base, {}), name
        assert stream_of({**base, name: None}, {}) == stream_of(base, {}), name
    assert stream_of({}, {"name_in_repository": None}) == nothing
    assert stream_of(None, {}) == nothing


@pytest.mark.parametrize("name", list(SETTINGS))
def test_null_in_the_file_removes_the_setting_of_the_installation(name: str) -> None:
    settings = {name: str(GIVEN[name])}
    assert getattr(stream_of({}, {}, **settings), name) == GIVEN[name]
    assert getattr(stream_of({name: None}, {}, **settings), name) is None
    assert getattr(stream_of({}, {name: None}, **settings), name) is None


@pytest.mark.parametrize(("name", "inner"), NESTED)
def test_null_in_a_field_of_a_field_removes_its_default_alone(name: str, inner: str) -> None:
    base, whole = {"repository": "/r"}, GIVEN[name]
    assert isinstance(whole, dict)
    without = {key: value for key, value in whole.items() if key != inner}
    if name == "drill":  # a stream replaces it as a whole
        if inner in ("build", "scratch"):
            with pytest.raises(DeclarationError, match=f"drill: {inner} is missing"):
                parse_streams(yaml.safe_dump({"streams": {"a": {"checkpoint": "/a", name: {**whole, inner: None}}}}))
            return
        assert stream_of(base, {name: {**whole, inner: None}}) == stream_of(base, {name: without})
        return
    assert stream_of({**base, name: whole}, {name: {inner: None}}) == stream_of({**base, name: without}, {})


def test_a_checkpoint_that_a_stream_removes_is_missing() -> None:
    assert problems_of("defaults: {checkpoint: '/c/{stream}'}\nstreams:\n  a: {checkpoint: }\nversion:") == [
        (3, "streams.a", "checkpoint is missing")
    ]


def test_a_rule_of_retention_that_keeps_nothing_is_told_where() -> None:
    text = "streams:\n  orders:\n    checkpoint: /c/orders\n    retention: {daily: 30, tag: [env: prod]}\n"
    with pytest.raises(DeclarationError, match=r"line 4, streams\.orders\.retention: keep-tag is "):
        parse_streams(text)
    with pytest.raises(DeclarationError, match="retention: there is no rule 1"):
        Stream("orders", checkpoint="/c/orders", retention={1: 2})


@pytest.mark.parametrize(
    ("field", "action", "message"),
    [
        # They would fail once the stream is stopped.
        ("start", {"spark_application": {"name": "orders"}}, "start: the application orders has no file"),
        ("stop", {"spark_application": {"name": "orders", "do": "create"}}, "stop: the application orders has no file"),
        (
            "stop",
            {"databricks_job": {"job_id": "orders-job"}},
            "stop.databricks_job.job_id: 'orders-job' is no id of a job",
        ),
    ],
)
def test_an_action_that_cannot_be_done_is_refused_before(field: str, action: dict[str, object], message: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_streams(yaml.safe_dump({"streams": {"orders": {"checkpoint": "/c/orders", field: action}}}))
    assert message in str(caught.value)


def test_every_problem_of_a_file_is_told_at_once_with_its_line() -> None:
    assert problems_of(
        """\
defaults: {repository: s3://lake/backups, max_downtme: 3h, objectives: {rpo: soon}}
streams:
  a:
    checkpoint: lake/a
    stop: {command: x, dag: y}
  b:
    checkpoint: s3://lake/b
    max_downtime: 24 hrs
    checkpont: x
    retention: {dayly: 3}
    sinks:
      - s3://lake/t
      - {options: {}}
  c: {}
  "d/e":
    checkpoint: s3://lake/d
    backup: {schedule: now}
    watch: {max_gap: 0}
    sources: {kafka: {}}
bakups: 1
"""
    ) == [
        (1, "defaults.max_downtme", "there is no such field"),
        (1, "defaults.objectives.rpo", "it is 'soon', which is no duration"),
        (4, "streams.a.checkpoint", "'lake/a' is not a URI or an absolute path"),
        (5, "streams.a.stop", "command and dag are given"),
        (8, "streams.b.max_downtime", "it is '24 hrs', which is no duration"),
        (9, "streams.b.checkpont", "there is no such field"),
        (10, "streams.b.retention", "there is no rule 'dayly'"),
        (13, "streams.b.sinks[1]", "sink is missing"),
        (14, "streams.c", "checkpoint is missing"),
        (15, "streams.d/e", "'d/e' cannot be the name of a stream"),
        (17, "streams.d/e.backup.schedule", "'now' is no schedule"),
        (18, "streams.d/e.watch.max_gap", "it is 0"),
        (20, "bakups", "there is no such field"),
    ]


@pytest.mark.parametrize(
    ("text", "line", "field", "message"),
    [
        ("streams:\n  a: {checkpoint: /a}\n  a: {checkpoint: /b}", 3, "streams.a", "it is given twice, first in line 2"),
        ("streams:\n  a:\n    checkpoint: s3://l/a\n    checkpoint: s3://l/b", 4, "streams.a.checkpoint", "it is given twice"),
        ("streams:\n  a: {checkpoint: s3://l}\n  b: {checkpoint: s3a://l/}", 3, "streams.b.checkpoint", "checkpoint of 'a' too"),
        ("streams:\n  a: {checkpoint: /x/a}\n  b: {checkpoint: /x//a}", 3, "streams.b.checkpoint", "checkpoint of 'a' too"),
        ("streams:\n  a: {checkpoint: 'file:///x/a'}\n  b: {checkpoint: //x/y/../a}", 3, "streams.b.checkpoint", "of 'a' too"),
        ("streams:\n  a: {checkpoint: s3://l//x/./a}\n  b: {checkpoint: s3a://l/x/a/}", 3, "streams.b.checkpoint", "of 'a' too"),
        (
            "streams:\n  a: {checkpoint: /a, repository: /r//s}\n  b: {checkpoint: /b, repository: /r/s, name_in_repository: a}",
            3,
            "streams.b.name_in_repository",
            "'a' has the name 'a' in the same repository",
        ),
        ("streams:\n  a: {checkpoint: /a, drill: {build: 'a.b:c', scratch: /s}}", 2, "streams.a.drill", "there is no repository"),
        (
            "defaults: {repository: /r}\nstreams:\n  a: {checkpoint: /a}\n  b: {checkpoint: /b, name_in_repository: a}",
            4,
            "streams.b.name_in_repository",
            "'a' has the name 'a' in the same repository",
        ),
        ("streams:\n  a: {checkpoint: /a, objectives: {rpo: 1h}, backup: {schedule: 2h}}", 2, "streams.a.backup", "less often"),
        ("streams:\n  a: {checkpoint: /a, objectives: {rpo: 1ms}}", 2, "streams.a.objectives.rpo", "less than a second"),
        (f"streams:\n  a: {{checkpoint: /a, backup: {{verify: 1/{'9' * 5000}}}}}", 2, "streams.a.backup.verify", "is not a part"),
        ("streams:\n  a: {checkpoint: /a, sources: {kafka: {}}}", 2, "streams.a.sources", "kafka has no connection"),
        ("streams:\n  None: {checkpoint: /a}", 2, "streams.None", "'None' cannot be the name of a stream"),
        ("streams: {}", 1, "streams", "there are no streams"),
        ("version: 2\nstreams: {a: {checkpoint: /a}}", 1, "version", "it is 2"),
        ("", None, "", "it is no mapping"),
        ("- a", 1, "", "it is no mapping"),
        ("streams:\n  a: [", 2, "", "it is no YAML"),
        ("streams: {a: &a [*a]}", 1, "streams.a" + "[0]" * 39, "it is nested too deeply"),
        ("streams: {a: !!python/object/apply:os.system [x]}", 1, "streams.a", "the tag"),
        ("streams: {a: {<<: {checkpoint: /a}}}", 1, "streams.a", "this key cannot be read"),
        ("defaults: {name: x}\nstreams: {a: {checkpoint: /a}}", 1, "defaults.name", "it belongs to one stream"),
    ],
)  # fmt: skip
def test_a_bad_file_is_told_where(text: str, line: int | None, field: str, message: str) -> None:
    [first, *_] = problems_of(text)
    assert first[:2] == (line, field)
    assert message in first[2]


@pytest.mark.parametrize(
    ("text", "line", "field", "message"),
    [
        (
            "streams:\n  a: {checkpoint: s3://l/a}\n  b: {checkpoint: s3a://l//a/b/}",
            3,
            "streams.b.checkpoint",
            "s3a://l//a/b/ is inside the checkpoint of 'a', s3://l/a",
        ),
        (
            "streams:\n  b: {checkpoint: /x/y/z}\n  a: {checkpoint: 'file:///x'}",
            2,
            "streams.b.checkpoint",
            "/x/y/z is inside the checkpoint of 'a', file:///x",
        ),
        (
            "streams:\n  a: {checkpoint: s3://l}\n  b: {checkpoint: s3://l/b}",
            3,
            "streams.b.checkpoint",
            "s3://l/b is inside the checkpoint of 'a', s3://l",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: /a/r}",
            2,
            "streams.a.repository",
            "/a/r is inside the checkpoint of 'a', /a",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: /r}\n  b: {checkpoint: /b, repository: //a/}",
            3,
            "streams.b.repository",
            "//a/ is the checkpoint of 'a', /a",
        ),
        (
            "defaults: {repository: /b/r}\nstreams:\n  a: {checkpoint: /a}\n  b: {checkpoint: /b}",
            1,
            "defaults.repository",
            "/b/r is inside the checkpoint of 'b', /b",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: s3://l/r}\n  b: {checkpoint: s3a://l/r/b}",
            3,
            "streams.b.checkpoint",
            "s3a://l/r/b is inside the repository of 'a', s3://l/r",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: /r, drill: {build: 'a.b:c', scratch: /a/s}}",
            2,
            "streams.a.drill.scratch",
            "/a/s is inside the checkpoint of 'a', /a",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: /r, drill: {build: 'a.b:c', scratch: /r/s}}",
            2,
            "streams.a.drill.scratch",
            "/r/s is inside the repository of 'a', /r",
        ),
    ],
)
def test_a_place_inside_another_one_is_refused(text: str, line: int, field: str, message: str) -> None:
    assert problems_of(text) == [(line, field, message)]


@pytest.mark.parametrize(
    "text",
    [
        "defaults: {repository: s3://l/c/repository}\nstreams:\n  a: {checkpoint: s3://l/c/a}\n  ab: {checkpoint: s3://l/c/ab}",
        "defaults: {checkpoint: 's3://l/t/_checkpoints/{stream}', sinks: s3://l/t}\nstreams: {a: , b: }",
        "defaults: {repository: s3://l}\nstreams: {a: {checkpoint: gs://l/a}, b: {checkpoint: s3://m/b}, c: {checkpoint: /l/c}}",
        "defaults: {drill: {build: 'a.b:c', scratch: /c}}\nstreams:\n  a: {checkpoint: /c/a, repository: /c/r}",
    ],
)  # fmt: skip
def test_places_beside_each_other_are_accepted(text: str) -> None:
    assert parse_streams(text)


@pytest.mark.parametrize("opened", ["[", "{a: ", "- "])
def test_a_file_that_is_nested_deeply_is_refused_and_ends_no_process(opened: str) -> None:
    said = problems_of("streams: " + "\n" * (opened == "- ") + opened * 100_000)
    assert [message for _, _, message in said] == ["it is nested too deeply"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schedule", "99 2 * * *"),
        ("schedule", "*/0 2 * * *"),
        ("schedule", "0s"),
        ("schedule", "300000000d"),
        *(("schedule", cron) for cron in (
            "0 2 * * MO", "FOO * * * *", "0 0 0 1 *", "0 0 1 0 *", "* * * * MON#9", "0 0 W * *", "1,,2 * * * *", "_ * * * *",
            "1-2-3 * * * *", "0 0 * * 5L", "*5 * * * *", "0 0 30 2 *", "0 0 31 4,6 MON", "0 0 1 * MON#5", "0 0 * * 1,L5",
            "? * * * *", "0 0 ?,1 * *", "0 0 1,X * *",
        )),
        ("verify", "8/7"),
        ("verify", "1000%"),
    ],
)  # fmt: skip
def test_what_airflow_or_a_verification_would_refuse_is_refused_before(field: str, value: str) -> None:
    said = problems_of(f"streams:\n  a:\n    checkpoint: /a\n    backup: {{{field}: '{value}'}}")
    assert [where for _, where, _ in said] == [f"streams.a.backup.{field}"]


@pytest.mark.parametrize("schedule", ["0 0 * * 1#2", "0 0 30,L 2 ?", "1.5s", "1w 1d 1h 1m 1s"])
def test_what_airflow_takes_is_a_schedule(schedule: str) -> None:
    assert Backup(schedule=schedule).schedule == schedule


def test_what_is_too_long_for_airflow() -> None:
    name = "x" * 201
    long = (
        f"streams:\n  a: {{checkpoint: /a, tags: [b, {'x' * 101}],\n"
        f"   application: {name}}}\n  {name}: {{checkpoint: /x}}"
    )
    assert problems_of(long) == [
        (2, "streams.a.tags[1]", f"'{'x' * 101}' is not a tag of at most 100 characters"),
        (3, "streams.a.application", "it has 201 characters"),
        (4, f"streams.{name}", "it has 201 characters"),
    ]


def test_a_password_of_digits_is_a_secret_and_a_limit_of_tokens_none() -> None:
    text = "streams:\n  a:\n    checkpoint: /a\n    start: {{dag: {{dag_id: d, conf: {{{}: 471147}}}}}}"
    assert [where for _, where, _ in problems_of(text.format("db_password"))] == [
        "streams.a.start.dag.conf.db_password"
    ]
    assert parse_streams(text.format("max_tokens"))["a"].start


def test_aliases_that_repeat_without_end_are_refused() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    [(_, _, message)] = problems_of(text)
    assert message == "it is nested too deeply, or an alias repeats too much"


@pytest.mark.parametrize(
    "field",
    [
        "checkpoint: s3://user:hunter2@bucket/a",
        "checkpoint: /a\n    stop: ./stop --password=hunter2",
        "checkpoint: /a\n    stop: ./stop --api-token hunter2",
        "checkpoint: /a\n    stop: TOKEN=hunter2 ./stop",
        "checkpoint: /a\n    sinks: {sink: s3://b/t, options: {AWS_SECRET_ACCESS_KEY: hunter2}}",
        "checkpoint: /a\n    start: {dag: {dag_id: d, conf: {nested: [{password: hunter2}]}}}",
        "checkpoint: /a\n    notifiers: [{notifier: a.b.C, arguments: {token: hunter2}}]",
        "checkpoint: /a\n    drill: {build: 'a.b:c', scratch: 'https://hunter2@host/x'}",
        "checkpoint: /a\n    stop: curl -u stopper:hunter2 https://jobs/orders/stop",
        "checkpoint: /a\n    stop: curl -fsSu stopper:hunter2 https://jobs/orders/stop",
        "checkpoint: /a\n    start: \"curl -H 'X-Api-Key: hunter2' https://jobs/orders/start\"",
        "checkpoint: /a\n    stop: {operator: {operator: a.b.C, arguments: {bash_command: sshpass -p hunter2 ssh host stop}}}",
    ],
)
def test_secrets_are_refused_and_not_shown(field: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        parse_streams(f"streams:\n  a:\n    {field}\n")
    assert "secret" in str(caught.value)
    assert "put the secret into an Airflow connection" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        "TOKEN=$TOKEN ./stop",
        "./stop --password ${PASSWORD}",
        "./stop --token={{ conn.stop.password }}",
        "./stop --secret-free",
        "./stop --password ${PASSWORD} now",
        "./stop --password-file /run/secrets/stop",
        "curl -u stopper:$PASSWORD https://jobs/orders/stop",
        "docker run --user app:app stopper http://jobs",
    ],
)
def test_a_reference_to_a_secret_is_none(command: str) -> None:
    [stream] = parse_streams(f"streams:\n  a: {{checkpoint: /a, stop: '{command}'}}\n").values()
    assert stream.stop is not None
    assert stream.stop.command == command


def test_an_unknown_stream_is_told_with_the_nearest() -> None:
    with pytest.raises(UnknownStreamError, match=r"no stream 'ordesr'\nHINT: did you mean 'orders'\?"):
        parse_streams(FULL).named("ordesr")


def test_two_streams_of_python_with_one_name_are_refused() -> None:
    with pytest.raises(DeclarationError, match="two streams have this name"):
        Streams([Stream("a", checkpoint="/a"), Stream("a", checkpoint="/b")])


def test_a_file_is_read_again_only_when_it_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text("streams: {a: {checkpoint: /a}}")
    first = load_streams(file)
    assert load_streams(file) is first
    file.write_text("streams: {b: {checkpoint: /b}}")
    os.utime(file, ns=(0, 0))
    assert list(load_streams(file)) == ["b"]


def test_settings_are_the_defaults_of_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text("defaults: {repository: /r}\nstreams: {a: {checkpoint: /a}}")
    stream = load_streams(file, settings={"repository": "/other", "kafka_conn_id": "kafka"})["a"]
    assert (stream.repository, stream.kafka_conn_id) == ("/r", "kafka")


def test_a_missing_file_is_told_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"No such file.*\nHINT: give the path of streams.yaml"):
        load_streams(tmp_path / "streams.yaml")


def test_the_published_schema_is_that_of_the_model() -> None:
    assert schema.SCHEMA_FILE.read_text() == schema.schema_text(), "write it again: dev/reference_pages.py"
    jsonschema.Draft202012Validator.check_schema(schema.streams_schema())


def test_the_schema_takes_what_the_model_takes() -> None:
    assert list(BY_SCHEMA.iter_errors(yaml.safe_load(FULL.replace("  no:", "  'no':")))) == []
    for bad in ("streams: {a: {checkpont: /a}}", "streams: {a: {watch: {max_gap: 0}}}", "streams: {}", "bakups: 1"):
        assert list(BY_SCHEMA.iter_errors(yaml.safe_load(bad))), bad


def test_every_field_is_described() -> None:
    from airflow_ckpt_provider.streams.declared import descriptions_of

    for record in schema.records():
        assert set(descriptions_of(record)) == set(kinds_of(record)), record


def test_300_streams_are_read_quickly() -> None:
    """Compared with PyYAML's own C loader on the same machine at the same moment, for machines differ."""
    shared, one, _ = FULL.partition("  orders:\n")[0], FULL.partition("streams:\n")[2].partition("  clicks:")[0], None
    text = shared + "".join(one.replace("orders", f"orders{number}") for number in range(300))

    def seconds(read: Callable[[], object]) -> float:
        began = time.thread_time()
        read()
        return time.thread_time() - began

    assert len(parse_streams(text)) == 300
    # In turns, and of this thread alone: others may run beside.
    rounds = [
        (seconds(lambda: parse_streams(text)), seconds(lambda: yaml.load(text, Loader=yaml.CSafeLoader)))
        for _ in range(3)
    ]
    ours, theirs = (min(times) for times in zip(*rounds, strict=True))
    # Measured: 2 to 3 times on a quiet machine, 6 beside nine other processes. A reader that is quadratic takes 100.
    assert ours < 15 * theirs, (ours, theirs)
