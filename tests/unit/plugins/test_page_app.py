"""The page in Airflow: nobody sees anything without the right to, at whatever address; and it changes nothing."""

from __future__ import annotations

import tests.support.throwaway_airflow  # isort: skip  # noqa: F401

import html
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.configuration import conf
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_ckpt_provider.backup.create import create_backup
from airflow_ckpt_provider.backup.repository import Repository
from airflow_ckpt_provider.checkpoint.checkpoint import Checkpoint
from airflow_ckpt_provider.fleet.discovery import discover
from airflow_ckpt_provider.fleet.fleet import inspect_fleet
from airflow_ckpt_provider.fleet.report import keep_report
from airflow_ckpt_provider.links.page import page_of
from airflow_ckpt_provider.page import bounded
from airflow_ckpt_provider.page.bounded import BoundedReads
from airflow_ckpt_provider.plugins import page_app
from airflow_ckpt_provider.plugins.page import CheckpointPagePlugin, page_address
from airflow_ckpt_provider.plugins.page_app import make_app
from airflow_ckpt_provider.storage.opening import open_location
from airflow_ckpt_provider.streams.stream import Stream
from tests.support.one_checkpoint import unpack

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
#: What other applications of FastAPI answer to anybody, what there is, and what there is not.
ADDRESSES = (
    "/ckpt/",
    "/ckpt/stream?name=orders",
    "/ckpt/stream",
    "/ckpt/backup?name=orders&id=x",
    "/ckpt/change?id=1234abcd",
    "/ckpt/static/page.css",
    "/ckpt/static/page.js",
    "/ckpt/static/../pages.py",
    "/ckpt/static/%2e%2e/html.py",
    "/ckpt/docs",
    "/ckpt/redoc",
    "/ckpt/openapi.json",
    "/ckpt/nothing/there",
    "/ckpt//",
)


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a checkpoint, its backup and a report."""
    place = tmp_path_factory.mktemp("stream")
    checkpoint = unpack(place / "checkpoints" / "orders")
    repository = Repository.open_or_create(open_location(str(place / "backups")))
    create_backup(Checkpoint.at(open_location(str(checkpoint))), repository, name="orders")
    fleet = inspect_fleet(discover([open_location(str(place / "checkpoints"))]), repository)
    keep_report(repository, fleet, writer="fleet.report")
    return place


@pytest.fixture
def client(stream: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The application as Airflow mounts it, with its simple auth manager in which not everybody is admin."""
    from airflow.api_fastapi.app import init_auth_manager, purge_cached_app
    from airflow.models import import_all_models
    from airflow.models.revoked_token import RevokedToken
    from airflow.settings import engine

    import_all_models()
    RevokedToken.metadata.create_all(engine)
    known("restore_checkpoint", "rewind_replay")

    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "False")
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", str(stream / "backups"))
    purge_cached_app()
    app = FastAPI()
    init_auth_manager(app)
    app.mount("/ckpt", make_app())
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client
    purge_cached_app()


def known(*dag_ids: str) -> None:
    """Let Airflow have these DAGs and no other."""
    from airflow.models.dag import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    with create_session() as session:
        session.execute(update(DagModel).values(is_stale=True))  # those of other tests have runs, and stay
        session.merge(DagBundleModel(name="page"))
        session.flush()
        for dag_id in dag_ids:
            gone = dag_id.startswith("gone:")
            session.merge(DagModel(dag_id=dag_id.removeprefix("gone:"), bundle_name="page", is_stale=gone))


def as_user(role: str | None) -> dict[str, str]:
    """Headers of somebody with a role."""
    token = SimpleAuthManager().generate_jwt(SimpleAuthManagerUser(username="somebody", role=role))
    return {"Authorization": f"Bearer {token}"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Bearer x"}, 403), (None, 403)],
    ids=["nobody", "forged", "no right"],
)
def test_nobody_sees_anything_without_the_right_to(
    client: TestClient, headers: dict[str, str] | None, status: int
) -> None:
    given = as_user(None) if headers is None else headers
    for address in ADDRESSES:
        for method in METHODS:
            answer = client.request(method, address, headers=given)
            assert answer.status_code == status, (method, address)
            assert "orders" not in answer.text, (method, address)
            assert "openapi" not in answer.text.lower(), (method, address)
            assert len(answer.content) < 200, (method, address)


