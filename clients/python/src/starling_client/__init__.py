"""A client of Starling, and of other servers of the Open Inference Protocol (V2) over HTTP.

from starling_client import Client

with Client("http://localhost:8000") as client:
    client.predict("echo", [[1, 2, 3, 4]])
"""

from starling_client.aio import AsyncClient
from starling_client.client import Client
from starling_client.errors import (
    BadAnswer,
    BadRequest,
    ConnectionLost,
    DeadlineExceeded,
    DeadlineUnreachable,
    Interrupted,
    ModelFailed,
    NotConnected,
    NotFound,
    Refused,
    ServerError,
    StarlingError,
    TimedOut,
    TooLarge,
    Unauthorized,
    Unavailable,
    VersionChanged,
)
from starling_client.types import Metadata, Options, Result, Retry, ServiceClass, Tensor

__all__ = [
    "AsyncClient",
    "BadAnswer",
    "BadRequest",
    "Client",
    "ConnectionLost",
    "DeadlineExceeded",
    "DeadlineUnreachable",
    "Interrupted",
    "Metadata",
    "ModelFailed",
    "NotConnected",
    "NotFound",
    "Options",
    "Refused",
    "Result",
    "Retry",
    "ServerError",
    "ServiceClass",
    "StarlingError",
    "Tensor",
    "TimedOut",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "VersionChanged",
]
