"""No credential is shown: in a URI, a message, the options of a store."""

from __future__ import annotations

import json
import re
import string
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_ckpt_provider.errors import CkptError, FileChangedError, RefusedError
from airflow_ckpt_provider.redaction import credentials_in, redacted, redacted_options, redacted_text
from airflow_ckpt_provider.storage.opening import open_location

#: Marks a secret, so that it is found whatever else a URI holds.
MARK = "s3cr3t"
SAFE = string.ascii_letters + string.digits
#: What a secret of AWS, Azure or a person has in it.
of_secrets = st.text(SAFE + "+/=:._~-", max_size=20).map(lambda text: f"{MARK}{text}{MARK}")
encoded = of_secrets.map(lambda text: quote(text, safe=""))
hosts = st.text(string.ascii_lowercase + string.digits + "-", min_size=1, max_size=12).map(lambda text: f"h{text}")
users = st.text(SAFE + "-_.", min_size=1, max_size=8)
paths = st.lists(st.text(SAFE + "=@:-_.", min_size=1, max_size=8), max_size=4).map("/".join)
schemes = st.sampled_from(
    ["s3", "s3a", "gs", "abfss", "wasbs", "hdfs", "webhdfs", "sftp", "ftp", "http", "https", "jdbc:pg"]
)
parameters = st.sampled_from(
    ["sig", "X-Amz-Signature", "x-amz-security-token", "X-Amz-Credential", "AWSAccessKeyId", "Signature", "token", "sas_token",
     "X-Goog-Signature", "GoogleAccessId", "password", "account_key", "SharedAccessSignature", "api_key", "client_secret", "key"]
)  # fmt: skip
options = st.sampled_from(
    ["key", "secret", "token", "password", "account_key", "sas_token", "connection_string", "credential", "client_secret",
     "AWS_SECRET_ACCESS_KEY", "aws_session_token", "AZURE_STORAGE_ACCOUNT_KEY", "sasl.password", "access_key"]
)  # fmt: skip


@given(schemes, users, of_secrets, hosts, paths)
@example("s3", "AKIA", "ab/cd" + MARK, "bucket", "checkpoints/orders")
@example("s3", "AKIA", "9000/" + MARK, "bucket", "a@b")
def test_no_password_of_a_host(scheme: str, user: str, secret: str, host: str, path: str) -> None:
    shown = redacted(uri := f"{scheme}://{user}:{secret}@{host}/{path}")
    assert MARK not in shown
    assert shown.startswith(f"{scheme}://{user}:***@")
    assert redacted(shown) == shown
    assert any(MARK in each for each in credentials_in(uri))
    assert "@" in path or shown.endswith(f"@{host}/{path}")


@given(schemes, hosts, paths, parameters, encoded, encoded)
def test_no_parameter_with_a_credential(scheme: str, host: str, path: str, name: str, secret: str, other: str) -> None:
    uri = f"{scheme}://{host}/{path}?sv=2022-11-02&{name}={secret}&sp=rl&{name.upper()}={other}"
    for shown in (redacted(uri), redacted_text(f"could not read {uri}: forbidden"), redacted_text(repr(uri))):
        assert MARK not in shown
        assert "sv=2022-11-02" in shown
        assert redacted_text(shown) == shown
    assert set(credentials_in(uri)) >= {secret, other}


@given(schemes, users, encoded, hosts, paths)
def test_none_in_a_message(scheme: str, user: str, secret: str, host: str, path: str) -> None:
    message = f"could not list '{scheme}://{user}:{secret}@{host}/{path}': forbidden; see {scheme}://{host}/{path}"
    shown = redacted_text(message)
    assert MARK not in shown
    assert shown.startswith("could not list ")
    assert redacted_text(shown) == shown
    error = RefusedError(message, hint=f"not {message}")
    error.add_hint(message)
    assert MARK not in f"{error} {error!r} {error.message} {error.hint} {error.args}"


@given(options, of_secrets, st.sampled_from(["endpoint_url", "region_name", "keyfile", "anon"]))
def test_none_in_the_options_of_a_store(name: str, secret: str, harmless: str) -> None:
    given_options = {name: secret, harmless: "shown", "client_kwargs": {name: secret, "headers": [{name: secret}]}}
    found = redacted_options(given_options)
    assert MARK not in repr(found)
    assert found[harmless] == "shown"
    if name != "key":  # in a text the word is used for other things
        assert MARK not in redacted_text(f"S3FileSystem({given_options!r}) failed")
        assert MARK not in redacted_text(json.dumps(given_options))
        assert MARK not in redacted_text(f"{name}={secret.rstrip('=')}")


