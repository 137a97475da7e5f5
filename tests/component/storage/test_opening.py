"""Which store an address or a filesystem gets, and with which settings."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import s3fs

from airflow_ckpt_provider.errors import MissingExtraError, StorageError
from airflow_ckpt_provider.storage.fsspec_store import FsspecStore
from airflow_ckpt_provider.storage.local_store import LocalStore
from airflow_ckpt_provider.storage.opening import location_of, open_location
from airflow_ckpt_provider.storage.s3_settings import (
    S3Settings,
    settings_of_filesystem,
    settings_of_options,
)
from airflow_ckpt_provider.storage.s3_store import S3Store

KEYS = {"key": "k", "secret": "s"}
HERE = {**KEYS, "endpoint_url": "http://127.0.0.1:9", "client_kwargs": {"region_name": "us-east-1"}}


def test_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for address in (str(tmp_path / "ck"), f"file://{tmp_path}/ck", f"{tmp_path}/ck/", "ck", "./ck", "~/ck"):
        location = open_location(address)
        assert isinstance(location.store, LocalStore)
        assert location.uri == str(tmp_path / "ck"), address


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
def test_all_spellings_of_s3(scheme: str) -> None:
    location = open_location(f"{scheme}://bucket/a b/c%20d/", storage_options=HERE)
    assert location.uri == "s3://bucket/a b/c%20d"
    assert isinstance(location.store, S3Store)


def test_an_unknown_scheme() -> None:
    with pytest.raises(StorageError) as e:
        open_location("nonsense://x/y")
    assert e.value.message.startswith("nonsense://x/y: ")
    assert e.value.hint == "use a path, or a scheme and options that fsspec knows"


def test_a_missing_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("obstore", "s3fs", "gcsfs", "adlfs"):
        monkeypatch.setitem(sys.modules, module, None)
    for protocol in ("s3", "gcs", "abfs"):
        # fsspec keeps the classes it has loaded; `fsspec.registry` itself is a read-only view of them.
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)
    for scheme, extra in (("s3a", "amazon"), ("gs", "google"), ("abfss", "azure")):
        with pytest.raises(MissingExtraError) as e:
            open_location(f"{scheme}://x/y", storage_options={"skip_instance_cache": True})
        assert e.value.hint == f"pip install 'airflow-ckpt-provider[{extra}]'"


def test_no_client_is_loaded_before_it_is_needed() -> None:
    program = (
        "import sys, airflow_ckpt_provider.storage.opening as o\n"
        "loaded = {m.partition('.')[0] for m in sys.modules}\n"
        "assert not loaded & {'obstore', 's3fs', 'botocore', 'aiobotocore', 'aiohttp', 'requests'}, loaded\n"
        f"o.open_location('s3://bucket/x', storage_options={HERE!r})\n"
        "assert not {'s3fs', 'botocore'} & {m.partition('.')[0] for m in sys.modules}\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


class TestOptions:
    def test_endpoint_region_and_credentials(self) -> None:
        settings = settings_of_options({**HERE, "token": "t"}, {})
        assert settings is not None
        assert (settings.endpoint, settings.region, settings.access_key) == ("http://127.0.0.1:9", "us-east-1", "k")
        assert settings.credentials is not None
        assert settings.credentials() == {
            "access_key_id": "k",
            "secret_access_key": "s",
            "token": "t",
            "expires_at": None,
        }
        assert settings.bucket_url("b") == ("http://127.0.0.1:9/b", "us-east-1")

    def test_virtual_hosts(self) -> None:
        options = {
            **HERE,
            "config_kwargs": {"s3": {"addressing_style": "virtual"}},
            "endpoint_url": "https://s3.example.org:8443",
        }
        settings = settings_of_options(options, {})
        assert settings is not None
        assert settings.bucket_url("b") == ("https://b.s3.example.org:8443", "us-east-1")

    def test_anonymous(self) -> None:
        settings = settings_of_options(
            {"anon": True, "endpoint_url": "http://h", "client_kwargs": {"region_name": "x"}}, {}
        )
        assert settings is not None
        assert settings.credentials is None

    def test_environment(self) -> None:
        environment = {
            "AWS_ACCESS_KEY_ID": "k",
            "AWS_SECRET_ACCESS_KEY": "s",
            "AWS_SESSION_TOKEN": "t",
            "AWS_DEFAULT_REGION": "eu-west-1",
            "AWS_ENDPOINT_URL": "http://general",
            "AWS_CONFIG_FILE": "/dev/null",
        }
        settings = settings_of_options({}, environment)
        assert settings is not None
        assert (settings.endpoint, settings.region) == ("http://general", "eu-west-1")
        assert settings.credentials is not None
        assert settings.credentials()["token"] == "t"
        for_s3 = settings_of_options({}, environment | {"AWS_ENDPOINT_URL_S3": "http://special"})
        assert for_s3 is not None
        assert for_s3.endpoint == "http://special"
        ignored = settings_of_options({}, environment | {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"})
        assert ignored is not None
        assert ignored.endpoint is None
        given = settings_of_options(HERE, environment)
        assert given is not None
        assert given.credentials is not None
        assert given.credentials()["token"] is None

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"profile": "work", **HERE},
            {**HERE, "s3_additional_kwargs": {"ServerSideEncryption": "aws:kms"}},
            {**HERE, "requester_pays": True},
            {**HERE, "client_kwargs": {"verify": False}},
            {**HERE, "config_kwargs": {"proxies": {"http": "http://proxy"}}},
            {**HERE, "config_kwargs": {"signature_version": "s3"}},
            {**HERE, "config_kwargs": {"s3": {"use_accelerate_endpoint": True}}},
        ],
        ids=str,
    )
    def test_what_is_not_understood_is_left_to_s3fs(self, options: dict[str, Any]) -> None:
        assert settings_of_options(options, {"AWS_CONFIG_FILE": "/dev/null"}) is None

    def test_a_configuration_file_is_left_to_botocore(self, tmp_path: Path) -> None:
        (tmp_path / "config").write_text("[default]\nregion = eu-west-1\n")
        environment = {"AWS_CONFIG_FILE": str(tmp_path / "config")}
        assert settings_of_options(KEYS, environment) is None
        assert settings_of_options(HERE, environment) is not None


class TestFilesystem:
    def open(self, **options: Any) -> s3fs.S3FileSystem:
        return s3fs.S3FileSystem(**{**HERE, **options}, skip_instance_cache=True)

    def test_equals_what_was_given(self) -> None:
        of_fs, of_options = settings_of_filesystem(self.open()), settings_of_options(HERE, {})
        assert of_fs is not None
        assert of_options is not None
        assert of_fs.same_identity(of_options)
        assert of_fs.credentials is not None
        assert of_options.credentials is not None
        assert of_fs.credentials() == of_options.credentials()

    def test_profile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "credentials").write_text("[work]\naws_access_key_id = pk\naws_secret_access_key = ps\n")
        (tmp_path / "config").write_text("[profile work]\nregion = eu-west-1\nendpoint_url = http://127.0.0.1:9\n")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        location = open_location("s3://bucket/x", storage_options={"profile": "work", "skip_instance_cache": True})
        assert isinstance(location.store, S3Store)
        settings = location.store.settings
        assert (settings.endpoint, settings.region, settings.access_key) == ("http://127.0.0.1:9", "eu-west-1", "pk")

    def test_credentials_that_expire_are_asked_for_again(self) -> None:
        from aiobotocore.credentials import AioRefreshableCredentials
        from aiobotocore.session import AioSession

        made = 0

        async def refresh() -> dict[str, str]:
            nonlocal made
            made += 1
            expiry = datetime.now(UTC) + timedelta(minutes=20)
            return {"access_key": f"k{made}", "secret_key": "s", "token": "t", "expiry_time": expiry.isoformat()}

        session = AioSession()
        # Each is older than botocore likes them to be, so that each poll makes a new one.
        session._credentials = AioRefreshableCredentials(
            "k0",
            "s",
            "t",
            datetime.now(UTC) + timedelta(seconds=1),
            refresh_using=refresh,
            method="test",
            advisory_timeout=10_000,
            mandatory_timeout=10_000,
        )
        fs = s3fs.S3FileSystem(session=session, endpoint_url="http://127.0.0.1:9", skip_instance_cache=True)
        settings = settings_of_filesystem(fs)
        assert settings is not None
        assert settings.credentials is not None
        assert settings.access_key is None
        first, second = settings.credentials(), settings.credentials()
        assert first["access_key_id"] != second["access_key_id"]
        assert second["expires_at"] > datetime.now(UTC)

    @pytest.mark.parametrize(
        "options",
        [
            {"version_aware": True},
            {"requester_pays": True},
            {"s3_additional_kwargs": {"ServerSideEncryption": "aws:kms"}},
            {"config_kwargs": {"proxies": {"http": "http://proxy"}}},
            {"config_kwargs": {"s3": {"use_accelerate_endpoint": True}}, "endpoint_url": None},
        ],
        ids=str,
    )
    def test_what_is_not_understood_is_left_to_s3fs(self, options: dict[str, Any]) -> None:
        fs = self.open(**options)
        assert settings_of_filesystem(fs) is None
        assert type(location_of(fs, "bucket/x").store) is FsspecStore

    def test_a_foreign_signer_is_left_to_s3fs(self) -> None:
        from botocore import UNSIGNED

        assert settings_of_filesystem(self.open(config_kwargs={"signature_version": UNSIGNED})) is None


def test_same_identity() -> None:
    def settings(**changes: Any) -> S3Settings:
        return S3Settings(**({"endpoint": None, "region": "a", "credentials": None, "access_key": "k"} | changes))

    assert settings().same_identity(settings(region="b"))  # AWS: buckets of all regions
    assert not settings().same_identity(settings(access_key="other"))
    assert not settings(endpoint="http://x").same_identity(settings(endpoint="http://y"))

    def provider() -> dict[str, Any]:
        return {}

    of_role = settings(access_key=None, credentials=provider)
    assert of_role.same_identity(settings(access_key=None, credentials=provider))
    assert not of_role.same_identity(settings(access_key=None, credentials=lambda: {}))
