"""How the workspace says no: a status, and ``{"error_code", "message"}`` as its body."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        return {"error_code": self.code, "message": str(self)}


def not_found(what: str, name: object) -> ApiError:
    return ApiError(404, "RESOURCE_DOES_NOT_EXIST", f"The specified {what} {name} was not found.")


def invalid(message: str) -> ApiError:
    return ApiError(400, "INVALID_PARAMETER_VALUE", message)


class FlowFailed(Exception):
    """A flow stops with an exception of Spark's, as the event log shows it.

    :param error_class: Spark's error class; empty where the message has none.
    :param class_name: of the exception.
    """

    def __init__(
        self, error_class: str, message: str, class_name: str = "org.apache.spark.sql.streaming.StreamingQueryException"
    ) -> None:
        super().__init__(f"[{error_class}] {message}" if error_class else message)
        self.error_class = error_class
        self.class_name = class_name