@pytest.mark.parametrize(
    "text",
    [
        "DefaultEndpointsProtocol=https;AccountName=lake;AccountKey=s3cr3t==;EndpointSuffix=core.windows.net",
        "Authorization: Bearer s3cr3t.abc",
        "{'Authorization': 'AWS4-HMAC-SHA256 Credential=s3cr3t/20261122/us-east-1/s3/aws4_request'}",
        'sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="s3cr3t b";',
        "?sv=2022&sig=s3cr3t%3D",
        "filecache::s3://key:s3cr3t@bucket/path",
        "https://host/x?endpoint=http://user:s3cr3t@proxy:3128/",
        "https://s3cr3t@host/path",
        "https://user:s3cr3t@[::1]:8080/path",
        "AWS_SECRET_ACCESS_KEY=s3cr3t",
        "jdbc:postgresql://host/db?user=u&password=s3cr3t",
        "s3://AKIA:s3cr3t/s3cr3t@bucket/path",
        "`curl -u user:s3cr3t https://jobs:8080/stop` ended with exit code 22",
        "curl -fsSu 'user:s3cr3t word' https://jobs/stop",
        "curl --proxy-user=user:s3cr3t https://jobs/stop",
        "curl -H 'X-Auth-Token: s3cr3t s3cr3t' https://jobs/stop",
        "http -a user:s3cr3t PUT jobs/stop",
        "./stop --api-token s3cr3t",
        "./stop -password 's3cr3t s3cr3t'",
        "sshpass -p s3cr3t ssh host stop",
        "mysqldump -ps3cr3t streams",
        "redis-cli -a s3cr3t shutdown",
        "docker login -u user -p s3cr3t",
        "POST to https://hooks.slack.com/services/T024/B024/s3cr3t failed",
        "https://hooks.slack.com/workflows/s3cr3t/s3cr3t?a=b",
        "https://example.webhook.office.com/webhookb2/s3cr3t@s3cr3t/IncomingWebhook/s3cr3t",
        "https://discord.com/api/webhooks/1/s3cr3t, then",
        "https://api.telegram.org/bot1:s3cr3t/sendMessage",
        "https://events.pagerduty.com/integration/s3cr3t/enqueue",
    ],
)
def test_forms_in_which_credentials_are_written(text: str) -> None:
    assert "s3cr3t" not in redacted_text(text)
    assert "***" in redacted_text(text)


@pytest.mark.parametrize("text", ["{'password': 1234}", '{"a": {"token": -12.5e3}}', "{'api_key': 1234, 'b': 2}"])
def test_a_number_is_a_credential_too(text: str) -> None:
    assert not {"1234", "12.5"} & set(re.findall(r"[\d.]{2,}", redacted_text(text)))
    assert redacted_text("{'batch': 1234}") == "{'batch': 1234}"


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/table/token=abc/part-0.parquet",
        "abfss://container@account.dfs.core.windows.net/checkpoints/orders",
        "s3://aws_default@bucket/path",
        "hdfs://nn1:8020,nn2:8020/a@b",
        "hdfs://[::1]:8020/a@b",
        "http://host:8080/a@b",
        "/data/table/secret=1/x",
        "the value of key is no JSON",
        "--storage-option KEY=VALUE is repeatable: endpoint_url=http://host:9000",
        "spark-submit --packages io.delta:delta-spark_4.0_2.13:4.4.0",
        "batch 5: 12 files",
        "docker run -u 1000:1000 stopper",
        "curl -o out:put https://host:8080/x -d a=b",
        "https://api.slack.com/messaging/webhooks",
        "https://discord.com/developers/docs/resources/webhook",
        "spark-submit --password-file /run/secrets/x job.py",
        "give --signing-key-file FILE, or ckpt_signing_secret_key of the connection",
    ],
)
def test_what_is_no_credential_is_shown(text: str) -> None:
    assert redacted_text(text) == text
    assert redacted(text) == text
    assert credentials_in(text) == ()


@pytest.mark.parametrize("path", ["file:///data/a?sig=1", "/data/user:password@host?sig=abc"])
def test_a_path_of_this_machine_stays_as_it_is(path: str) -> None:
    assert redacted(path) == path


@given(st.sampled_from(["s3", "hdfs", "abfss"]), hosts, paths)
def test_a_uri_without_credentials_stays_as_it_is(scheme: str, host: str, path: str) -> None:
    uri = f"{scheme}://{host}/{path}"
    assert redacted(uri) == redacted_text(uri) == uri


@given(st.text(max_size=60))
def test_any_text_is_taken(text: str) -> None:
    shown = redacted_text(text)
    assert redacted_text(shown) == shown
    assert redacted(redacted(text)) == redacted(text)


def test_facts_of_an_error_have_none_either() -> None:
    error = FileChangedError("s3://u:s3cr3t@b/x changed", path="x", listed="5 bytes", found=None)
    assert "s3cr3t" not in repr(vars(error))


def test_an_error_that_is_raised_again_is_whole() -> None:
    assert CkptError("no https://u:s3cr3t@host", hint="see ?sig=s3cr3t").args == (
        "no https://u:***@host\nHINT: see ?sig=***",
    )


@pytest.mark.parametrize("uri", ["s3://AKIA:s3cr3t@bucket/x", "s3a://AKIA:s3/cr3t@bucket/x", "gs://u:s3cr3t@bucket/x"])
def test_credentials_before_a_bucket_are_refused(uri: str) -> None:
    """They would be sent as the bucket's name."""
    with pytest.raises(RefusedError, match="credentials do not belong in the address of a bucket") as error:
        open_location(uri)
    assert "cr3t" not in str(error.value)


def test_a_place_is_shown_without_them() -> None:
    store = open_location("memory://x").store
    assert store.uri_of("user:s3cr3t@host/path?sig=s3cr3t") == "memory://user:***@host/path?sig=***"
