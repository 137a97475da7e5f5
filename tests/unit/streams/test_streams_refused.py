"""What streams.yaml, or Python, declares wrongly: every problem at once, with its line, before a DAG is made of it."""

from __future__ import annotations

import jsonschema
import pytest
import yaml

from airflow_ckpt_provider.streams.cron import longest_interval
from airflow_ckpt_provider.streams.loading import parse_streams
from airflow_ckpt_provider.streams.problems import DeclarationError, dotted
from airflow_ckpt_provider.streams.schema import streams_schema
from airflow_ckpt_provider.streams.stream import Backup, Stream
from airflow_ckpt_provider.streams.streams import Streams, as_reported
from airflow_ckpt_provider.units import format_duration, parse_duration


def problems_of(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(DeclarationError) as caught:
        parse_streams(text)
    return [(each.line, dotted(each.path), each.message) for each in caught.value.problems]


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
    ("one", "other"),
    [
        ("hdfs://nn:8020/c", "hdfs://nn/c"),
        ("hdfs://NameNode/c", "hdfs://namenode:8020/c/"),
        ("abfss://c@Account.dfs.core.windows.net/c", "abfs://C@account.dfs.core.windows.net/c"),
        ("abfss://c@account.dfs.core.windows.net/c", "wasbs://c@account.blob.core.windows.net/c"),
        ("wasb://c@ACCOUNT.blob.core.windows.net/c", "abfss://c@account.dfs.core.windows.net//c"),
        ("file://localhost/c", "/c"),
        ("FILE://LOCALHOST//c", "file:///c"),
    ],
)
def test_one_checkpoint_in_two_spellings_is_refused(one: str, other: str) -> None:
    for first, second in ((one, other), (other, one)):
        text = f"streams:\n  a: {{checkpoint: '{first}'}}\n  b: {{checkpoint: '{second}'}}"
        assert problems_of(text) == [(3, "streams.b.checkpoint", "it is the checkpoint of 'a' too")]
    assert as_reported(one) == as_reported(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("hdfs://nn:8020/c", "hdfs://nn:9000/c"),
        ("hdfs://nn/C", "hdfs://nn/c"),
        ("s3://Lake/c", "s3://lake/c"),
        ("memory://A/c", "memory://a/c"),
        ("abfss://c@one.dfs.core.windows.net/c", "abfss://c@two.dfs.core.windows.net/c"),
    ],
)
def test_two_checkpoints_with_similar_addresses_are_accepted(one: str, other: str) -> None:
    assert parse_streams(f"streams:\n  a: {{checkpoint: '{one}'}}\n  b: {{checkpoint: '{other}'}}")


@pytest.mark.parametrize(
    ("field", "said", "hint"),
    [
        ("checkpoint: file://data/a", "'file://data/a' names the host 'data'", "write file:///data/a"),
        (
            "checkpoint: /a\n    repository: FILE://data/backups",
            "'FILE://data/backups' names the host 'data'",
            "write file:///data/backups",
        ),
        (
            "checkpoint: /a\n    sinks: [/t, {sink: 'file://tables'}]",
            "'file://tables' names the host 'tables'",
            "write file:///tables",
        ),
        (
            "checkpoint: /a\n    sources: {delta: {tables: {table.0: file://tables/t}}}",
            "'file://tables/t' names the host 'tables'",
            "write file:///tables/t",
        ),
        ("checkpoint: 'file://'", "'file://' names no directory", "write file:///data/backups"),
    ],
)
def test_a_file_of_another_host_is_refused(field: str, said: str, hint: str) -> None:
    """It would be a directory of the current directory, which is another one in each worker."""
    text = f"streams:\n  a:\n    {field}\n"
    assert [message for _, _, message in problems_of(text)] == [said]
    with pytest.raises(DeclarationError) as caught:
        parse_streams(text)
    assert [each.hint for each in caught.value.problems] == [f"{hint}: three slashes, and the absolute path"]
    field_of_schema = jsonschema.Draft202012Validator(streams_schema())
    assert list(field_of_schema.iter_errors(yaml.safe_load(text)))


