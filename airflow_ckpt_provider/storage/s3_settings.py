"""How to reach an S3 service: endpoint, region, credentials.

Two ways lead here, so that :class:`~airflow_ckpt_provider.storage.s3_store.S3Store` can talk to the service itself:
from what a user wrote (``storage_options`` and environment, without loading botocore) and from an s3fs filesystem that
somebody else has authenticated. Both answer ``None`` where a setting is not understood; s3fs then does the work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: What obstore calls whenever it needs credentials; it asks again shortly before ``expires_at``.
CredentialProvider = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class S3Settings:
    """Where the service is and who asks.

    :param endpoint: URL of the service without the bucket, or ``None`` for AWS.
    :param region: region that requests are signed for; at AWS only where to start looking for the bucket's own.
    :param credentials: gives the credentials, or ``None`` for unsigned requests.
    :param access_key: distinguishes one identity from another; ``None`` where the key changes from time to time.
    :param virtual_hosts: the bucket is part of the host's name and not of the path.
    :param verify: check the server's certificate.
    """

    endpoint: str | None
    region: str
    credentials: CredentialProvider | None
    access_key: str | None
    virtual_hosts: bool = False
    verify: bool = True

    def bucket_url(self, bucket: str) -> tuple[str, str]:
        """URL of a bucket, and the region to sign for."""
        if self.endpoint is None:
            region = _aws_region_of(bucket, self.region)
            return f"https://s3.{region}.amazonaws.com/{bucket}", region
        if not self.virtual_hosts:
            return f"{self.endpoint.rstrip('/')}/{bucket}", self.region
        parts = urlsplit(self.endpoint)
        return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}")), self.region

    def same_identity(self, other: S3Settings) -> bool:
        """Whether both reach the same service as the same identity."""
        if (self.endpoint, self.virtual_hosts) != (other.endpoint, other.virtual_hosts):
            return False
        if self.endpoint is not None and self.region != other.region:
            return False
        if self.access_key is None:
            return self.credentials is other.credentials
        return self.access_key == other.access_key


def settings_of_options(options: Mapping[str, Any], environment: Mapping[str, str]) -> S3Settings | None:
    """Read fsspec's ``storage_options`` and AWS's environment variables.

    Profiles, configuration files, roles and instance metadata are botocore's business: ``None``.

    :param options: arguments of ``s3fs.S3FileSystem``.
    :param environment: usually ``os.environ``.
    """
    given = {key: value for key, value in options.items() if value is not None}
    client = {key: value for key, value in dict(given.pop("client_kwargs", {})).items() if value is not None}
    style = _addressing_style(given.pop("config_kwargs", {}))
    endpoint = given.pop("endpoint_url", None) or client.pop("endpoint_url", None)
    region = client.pop("region_name", None)
    anonymous = bool(given.pop("anon", False))
    key, secret, token = given.pop("key", None), given.pop("secret", None), given.pop("token", None)
    client.pop("endpoint_url", None)
    if given or client or style is None:
        return None
    if not (key or secret or token):
        key, secret = environment.get("AWS_ACCESS_KEY_ID"), environment.get("AWS_SECRET_ACCESS_KEY")
        token = environment.get("AWS_SESSION_TOKEN")
    if not anonymous and not (key and secret):
        return None
    if not endpoint and environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() != "true":
        endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL")
    region = region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
    if environment.get("AWS_CA_BUNDLE") and not _is_plain(endpoint):
        return None
    if not (endpoint and region) and _has_configuration_file(environment):
        return None
    region = region or "us-east-1"
    if endpoint is None and region.startswith("cn-"):
        return None
    return S3Settings(
        endpoint=endpoint,
        region=region,
        credentials=None if anonymous else _fixed(str(key), str(secret), token),
        access_key=None if anonymous else str(key),
        virtual_hosts=style == "virtual",
    )


def settings_of_filesystem(fs: AbstractFileSystem) -> S3Settings | None:
    """Read the settings of an s3fs filesystem, as botocore has resolved them.

    :param fs: an ``s3fs.S3FileSystem``; connected here if it is not yet, which makes no request.
    """
    try:
        return _settings_of_client(fs, fs.s3)
    except Exception:
        # Whatever is wrong with it (no credentials, a botocore of another shape): s3fs itself will say it better.
        return None


def _settings_of_client(fs: Any, client: Any) -> S3Settings | None:
    config, signer = client.meta.config, client._request_signer
    special = fs.asynchronous or fs.version_aware or fs.req_kw or fs.s3_additional_kwargs or fs.cache_regions
    verify = client._endpoint.http_session._verify
    style = _addressing_style({"s3": config.s3 or {}})
    endpoint: str | None = client.meta.endpoint_url
    own_authority = not isinstance(verify, bool) and not _is_plain(endpoint)
    if special or config.proxies or own_authority or style is None:
        return None
    region: str = client.meta.region_name or "us-east-1"
    if (urlsplit(endpoint or "").hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
        if region.startswith("cn-") or "dualstack" in str(endpoint) or "vpce" in str(endpoint):
            return None
        endpoint = None
    credentials = None
    access_key = None
    if not fs.anon:
        if config.signature_version not in (None, "s3v4") or signer._credentials is None:
            return None  # Airflow's own signers switch botocore's off
        credentials = _from_botocore(fs, signer._credentials)
        if not hasattr(signer._credentials, "_expiry_time"):
            access_key = signer._credentials.access_key
    return S3Settings(
        endpoint=endpoint,
        region="us-east-1" if region == "aws-global" else region,
        credentials=credentials,
        access_key=access_key,
        virtual_hosts=style == "virtual",
        verify=verify is not False,
    )


def _addressing_style(config: Mapping[str, Any]) -> str | None:
    """Read ``path``, ``virtual`` or ``auto`` out of botocore's configuration, ``None`` if there is more in it."""
    rest = dict(config)
    s3 = dict(rest.pop("s3", None) or {})
    style = str(s3.pop("addressing_style", None) or "auto")
    # Checksums and the like that change no address and no right.
    harmless = {"payload_signing_enabled", "us_east_1_regional_endpoint"}
    tuning = {"retries", "max_pool_connections", "connect_timeout", "read_timeout", "signature_version"}
    if set(s3) - harmless or set(rest) - tuning or rest.get("signature_version", "s3v4") != "s3v4":
        return None
    return style


def _fixed(key: str, secret: str, token: str | None) -> CredentialProvider:
    answer = {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}
    return lambda: answer


def _from_botocore(fs: Any, credentials: Any) -> CredentialProvider:
    def provide() -> dict[str, Any]:
        import fsspec.asyn

        frozen = fsspec.asyn.sync(fs.loop, credentials.get_frozen_credentials)
        expires_at: datetime | None = getattr(credentials, "_expiry_time", None)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": expires_at,
        }

    return provide


def _is_plain(endpoint: str | None) -> bool:
    return endpoint is not None and endpoint.startswith("http://")


def _has_configuration_file(environment: Mapping[str, str]) -> bool:
    path = environment.get("AWS_CONFIG_FILE") or "~/.aws/config"
    return os.path.isfile(os.path.expanduser(path))


def _aws_region_of(bucket: str, region: str) -> str:
    """Ask AWS in which region a bucket is: any region answers, to anybody."""
    import http.client  # not above: it takes 0.08 s, and few ask

    connection = http.client.HTTPSConnection(f"s3.{region}.amazonaws.com", timeout=10)
    try:
        connection.request("HEAD", f"/{bucket}")
        return connection.getresponse().getheader("x-amz-bucket-region") or region
    finally:
        connection.close()