def test_it_changes_nothing(client: TestClient) -> None:
    for method in METHODS[2:]:
        for address in ("/ckpt/", "/ckpt/stream?name=orders"):
            assert client.request(method, address, headers=as_user("admin")).status_code in (404, 405)


def test_whoever_may_look_sees_all_pages(client: TestClient, stream: Path) -> None:
    headers = as_user("viewer")
    (backup,) = Repository.open(open_location(str(stream / "backups"))).backups("orders")
    for address in ("/ckpt/", "/ckpt/stream?name=orders", f"/ckpt/backup?name=orders&id={backup.backup_id}"):
        answer = client.get(address, headers=headers)
        assert answer.status_code == 200, answer.text
        assert "orders" in answer.text
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert policy.endswith("frame-ancestors 'self'")
    for name in ("page.css", "page.js"):
        assert client.get(f"/ckpt/static/{name}", headers=headers).status_code == 200


def test_the_page_shows_whether_declared_objectives_are_met(
    client: TestClient, stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> str:
        answer = client.get("/ckpt/stream?name=orders", headers=as_user("viewer"))
        assert answer.status_code == 200, answer.text
        return answer.text

    assert "RPO" not in shown()
    file = tmp_path / "streams.yaml"
    monkeypatch.setenv("AIRFLOW__CKPT__STREAMS", str(file))
    assert "RPO" not in shown()  # there is no such file on the web server
    place = f"checkpoint: {stream}/checkpoints/orders, repository: {stream}"
    declared = f"streams: {{orders: {{{place}/%s, objectives: {{rpo: 2d}}}}}}"
    file.write_text(declared % "elsewhere")
    assert "RPO" not in shown()
    file.write_text(declared % "backups")
    assert "<dt>RPO 2 d</dt><dd>met</dd>" in shown()


@pytest.mark.parametrize(
    "address", ["/ckpt/stream?name=none", "/ckpt/stream?name=" + quote("<b>"), "/ckpt/change?id=9", "/ckpt/static/x"]
)
def test_what_is_not_there(client: TestClient, address: str) -> None:
    answer = client.get(address, headers=as_user("viewer"))
    assert answer.status_code == 404
    assert "<b>" not in answer.text


def test_a_form_is_filled_in_for_whoever_may_start_the_dag(client: TestClient, stream: Path) -> None:
    (backup,) = Repository.open(open_location(str(stream / "backups"))).backups("orders")
    address = f"/ckpt/stream?name=orders&restore={backup.backup_id}"
    shown = client.get(address, headers=as_user("user")).text
    assert 'data-dag="restore_checkpoint"' in shown
    assert f'value="{backup.backup_id}"' in shown
    assert f'value="{stream}/checkpoints/orders"' in shown
    refused = client.get(address, headers=as_user("viewer")).text
    assert "<form" not in refused
    assert "You may not start restore_checkpoint." in refused
    rewind = client.get("/ckpt/stream?name=orders&rewind=2026-11-21T11:13:07%2B00:00", headers=as_user("user")).text
    assert 'value="2026-11-21T11:13:07+00:00"' in rewind
    assert client.get("/ckpt/stream?name=orders&rewind=yesterday", headers=as_user("user")).status_code == 422
    assert client.get("/ckpt/stream?name=orders&restore=none", headers=as_user("user")).status_code == 404


def test_a_time_without_a_zone_is_refused(client: TestClient) -> None:
    for said in ("2026-11-21T11:13:07", "2026-11-21"):
        assert client.get(f"/ckpt/stream?name=orders&rewind={said}", headers=as_user("user")).status_code == 422


def test_the_dags_of_a_team_are_for_this_team(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Airflow's own API has it."""
    from airflow.models.dag import DagModel

    teams: dict[str, str] = {"rewind_replay": "payments"}
    monkeypatch.setattr(DagModel, "get_team_name", staticmethod(teams.get))

    def get(*own: str) -> Any:
        token = SimpleAuthManager().generate_jwt(SimpleAuthManagerUser(username="u", role="user", teams=list(own)))
        address = "/ckpt/stream?name=orders&rewind=2026-11-21T11:13:07%2B00:00"
        return client.get(address, headers={"Authorization": f"Bearer {token}"})

    assert "You may not start rewind_replay." in get("shop").text
    assert "<form" in get("payments").text
    teams["fleet"] = "payments"
    assert (get("shop").status_code, get().status_code, get("payments").status_code) == (403, 403, 200)


@pytest.fixture
def declare(stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Write the `streams.yaml` that the web server has."""

    def write(text: str) -> None:
        (tmp_path / "streams.yaml").write_text(text.replace("PLACE", str(stream)))
        monkeypatch.setenv("AIRFLOW__CKPT__STREAMS", str(tmp_path / "streams.yaml"))

    return write


#: Declared under a name that differs from the one in the repository.
DECLARED = (
    "streams: {web: {checkpoint: PLACE/checkpoints/orders, repository: PLACE/backups, name_in_repository: orders}}"
)


@pytest.mark.parametrize(
    ("there", "restore", "rewind"),
    [
        (("ckpt_restore", "ckpt_rewind", "restore_checkpoint", "rewind_replay"), "ckpt_restore", "ckpt_rewind"),
        (("ckpt_web_restore", "gone:ckpt_rewind", "ckpt_web_rewind"), "ckpt_web_restore", "ckpt_web_rewind"),
        (("gone:ckpt_restore", "restore_checkpoint", "rewind_replay"), "restore_checkpoint", "rewind_replay"),
        (("gone:restore_checkpoint",), None, None),
    ],
)
def test_the_form_of_a_declared_stream_starts_the_dag_that_there_is(
    client: TestClient,
    stream: Path,
    declare: Callable[[str], None],
    there: tuple[str, ...],
    restore: str | None,
    rewind: str | None,
) -> None:
    declare(DECLARED)
    known(*there)
    (backup,) = Repository.open(open_location(str(stream / "backups"))).backups("orders")
    for kind, asked, expected in (
        ("restore", f"restore={backup.backup_id}", restore),
        ("rewind", "rewind=2026-11-21T11:13:07%2B00:00", rewind),
    ):
        shown = client.get(f"/ckpt/stream?name=orders&{asked}", headers=as_user("user")).text
        if expected is None:
            example = {"restore": "restore_checkpoint", "rewind": "rewind_replay"}[kind]
            assert f"This Airflow has no DAG ckpt_{kind}, ckpt_web_{kind} or {example}. Copy the example DAG" in shown
            assert "<form" not in shown
            continue
        assert f'data-dag="{expected}"' in shown
        assert ('name="stream" value="web"' in shown) is expected.startswith("ckpt_")
        refused = client.get(f"/ckpt/stream?name=orders&{asked}", headers=as_user("viewer")).text
        assert f"You may not start {expected}." in refused


@pytest.mark.parametrize("kind", ["restore", "rewind"])
def test_the_fields_of_the_form_are_the_params_of_the_dag(
    client: TestClient, stream: Path, declare: Callable[[str], None], kind: str
) -> None:
    """Each is one of the DAG's, and what the browser sends of the untouched form is taken."""
    from airflow_ckpt_provider.dag_factory.stream_dags import stream_dags
    from airflow_ckpt_provider.page.forms import Field, Form, declared_restore_form, declared_rewind_form

    declared = Stream("web", checkpoint="/c", repository="/r")
    params = stream_dags([declared])[f"ckpt_{kind}"].params
    (backup,) = Repository.open(open_location(str(stream / "backups"))).backups("orders")
    form: Form = (
        declared_restore_form("ckpt_restore", declared, backup)
        if kind == "restore"
        else declared_rewind_form("ckpt_rewind", declared, datetime(2026, 11, 21, tzinfo=UTC))
    )

    def sent(each: Field) -> Any:
        if each.kind == "words":
            return str(each.value or "").split()
        return int(each.value) if each.kind == "number" else each.value

    assert {each.name for each in form.fields} == set(params)
    for each in form.fields:
        params.get_param(each.name).resolve(value=sent(each))
        for choice in each.choices:
            params.get_param(each.name).resolve(value=int(choice) if each.kind == "number" else choice)


def test_all_repositories_that_are_declared_are_shown(
    client: TestClient, stream: Path, declare: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Repository.open_or_create(open_location(str(tmp_path / "second")))
    checkpoint = unpack(tmp_path / "checkpoints" / "clicks")
    for name in ("clicks", "orders"):  # one name is in both
        made = create_backup(Checkpoint.at(open_location(str(checkpoint))), other, name=name)
    declare(
        "streams:\n"
        "  web: {checkpoint: PLACE/checkpoints/orders, repository: 'file://PLACE//backups', name_in_repository: orders}\n"
        f"  clicks: {{checkpoint: {checkpoint}, repository: {tmp_path}/second, objectives: {{rpo: 2d}}}}\n"
        f"  lost: {{checkpoint: /lost, repository: {tmp_path}/third}}\n"
        "  wrong: {checkpoint: /wrong, repository: s3://fourth, repository_conn_id: wrong}\n"
    )
    monkeypatch.setenv("AIRFLOW_CONN_WRONG", json.dumps({"conn_type": "aws", "extra": {"config_kwargs": {"none": 1}}}))

    def get(address: str) -> Any:
        return client.get(f"/ckpt/{address}", headers=as_user("user"))

    page = get("").text
    # Two of this repository and one of that, each once; and what is declared of those that cannot be read.
    assert page.count('<th scope="row">') == 5
    assert f"{tmp_path}/third cannot be read: " in page
    assert "s3://fourth cannot be read: s3://fourth cannot be opened: TypeError: " in page
    links = dict(re.findall(r'<a href="(stream[^"]+)">(\w+)</a>', page))
    assert sorted(links.values()) == ["clicks", "lost", "orders", "orders", "wrong"]
    links = {link: name for link, name in links.items() if name not in ("lost", "wrong")}
    for link, name in links.items():
        assert get(html.unescape(link)).status_code == 200, name
    # By its name alone where only one has it; with the key else.
    assert "<dt>RPO 2 d</dt><dd>UNKNOWN</dd>" in get("stream?name=clicks").text  # nobody has reported of it
    assert get("stream?name=orders").status_code == 404
    assert "2 repositories have this: choose in the list of streams" in get("stream?name=orders").text
    assert get("stream?name=orders&at=0123456789ab").status_code == 404
    assert get(f"backup?name=orders&id={made.manifest.backup_id}").status_code == 200
    # Without the setting they are shown as well.
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", "")
    assert get("").text.count('<th scope="row">') == 5


def test_a_link_of_a_task_names_the_repository_where_there_are_several(
    client: TestClient, stream: Path, declare: Callable[[str], None], tmp_path: Path
) -> None:
    place = open_location(str(stream / "backups"))
    (backup,) = Repository.open(place).backups("orders")
    declare(DECLARED)
    assert page_of(place.uri, "backup", name="orders", id="b1").endswith("/ckpt/backup?name=orders&id=b1")
    declare(f"{DECLARED[:-1]}, other: {{checkpoint: /other, repository: {tmp_path}/other}}}}")
    address = page_of(place.uri, "backup", name="orders", id=backup.backup_id).partition("/plugin/checkpoints")[2]
    assert "&at=" in address
    assert client.get(address, headers=as_user("viewer")).status_code == 200


def test_one_repository_that_cannot_be_read_may_have_it_too(
    client: TestClient, stream: Path, declare: Callable[[str], None], tmp_path: Path
) -> None:
    declare(f"{DECLARED[:-1]}, other: {{checkpoint: /other, repository: {tmp_path}/other}}}}")
    answer = client.get("/ckpt/stream?name=orders", headers=as_user("viewer"))
    assert answer.status_code == 200
    assert f"{tmp_path}/other cannot be read: {tmp_path}/other is not a repository" in answer.text
    assert "Whether it has this too is UNKNOWN." in answer.text
    at = dict(
        re.findall(r'<a href="stream\?name=(\w+)&amp;at=(\w+)"', client.get("/ckpt/", headers=as_user("viewer")).text)
    )
    assert set(at) == {"orders", "other"}, "what is declared of a repository that cannot be read is listed"
    assert (
        "cannot be read"
        not in client.get(f"/ckpt/stream?name=orders&at={at['orders']}", headers=as_user("viewer")).text
    )
    assert client.get("/ckpt/stream?name=none", headers=as_user("viewer")).status_code == 503


def test_a_repository_whose_store_does_not_answer(
    client: TestClient,
    stream: Path,
    declare: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declare(f"{DECLARED[:-1]}, other: {{checkpoint: /other, repository: {tmp_path}/other}}}}")
    Repository.open_or_create(open_location(str(tmp_path / "other")))
    answers, opened = threading.Event(), []
    really_open = page_app._open

    def slowly(shown: Any, **more: Any) -> Any:
        opened.append(shown.places.repository)
        if shown.places.repository.endswith("/other"):
            answers.wait()
        return really_open(shown, **more)

    def get(address: str) -> str:
        return client.get(f"/ckpt/{address}", headers=as_user("viewer")).text

    reads: BoundedReads[Any] = BoundedReads(30.0)
    monkeypatch.setattr(page_app, "_READS", reads)
    monkeypatch.setattr(page_app, "_open", slowly)
    # As if the time were over as soon as one has answered.
    monkeypatch.setattr(bounded, "wait", lambda begun, timeout: wait(begun, return_when=FIRST_COMPLETED))
    try:
        page = get("")
        assert f"{tmp_path}/other cannot be read: its store gave no answer within 30 s." in page
        assert "The status of its streams is UNKNOWN." in page
        at = dict(re.findall(r'<a href="stream\?name=(\w+)&amp;at=(\w+)"', page))
        assert set(at) == {"orders", "other"}
        assert "an earlier read of it has not ended yet" in get("")
        assert f"{tmp_path}/other: an earlier read of it has not ended yet" in get(
            f"stream?name=other&at={at['other']}"
        )
        assert "<h2>Backups</h2>" in get(f"stream?name=orders&at={at['orders']}")
        assert opened.count(f"{tmp_path}/other") == 1, "a store that does not answer is not asked again and again"
        monkeypatch.setattr(bounded, "_AGAIN", 0.0)
        assert "its store gave no answer" in get("")
        assert opened.count(f"{tmp_path}/other") == 2, "nor is it given up"
    finally:
        answers.set()
    monkeypatch.setattr(bounded, "wait", wait)
    assert "cannot be read" not in get("")


def test_a_declaration_that_cannot_be_read_is_said(client: TestClient, declare: Callable[[str], None]) -> None:
    declare("streams: {orders: {checkpont: /c}}")
    for address in ("", "stream?name=orders"):
        assert (
            "What is declared of the streams is UNKNOWN: "
            in client.get(f"/ckpt/{address}", headers=as_user("viewer")).text
        )


def test_a_repository_that_cannot_be_read_is_said(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", "/nowhere")
    answer = client.get("/ckpt/", headers=as_user("viewer"))
    assert answer.status_code == 503
    assert "/nowhere is not a repository" in answer.text
    monkeypatch.setenv("AIRFLOW__CKPT__REPOSITORY", "")
    assert "set `repository` in the section [ckpt]" in client.get("/ckpt/", headers=as_user("viewer")).text


def test_a_report_about_a_dag_that_one_may_not_read(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def only_others(self, *, method, user, access_entity=None, details=None):
        asked.append(details.id)
        return details.id != "fleet"

    monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", only_others)
    assert client.get("/ckpt/", headers=as_user("admin")).status_code == 403
    monkeypatch.setenv("AIRFLOW__CKPT__PAGE_DAG_ID", "my_fleet")
    assert client.get("/ckpt/", headers=as_user("admin")).status_code == 200
    assert asked == ["fleet", "my_fleet"]


def test_the_plugin_costs_nothing_to_load() -> None:
    program = (
        "import sys; import airflow.plugins_manager; before = set(sys.modules); import airflow_ckpt_provider.plugins.page\n"
        "print([m for m in set(sys.modules) - before if m.startswith(('airflow_ckpt_provider.', 'fastapi', 'jinja2'))])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = eval(said.splitlines()[-1])
    assert sorted(loaded) == ["airflow_ckpt_provider.plugins", "airflow_ckpt_provider.plugins.page"]


def test_the_view_leads_to_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    (app,), (view,) = CheckpointPagePlugin.fastapi_apps, CheckpointPagePlugin.external_views
    assert view["href"] == f"{app['url_prefix']}/"  # without the slash it is Airflow's own page
    assert not app["url_prefix"].startswith(("/api/v2", "/ui", "/execution", "/auth", "/pluginsv2"))
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.com/airflow/")
    assert conf.get("api", "base_url") == "https://example.com/airflow/"
    assert page_address("stream") == "/airflow/ckpt/stream"