@pytest.mark.parametrize(
    ("schedule", "rpo", "gap"),
    [
        ("@daily", "1h", "1 d"),
        ("@weekly", "6d", "7 d"),
        ("@monthly", "30d", "31 d"),
        ("0 3 * * *", "1h", "1 d"),
        ("0 * * * *", "59m", "1 h"),
        # Not by the average: the longest interval is that over the night, the weekend, the winter.
        ("*/15 8-19 * * *", "2h", "12 h 15 min"),
        ("30 2 * * MON-FRI", "2d", "3 d"),
        ("0 0 * 4-9 *", "30d", "184 d"),
        ("0 0 1,15 * *", "16d", "17 d"),
        ("0 0 L * ?", "30d", "31 d"),
        ("0 0 29 2 *", "365d", "1461 d"),
        ("0 0 * * MON#1", "28d", "35 d"),
        ("0 0 * * L5", "28d", "35 d"),
        ("0 0 1 * MON", "6d", "7 d"),
    ],
)
def test_a_schedule_that_cannot_meet_rpo_is_refused(schedule: str, rpo: str, gap: str) -> None:
    text = "streams: {{a: {{checkpoint: /a, objectives: {{rpo: {}}}, backup: {{schedule: '{}'}}}}}}"
    shown = format_duration(parse_duration(rpo))
    assert problems_of(text.format(rpo, schedule)) == [
        (1, "streams.a.backup", f"'{schedule}' leaves up to {gap} between two backups, which is more than rpo, {shown}")
    ]
    met = text.format(longest_interval(schedule).total_seconds(), schedule)
    assert parse_streams(met)["a"].schedule == schedule


def test_python_is_told_all_problems_at_once() -> None:
    with pytest.raises(DeclarationError) as caught:
        Stream("orders", checkpoint="lake/orders", max_downtime="24 hrs", stop={"comand": "x"})  # type: ignore[arg-type]
    assert [dotted(each.path) for each in caught.value.problems] == ["checkpoint", "stop.comand", "max_downtime"]
    assert "did you mean 'command'?" in str(caught.value)


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
        ("start", {"databricks_job": {"job_id": 7, "do": "cancel"}}, "start: `do: cancel` starts nothing"),
        ("start", {"spark_application": {"name": "orders", "do": "delete"}}, "start: `do: delete` starts nothing"),
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


