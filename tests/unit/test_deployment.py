"""docker-compose.yml, the images it builds, and what Airflow 3, the example DAGs and the example stream need of them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from airflow_ckpt_provider.streams.loading import load_streams
from airflow_ckpt_provider.streams.stream import Stream
from demo import kafka_orders, kafka_stream
from dev import make_env
from tests.support.compose import COMPOSE, EXTRAS, SERVICES, TEXT, is_one_shot
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
PARTS = ["api-server", "scheduler", "dag-processor", "triggerer"]
AIRFLOW: dict[str, str] = SERVICES["api-server"]["environment"]
CODE = "/opt/airflow-ckpt-provider"

every_service = pytest.mark.parametrize("name", SERVICES)


def locked(package: str) -> str:
    """Version of a package in the lock."""
    lock = (ROOT / "requirements.lock").read_text()
    return re.search(rf"^{package}==([^ ;\\]+)", lock, re.MULTILINE)[1]  # type: ignore[index]


def dockerfile(name: str) -> str:
    """The Dockerfile of a service that is built here."""
    return (ROOT / SERVICES[name]["build"]["dockerfile"]).read_text()


def connections() -> Iterator[tuple[str, dict[str, Any]]]:
    """The connections that Airflow is given: id and fields, each variable in its place."""
    for name, value in AIRFLOW.items():
        if name.startswith("AIRFLOW_CONN_"):
            yield name.removeprefix("AIRFLOW_CONN_").lower(), json.loads(value)


# --- secrets, ports, images, volumes ---


def test_every_secret_is_asked_for_and_the_example_names_each() -> None:
    asked = set(re.findall(r"\$\{(\w+)", TEXT.replace("$${", "")))
    example = dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert asked == set(example)
    assert set(example.values()) == {""}
    assert re.findall(r"(?<!\$)\$\{\w+(?!\w|:\?)", TEXT) == []


def test_a_command_makes_each_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = (ROOT / ".env.example").read_text()
    (tmp_path / ".env.example").write_text(example)
    assert make_env.main(tmp_path) == 0
    made = tmp_path / ".env"
    assert made.stat().st_mode & 0o777 == 0o600
    given = dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", made.read_text(), re.MULTILINE))
    assert set(given) == set(re.findall(r"^([A-Z0-9_]+)=", example, re.MULTILINE))
    assert re.fullmatch(r"[\w-]{64,}", given["POSTGRES_PASSWORD"])
    assert len(given["AIRFLOW_JWT_SECRET"]) >= 64
    Fernet(given["AIRFLOW_FERNET_KEY"])
    assert f"password: {given['AIRFLOW_ADMIN_PASSWORD']}" in capsys.readouterr().out
    secrets = [value for name, value in given.items() if name != "AIRFLOW_ADMIN_USER"]
    assert len(set(secrets)) == len(secrets)
    assert make_env.main(tmp_path) == 1
    assert "was not changed. HINT: " in capsys.readouterr().err
    assert dict(re.findall(r"^([A-Z0-9_]+)=(.*)$", made.read_text(), re.MULTILINE)) == given


def test_no_secret_stands_in_the_file() -> None:
    secret = re.compile(r"PASSWORD|SECRET|TOKEN|(ACCESS|FERNET)_KEY|USERNAME")
    given = [
        (service, name, value)
        for service, settings in SERVICES.items()
        for name, value in settings.get("environment", {}).items()
        if secret.search(name)
    ]
    assert len(given) > 10
    assert [found for found in given if not re.fullmatch(r"\$\{\w+:\?[^}]+\}", found[2])] == []
    assert re.findall(r"//[^/\s]+:(?!\$\{)[^/\s@]+@", TEXT) == []
    for conn_id, connection in connections():
        for field in ("login", "password"):
            assert connection.get(field, "${").startswith("${"), conn_id
        assert not any(secret.search(key.upper()) for key in connection.get("extra", {})), conn_id


def test_ports_are_published_on_this_machine_only() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) >= 5
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def images() -> list[str]:
    """Every image that is pulled, by a service or by a Dockerfile."""
    built = {service["build"]["dockerfile"] for service in SERVICES.values() if "build" in service}
    bases = [base for file in sorted(built) for base in re.findall(r"^FROM (\S+)", (ROOT / file).read_text(), re.M)]
    return sorted({service["image"] for service in SERVICES.values() if "build" not in service}) + bases


@pytest.mark.parametrize("image", images())
def test_images_are_pinned(image: str) -> None:
    assert re.fullmatch(r"[a-z0-9./_-]+:\d+\.\d+(\.\d+)?(-[a-z0-9.-]+)?", image)


@every_service
def test_what_is_built_here_is_pulled_from_nowhere(name: str) -> None:
    service = SERVICES[name]
    assert ("build" in service) is service["image"].endswith(":local")
    if "build" in service:
        assert service["build"]["context"] == "."


def test_every_volume_is_declared_and_used() -> None:
    mounted = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert {volume for volume in mounted if not volume.startswith(".")} == set(COMPOSE["volumes"])
    assert [path for path in mounted if path.startswith(".") and not (ROOT / path).exists()] == []


# --- services ---


@every_service
def test_it_says_how_it_is_or_ends(name: str) -> None:
    service = SERVICES[name]
    assert ("healthcheck" in service) is not is_one_shot(name)
    if not is_one_shot(name):
        assert service["restart"] == "unless-stopped"
        assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
        assert service["healthcheck"]["interval"]


@every_service
def test_what_it_waits_for_is_there(name: str) -> None:
    for other, wanted in SERVICES[name].get("depends_on", {}).items():
        assert wanted == {"condition": "service_completed_successfully" if is_one_shot(other) else "service_healthy"}, (
            other
        )


def test_every_one_shot_is_waited_for() -> None:
    waited_for = {other for service in SERVICES.values() for other in service.get("depends_on", {})}
    assert {name for name in SERVICES if is_one_shot(name)} <= waited_for


# --- what Airflow 3 needs ---


def test_every_part_of_airflow_runs_in_one_image_with_one_configuration_and_the_dags() -> None:
    assert [SERVICES[part]["command"] for part in PARTS] == [[part] for part in PARTS]
    for part in PARTS:
        assert SERVICES[part]["environment"] == AIRFLOW
        assert SERVICES[part]["image"] == SERVICES["airflow-init"]["image"] == SERVICES["api-server"]["image"]
        assert "./dags:/opt/airflow/dags:ro" in SERVICES[part]["volumes"]
        assert "airflow-logs:/opt/airflow/logs" in SERVICES[part]["volumes"]
        assert "airflow-init" in SERVICES[part]["depends_on"]
    more = {
        "_AIRFLOW_DB_MIGRATE",
        "_AIRFLOW_WWW_USER_CREATE",
        "_AIRFLOW_WWW_USER_USERNAME",
        "_AIRFLOW_WWW_USER_PASSWORD",
    }
    init = SERVICES["airflow-init"]["environment"]
    assert {key: value for key, value in init.items() if key not in more} == AIRFLOW
    assert more <= set(init)


def test_the_settings_that_airflow_3_needs_are_set() -> None:
    url = AIRFLOW["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
    assert url == "http://api-server:8080/execution/"
    assert "127.0.0.1:8080:8080" in SERVICES["api-server"]["ports"]
    needed = {
        "AIRFLOW__API_AUTH__JWT_SECRET",
        "AIRFLOW__API__SECRET_KEY",
        "AIRFLOW__CORE__AUTH_MANAGER",
        "AIRFLOW__CORE__EXECUTOR",
        "AIRFLOW__CORE__FERNET_KEY",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
    }
    assert needed <= set(AIRFLOW)
    assert AIRFLOW["AIRFLOW__CORE__EXECUTOR"] == "LocalExecutor"  # no worker service


def test_every_setting_is_one_that_airflow_has() -> None:
    from airflow.configuration import conf

    options = {
        (section, option)
        for section, described in conf.configuration_description.items()
        for option in described["options"]
    }
    given = {tuple(name.lower().split("__")[1:]) for name in AIRFLOW if name.startswith("AIRFLOW__")}
    assert len(given) >= 8
    assert given <= options


def test_every_command_and_health_check_of_airflow_is_one_that_it_has() -> None:
    from airflow.cli.cli_parser import get_parser
    from airflow.configuration import conf
    from airflow.jobs.dag_processor_job_runner import DagProcessorJobRunner
    from airflow.jobs.triggerer_job_runner import TriggererJobRunner

    for part in PARTS:
        get_parser().parse_args(SERVICES[part]["command"])
    checks = {part: SERVICES[part]["healthcheck"]["test"][-1] for part in PARTS}
    port = conf.get("scheduler", "scheduler_health_check_server_port")
    assert checks["scheduler"] == f"http://localhost:{port}/health"
    assert AIRFLOW["AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK"] == "true"
    for part, runner in (("dag-processor", DagProcessorJobRunner), ("triggerer", TriggererJobRunner)):
        command = shlex.split(checks[part])
        assert command[0] == "airflow"
        assert get_parser().parse_args(command[1:]).job_type == runner.job_type


def test_the_api_server_answers_where_its_health_is_asked() -> None:
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    path = SERVICES["api-server"]["healthcheck"]["test"][-1].removeprefix("http://localhost:8080")
    assert TestClient(create_app(apps="core")).get(path).status_code == 200


# --- what the example DAGs need ---


def imported_by_dags() -> set[str]:
    """Every module that an example DAG imports."""
    nodes = [node for file in (ROOT / "dags").glob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    return {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_the_image_has_every_provider_that_an_example_dag_imports() -> None:
    asked = re.search(r"airflow-ckpt-provider\[([a-z,]+)\]", dockerfile("api-server"))[1].split(",")  # type: ignore[index]
    assert set(asked) <= set(EXTRAS)
    brought = {re.match(r"[a-z-]+", line)[0] for extra in asked for line in EXTRAS[extra]}  # type: ignore[index]
    # Airflow itself brings the standard operators, and this package the layer that hides where names moved to.
    brought |= {"apache-airflow-providers-standard", "apache-airflow-providers-common-compat"}
    used = {m for m in imported_by_dags() if m.startswith("airflow.providers.")}
    assert len(used) >= 3
    for module in used:
        parts = module.removeprefix("airflow.providers.").split(".")
        names = {f"apache-airflow-providers-{'-'.join(parts[: n + 1])}" for n in range(len(parts))}
        assert names & brought, module


def test_every_variable_that_an_example_dag_cannot_do_without_is_set() -> None:
    code = "".join(file.read_text() for file in (ROOT / "dags").glob("*.py"))
    needed = set(re.findall(r"var\.value\.(ckpt_\w+)", code))
    assert len(needed) >= 4
    assert {f"AIRFLOW_VAR_{name.upper()}" for name in needed} <= set(AIRFLOW)


def test_every_connection_is_of_a_kind_that_the_image_knows() -> None:
    given = dict(connections())
    assert set(given) == {"ckpt_s3", "kafka_default", "spark_default", "databricks_default"}
    assert {c["conn_type"] for c in given.values()} == {"aws", "kafka", "spark", "databricks"}
    assert given["kafka_default"]["extra"]["bootstrap.servers"] == "kafka:9092"
    used = {value for name, value in AIRFLOW.items() if re.fullmatch(r"AIRFLOW_VAR_\w+_CONN_ID", name)}
    assert used <= set(given)


def test_connections_reach_the_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the providers' own reading of them."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.databricks.hooks.databricks import DatabricksHook

    for conn_id, connection in connections():
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(connection))
    master = SparkSubmitHook(conn_id="spark_default")._resolve_connection()["master"]
    assert f"--master={master}" in SERVICES["orders-stream"]["command"]
    assert master.rpartition("/")[2].partition(":")[0] in SERVICES
    url = DatabricksHook("databricks_default")._endpoint_url("api/2.0/pipelines")
    assert url == "http://databricks:8765/api/2.0/pipelines"
    assert "127.0.0.1:8765:8765" in SERVICES["databricks"]["ports"]


# --- the example stream, its producer, the stand-in for Databricks ---


def copied(name: str) -> dict[str, str]:
    """Path in the image -> path in the checkout, of all that a Dockerfile takes from here."""
    found = {}
    for line in re.findall(r"^COPY (?!--from)(.*)$", dockerfile(name), re.MULTILINE):
        *sources, target = [word for word in line.split() if not word.startswith("--")]
        found |= {target if len(sources) == 1 else f"{target}{source}": source for source in sources}
    return found


def test_what_the_images_copy_is_there_and_let_in() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for name in ("api-server", "databricks"):
        sources = set(copied(name).values())
        assert sources <= let_in
        assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_stream_is_run_as_it_can_be() -> None:
    command = SERVICES["orders-stream"]["command"]
    at = next(i for i, word in enumerate(command) if word.endswith(".py"))
    assert command[at] == f"{CODE}/demo/kafka_stream.py"
    assert copied("orders-stream")[f"{CODE}/demo"] == "demo"
    assert f"ENV PYTHONPATH={CODE}" in dockerfile("orders-stream")
    chosen = kafka_stream.parser().parse_args(command[at + 1 :])
    assert chosen.checkpoint == AIRFLOW["AIRFLOW_VAR_CKPT_CHECKPOINT"]
    assert AIRFLOW["AIRFLOW_VAR_CKPT_BUILD"] == f"{kafka_stream.__name__}:{kafka_stream.build.__name__}"
    settings = dict(re.findall(r"^(spark\.\S+)\s+(\S+)$", (ROOT / "docker" / "spark-defaults.conf").read_text(), re.M))
    producer = kafka_orders.parser().parse_args(SERVICES["orders-producer"]["command"][3:])
    assert (settings["spark.orders.brokers"], settings["spark.orders.topic"]) == (producer.brokers, producer.topic)
    assert str(producer.alive) in SERVICES["orders-producer"]["healthcheck"]["test"][-1]
    for asked in ("spark.orders.brokers", "spark.orders.topic"):
        assert f'"{asked}"' in Path(kafka_stream.__file__).read_text()


def declared() -> Stream:
    """The stream of docker/streams."""
    return load_streams(ROOT / "docker" / "streams" / "streams.yaml").named("orders")


def test_the_command_that_stops_waits_for_the_end(tmp_path: Path) -> None:
    marker, progress = tmp_path / "orders.stop", tmp_path / "orders.jsonl"
    line = {"query_id": "q", "run_id": "r", "at": "2026-11-28T12:00:00Z"}
    progress.write_text(json.dumps({"event": "started", **line}) + "\n")
    program = [sys.executable, ROOT / "docker" / "streams" / "stop.py", str(marker), str(progress)]
    with subprocess.Popen(program) as stop:
        try:
            wait_until(marker.exists)
            with pytest.raises(subprocess.TimeoutExpired):
                stop.wait(1.5)
            progress.write_text(progress.read_text() + json.dumps({"event": "terminated", **line}) + "\n")
            assert stop.wait(60) == 0
        finally:
            stop.kill()


@pytest.mark.parametrize("by", ["example DAGs", "declaration"])
def test_airflow_stops_that_stream(by: str) -> None:
    command = AIRFLOW["CKPT_STREAM_STOP"] if by == "example DAGs" else declared().stop.command
    python, program, marker, progress = shlex.split(command)
    assert python == "python"
    assert (ROOT / "docker" / "streams" / Path(program).relative_to("/opt/airflow/streams")).is_file()
    assert {f"--stop={marker}", f"--progress={progress}"} <= set(SERVICES["orders-stream"]["command"])


@pytest.mark.parametrize("by", ["example DAGs", "declaration"])
def test_airflow_starts_that_stream(by: str) -> None:
    function = "clear_stop"
    command = AIRFLOW["CKPT_STREAM_START"] if by == "example DAGs" else declared().start.command
    python, option, code = shlex.split(command)
    assert (python, option) == ("python", "-c")
    imported, called = ast.parse(code).body
    assert isinstance(imported, ast.ImportFrom)
    assert callable(getattr(importlib.import_module(str(imported.module)), function))
    assert isinstance(called, ast.Expr)
    assert isinstance(called.value, ast.Call)
    assert ast.unparse(called.value.func) == function
    marker = ast.literal_eval(called.value.args[0])
    assert f"--stop={marker}" in SERVICES["orders-stream"]["command"]


def test_the_stream_is_declared() -> None:
    """The page and the DAGs of the declaration are about the stream that runs."""
    assert "./docker/streams:/opt/airflow/streams:ro" in SERVICES["dag-processor"]["volumes"]
    assert AIRFLOW["AIRFLOW__CKPT__STREAMS"] == "/opt/airflow/streams/streams.yaml"
    bundles = json.loads(AIRFLOW["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"])
    assert [bundle["kwargs"] for bundle in bundles] == [{}, {"path": "/opt/airflow/streams"}]
    orders = declared()
    command = SERVICES["orders-stream"]["command"]
    assert f"--checkpoint={orders.checkpoint}" in command
    assert f"--table={orders.sinks[0].sink}" in command
    assert f"--progress={orders.driver.progress_log}" in command
    known = dict(connections())
    assert {orders.storage_conn_id, orders.kafka_conn_id, orders.spark_conn_id} <= set(known)


def test_every_module_that_is_run_is_in_the_image() -> None:
    commands = [(name, service["command"]) for name, service in SERVICES.items() if "command" in service]
    fake = json.loads(re.search(r"^CMD (.*)$", dockerfile("databricks"), re.MULTILINE)[1])  # type: ignore[index]
    run = [(name, words[words.index("-m") + 1]) for name, words in [*commands, ("databricks", fake)] if "-m" in words]
    assert dict(run) == {"orders-producer": "demo.kafka_orders", "databricks": "tests.fake_databricks"}
    for name, module in run:
        assert importlib.util.find_spec(module), module
        assert any(
            source == module.replace(".", "/") or source == module.split(".")[0] for source in copied(name).values()
        )


def test_the_stand_in_imports_nothing_that_its_image_lacks() -> None:
    installed = set(re.findall(r"(\w+)==", dockerfile("databricks")))
    nodes = [
        node
        for file in (ROOT / "tests" / "fake_databricks").glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
    ]
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    others = {name.split(".")[0] for name in names if not name.startswith("tests.fake_databricks")}
    assert others - sys.stdlib_module_names == installed == {"duckdb"}


def test_one_version_of_each_part_is_used_everywhere() -> None:
    conf = (ROOT / "docker" / "spark-defaults.conf").read_text()
    listed = "".join((ROOT / "dev" / name).read_text() for name in ("spark-jars.txt", "s3a-jars.txt"))
    packages = re.search(r"^spark\.jars\.packages\s+(\S+)$", conf, re.MULTILINE)[1].split(",")  # type: ignore[index]
    assert set(re.findall(r"^[^#\s]+", listed, re.MULTILINE)) <= set(packages)
    assert f"org.apache.spark:spark-sql-kafka-0-10_2.13:{locked('pyspark')}" in packages
    cluster = SERVICES["spark"]["image"]
    assert cluster.startswith(f"apache/spark:{locked('pyspark')}-")
    assert SERVICES["spark-worker"]["image"] == cluster
    airflow = dockerfile("api-server")
    assert f"FROM {cluster} AS spark" in airflow
    assert f'"pyspark-client=={locked("pyspark-client")}"' in airflow
    assert f"FROM apache/airflow:{locked('apache-airflow')}-" in airflow
    assert f"duckdb=={locked('duckdb')}" in dockerfile("databricks")


# --- make compose-check ---


def test_without_compose_one_line_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "dev" / "compose-check.sh")],
        cwd=ROOT,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "missing: docker compose; get it with: apt-get install docker-compose\n"


def test_compose_itself_takes_the_file() -> None:
    plugin = (
        subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        if shutil.which("docker")
        else None
    )
    if not shutil.which("docker-compose") and (plugin is None or plugin.returncode):
        pytest.skip("docker compose is not installed")
    names = re.findall(r"^([A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)
    env = {key: value for key, value in os.environ.items() if key not in names}
    done = subprocess.run(
        ["/bin/sh", str(ROOT / "dev" / "compose-check.sh")],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "docker-compose.yml is well formed\n", "")
