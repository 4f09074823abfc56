"""Everything that a call may raise, besides ValueError and TypeError for arguments that are wrong before it is sent.

StarlingError
 +-- ServerError            the server answered with an error
 |    +-- BadRequest 400        a field of the request is wrong; the message names it
 |    +-- Unauthorized 401      an API key is needed, or this one is wrong
 |    +-- NotFound 404          unknown model or version
 |    +-- TooLarge 413          one row alone is larger than the server takes
 |    +-- Refused 429           the queue is full: no row has run; was retried
 |    |    +-- DeadlineUnreachable  `timeout_ms` is over before the work would be: no row has run
 |    +-- ModelFailed 500       this request failed in the model
 |    +-- Unavailable 503       starting, draining, loading or failed; was retried
 |    +-- DeadlineExceeded 504  `timeout_ms` passed on the server
 +-- NotConnected           no connection was made, so nothing was sent; was retried
 +-- ConnectionLost         it broke before the whole answer came: the model may have run
 +-- TimedOut               `deadline_s` passed here: the model may have run
 +-- Interrupted            a text that was streamed ended with an error, behind what had been sent
 +-- BadAnswer              the answer is not what the protocol says
 +-- VersionChanged         parts of a batch were answered by different versions of the model
"""

from __future__ import annotations


class StarlingError(Exception):
    """Base of all errors of a call.

    `message` is the server's own where there is one. `status` is that of HTTP, None where no answer came. `code` is the
    kind of error in one word. `request_id` is the one to look for in the server's log. `tries` counts requests sent or
    attempted. `rows` are the first row and the one behind the last of the part that failed, where a batch was cut.
    """

    code = "error"
    status: int | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.request_id: str | None = None
        self.retry_after_s: float | None = None
        self.tries = 1
        self.rows: tuple[int, int] | None = None


class ServerError(StarlingError):
    """The server answered with an error. Of a status that has no class of its own it is this class itself."""

    code = "http_error"

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.args = message, status  # what it is made from again, in another process
        self.status: int = status

    def __str__(self) -> str:
        return f"{self.status}: {self.message}"


class BadRequest(ServerError):
    code = "bad_request"


class Unauthorized(ServerError):
    code = "unauthorized"


class NotFound(ServerError):
    code = "not_found"


class TooLarge(ServerError):
    code = "too_large"


class Refused(ServerError):
    code = "refused"


class DeadlineUnreachable(Refused):
    code = "deadline_unreachable"


class ModelFailed(ServerError):
    code = "model_failed"


class Unavailable(ServerError):
    code = "unavailable"


class DeadlineExceeded(ServerError):
    code = "deadline_exceeded"


class NotConnected(StarlingError):
    code = "not_connected"


class ConnectionLost(StarlingError):
    code = "connection_lost"


class TimedOut(StarlingError):
    code = "timed_out"


class Interrupted(StarlingError):
    code = "interrupted"


class BadAnswer(StarlingError):
    code = "bad_answer"


class VersionChanged(StarlingError):
    code = "version_changed"


_BY_STATUS: dict[int, type[ServerError]] = {
    400: BadRequest,
    401: Unauthorized,
    404: NotFound,
    413: TooLarge,
    429: Refused,
    500: ModelFailed,
    503: Unavailable,
    504: DeadlineExceeded,
}


def server_error(status: int, message: str, code: str | None = None) -> ServerError:
    """The error that an answer of this status means. `code`: its header X-Error-Code."""
    kind = _BY_STATUS.get(status, ServerError)
    if kind is Refused and code == DeadlineUnreachable.code:
        kind = DeadlineUnreachable
    return kind(message, status)