@pytest.mark.parametrize("stop", [{"name": "order"}, {"name": "orders", "namespace": "etl"}])
def test_a_stop_of_another_application_than_the_one_that_is_started_is_refused(stop: dict[str, str]) -> None:
    """It would find none, and the stream would count as stopped."""
    start = {"spark_application": {"name": "orders", "file": "orders.yaml"}}

    def parse(stop: dict[str, str]) -> None:
        orders = {"checkpoint": "/c/orders", "start": start, "stop": {"spark_application": stop}}
        parse_streams(yaml.safe_dump({"streams": {"orders": orders}}))

    parse({"name": "orders"})
    named = f"{stop.get('namespace', 'default')}/{stop['name']}"
    with pytest.raises(
        DeclarationError, match=rf"stop: it deletes the application {named}, and start creates default/orders"
    ):
        parse(stop)


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
        # VACUUM of the table, or a clean-up of its orphans, would delete them.
        (
            "streams:\n  a: {checkpoint: /a, repository: /t/r, sinks: [/t]}",
            2,
            "streams.a.repository",
            "/t/r is inside a sink of 'a', /t",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: s3://l/t/_r}\n  b: {checkpoint: /b, sinks: ['s3a://l/u', 's3a://l//t/']}",
            2,
            "streams.a.repository",
            "s3://l/t/_r is inside a sink of 'b', s3a://l//t/",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: /t, sinks: [kafka, {sink: 'file:///t'}]}",
            2,
            "streams.a.repository",
            "/t is a sink of 'a', file:///t",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: /r, sinks: [/t], drill: {build: 'a.b:c', scratch: /t}}",
            2,
            "streams.a.drill.scratch",
            "/t is a sink of 'a', /t",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: /r, sinks: [/t], drill: {build: 'a.b:c', scratch: /t/s}}",
            2,
            "streams.a.drill.scratch",
            "/t/s is inside a sink of 'a', /t",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: /s/r}\n"
            "  b: {checkpoint: /b, sources: {delta: {tables: {table.0: 'file:///s'}}}}",
            2,
            "streams.a.repository",
            "/s/r is inside a source of 'b', file:///s",
        ),
        (
            "streams:\n  a: {checkpoint: /s/checkpoint, sources: {iceberg: {tables: {table.0: /s}}}}",
            2,
            "streams.a.checkpoint",
            "/s/checkpoint is inside a source of 'a', /s",
        ),
        (
            "streams:\n  a: {checkpoint: /a, sinks: [/t, /a]}",
            2,
            "streams.a.sinks[1]",
            "/a is the checkpoint of 'a', /a",
        ),
        (
            "streams:\n  a: {checkpoint: /a}\n  b: {checkpoint: /b, sinks: /a/t}",
            3,
            "streams.b.sinks[0]",
            "/a/t is inside the checkpoint of 'a', /a",
        ),
        (
            "streams:\n  a: {checkpoint: /a, repository: /r, sinks: [/r/t]}",
            2,
            "streams.a.sinks[0]",
            "/r/t is inside the repository of 'a', /r",
        ),
        (
            "streams:\n  a: {checkpoint: /t/checkpoints/a, sinks: [/t]}",
            2,
            "streams.a.checkpoint",
            "/t/checkpoints/a is inside a sink of 'a', /t",
        ),
        (
            "streams:\n  a: {checkpoint: /a, driver: {progress_log: /a/p.jsonl}}",
            2,
            "streams.a.driver.progress_log",
            "/a/p.jsonl is inside the checkpoint of 'a', /a",
        ),
        (
            "streams:\n  a: {checkpoint: /a}\n  b: {checkpoint: /b, driver: {log: //a/x/driver.log}}",
            3,
            "streams.b.driver.log",
            "//a/x/driver.log is inside the checkpoint of 'a', /a",
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
        "streams: {a: {checkpoint: /t/_checkpoint, sinks: /t}, b: {checkpoint: /u/.ckpt/x/b, sinks: [/u, 'foreachBatch']}}",
        "streams: {a: {checkpoint: /c/a, repository: /r, sinks: [/ca, 'iceberg:c.n.t'], driver: {log: /c/l}}}",
        "streams: {a: {checkpoint: /c/a, repository: /r, sinks: [/t/a], drill: {build: 'a.b:c', scratch: /t}}}",
    ],
)  # fmt: skip
def test_places_beside_each_other_are_accepted(text: str) -> None:
    assert parse_streams(text)


@pytest.mark.parametrize("opened", ["[", "{a: ", "- "])
def test_a_file_that_is_nested_deeply_is_refused_and_ends_no_process(opened: str) -> None:
    said = problems_of("streams: " + "\n" * (opened == "- ") + opened * 100_000)
    assert [message for _, _, message in said] == ["it is nested too deeply"]


def test_aliases_that_repeat_without_end_are_refused() -> None:
    text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    text += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    [(_, _, message)] = problems_of(text)
    assert message == "it is nested too deeply, or an alias repeats too much"


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


def test_a_password_of_digits_is_a_secret_and_a_limit_of_tokens_none() -> None:
    text = "streams:\n  a:\n    checkpoint: /a\n    start: {{dag: {{dag_id: d, conf: {{{}: 471147}}}}}}"
    assert [where for _, where, _ in problems_of(text.format("db_password"))] == [
        "streams.a.start.dag.conf.db_password"
    ]
    assert parse_streams(text.format("max_tokens"))["a"].start


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


def test_two_streams_of_python_with_one_name_are_refused() -> None:
    with pytest.raises(DeclarationError, match="two streams have this name"):
        Streams([Stream("a", checkpoint="/a"), Stream("a", checkpoint="/b")])
