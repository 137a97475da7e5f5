"""What went wrong outside, in words that name the place, the reason and the next step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_ckpt_provider.errors import StorageError

_NO_BUCKET = "create it, or correct the address"
_CREDENTIALS = (
    "check the access key, the secret and the token of the connection (or of storage_options, or the environment)"
)
_NOT_ALLOWED = "check that these credentials may list, read and write there (some steps need only a part of that)"
_UNREACHABLE = "check the address, the credentials and that the store is reachable, then run the same command again"
#: Next step where a store refuses for a while.
SLOWER = "the store is asked too much: see who else uses it, or its limits; then run the same command again"
_FULL = "free some space, then run the same command again"

#: Error code of a service -> next step. The codes are those of S3, Azure and GCS.
_HINTS = {
    "NoSuchBucket": _NO_BUCKET,
    "ContainerNotFound": _NO_BUCKET,
    "InvalidAccessKeyId": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "InvalidToken": _CREDENTIALS,
    "TokenRefreshRequired": _CREDENTIALS,
    "AuthenticationFailed": _CREDENTIALS,
    "AccessDenied": _NOT_ALLOWED,
    "AuthorizationFailure": _NOT_ALLOWED,
    "AuthorizationPermissionMismatch": _NOT_ALLOWED,
    "AllAccessDisabled": _NOT_ALLOWED,
    "SlowDown": SLOWER,
    "ServerBusy": SLOWER,
    "TooManyRequests": SLOWER,
    "QuotaExceeded": _FULL,
    "XMinioStorageFull": _FULL,
}
#: How S3's XML and obstore's own sentences give code and message.
_CODE = re.compile(r"<Code>(?P<code>\w+)</Code>(?:\s*<Message>(?P<message>[^<]*)</Message>)?")
#: How obstore shows the status of an answer, and that there was none.
_STATUS = re.compile(r"status code: (\d{3})|error response: (\d{3})")
_NO_ANSWER = "HTTP error:"
_SLOW_DOWN = frozenset({"SlowDown", "ServerBusy", "TooManyRequests", "RequestLimitExceeded", "Throttling"})
_SLOW_DOWN_STATUS = frozenset({429, 503})
_PASSING_STATUS = frozenset({408, 500, 502, 504})
_CODE_IN_WORDS = re.compile(r"(?P<message>[^:\n]*) \(code: (?P<code>\w+)\)")


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Turn every failure but file-not-found and file-exists into a :class:`StorageError`.

    :param action: what was being done to which place, to follow "could not".
    """
    try:
        yield
    except FileExistsError:
        raise
    except FileNotFoundError as e:
        if says_no_bucket(e):
            raise storage_error(action, e) from e
        # Some clients tell how long it took and what the server said; whoever compares two complaints wants the same words.
        raise FileNotFoundError(f"could not {action}: it does not exist") from e
    except StorageError:
        raise
    except Exception as e:
        raise storage_error(action, e) from e


def storage_error(action: str, cause: Exception) -> StorageError:
    """Say why an action failed and what to do about it.

    :param action: what was being done to which place, to follow "could not".
    :param cause: the client's exception.
    """
    code, reason = _code_and_reason(cause)
    hint = _HINTS.get(code or "")
    if hint is None:
        hint = _NOT_ALLOWED if isinstance(cause, PermissionError) else _UNREACHABLE
    return StorageError(f"could not {action}: {reason}", hint=hint)


def error_code(error: BaseException) -> str | None:
    """The service's own word for what went wrong, such as ``AccessDenied``; ``None`` where it said none."""
    return _code_and_reason(error)[0]


def says_no_bucket(error: BaseException) -> bool:
    """Whether a client's file-not-found is about the bucket and not about the file."""
    code, _ = _code_and_reason(error)
    return code in ("NoSuchBucket", "ContainerNotFound")


def says_condition_failed(error: BaseException) -> bool:
    """Whether a client's error is the service's refusal because what is there is not what the request demands."""
    code, _ = _code_and_reason(error)
    return code in ("PreconditionFailed", "ConditionalRequestConflict")


def says_slow_down(error: BaseException) -> bool:
    """Whether a client's error is the service's wish to be asked less. The request was not carried out."""
    code, _ = _code_and_reason(error)
    return code in _SLOW_DOWN or _status(error) in _SLOW_DOWN_STATUS


def is_passing(error: BaseException) -> bool:
    """Whether a client's error is of a kind that comes and goes: no answer, or one that says the service failed.

    Whether the request was carried out is not known.
    """
    if isinstance(error, FileNotFoundError | FileExistsError | StorageError):
        return False
    if isinstance(error, TimeoutError):
        return True
    status = _status(error)
    return status in _PASSING_STATUS if status else _NO_ANSWER in _first_part(error)


def _status(error: BaseException) -> int | None:
    found = _STATUS.search(_first_part(error))
    return int(found[1] or found[2]) if found else None


def _first_part(error: BaseException) -> str:
    # obstore appends its own data structures to the message.
    return str(error).partition("\n\nDebug source:")[0].strip()


def _code_and_reason(error: BaseException) -> tuple[str | None, str]:
    # botocore keeps the service's answer in the exception that s3fs translates.
    response = getattr(error.__cause__, "response", None)
    if isinstance(response, dict) and isinstance(answer := response.get("Error"), dict) and answer.get("Code"):
        code = str(answer["Code"])
        # An answer without a body has the status as its code, which says nothing to anybody.
        if not code.isdigit():
            return code, _sentence(code, str(answer.get("Message", "")))
    text = str(error)
    found = _CODE.search(text) or _CODE_IN_WORDS.search(text)
    if found:
        return found["code"], _sentence(found["code"], (found["message"] or "").strip())
    first = _first_part(error)
    return None, f"{type(error).__name__}: {first}" if first else type(error).__name__


def _sentence(code: str, message: str) -> str:
    return f"{message.rstrip('.')} ({code})" if message else code
