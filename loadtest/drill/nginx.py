"""nginx in front of servers, configured as ingress-nginx would be by the ingress in deploy/; and what its log tells."""

from __future__ import annotations

import os
import pwd
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from loadtest.common.paths import LOOPBACK, ROOT
from loadtest.common.servers import MeasurementError, Server, free_port

INGRESS = ROOT / "deploy" / "kubernetes" / "base" / "ingress.yaml"
_PREFIX = "nginx.ingress.kubernetes.io/"
#: The annotations that the drill knows, as nginx's directives. A time without a unit is in seconds for both.
_DIRECTIVES = {
    "proxy-body-size": "client_max_body_size",
    "proxy-connect-timeout": "proxy_connect_timeout",
    "proxy-read-timeout": "proxy_read_timeout",
    "proxy-next-upstream": "proxy_next_upstream",
    "proxy-next-upstream-tries": "proxy_next_upstream_tries",
}
#: What ingress-nginx has by itself: its keep-alive settings towards clients and pods, and no passive health checks.
#: `max_fails=0`: it uses the cluster's endpoints alone.
_CONFIGURATION = """\
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log stderr error;
{user}
events {{ worker_connections 4096; }}
http {{
    log_format attempts '$status|$upstream_status';
    access_log {folder}/access.log attempts;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    keepalive_timeout 75s;
    keepalive_requests 1000;
    upstream starling {{
{servers}
        keepalive 320;
        keepalive_timeout 60s;
        keepalive_requests 10000;
    }}
    server {{
        listen {address}:{port};
        location / {{
            proxy_pass http://starling;
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header Connection "";
{directives}
        }}
    }}
}}
"""


def directives(path: Path = INGRESS) -> dict[str, str]:
    """nginx's directives of the ingress's annotations. Raises MeasurementError for an annotation not known here."""
    annotations = yaml.safe_load(path.read_text(encoding="utf-8"))["metadata"]["annotations"]
    given = {name.removeprefix(_PREFIX): value for name, value in annotations.items()}
    if unknown := sorted(set(given) - set(_DIRECTIVES)):
        raise MeasurementError(f"{path.name}: {', '.join(unknown)}: no directive of nginx is known for it here")
    return {_DIRECTIVES[name]: value for name, value in given.items()}


def configuration(folder: Path, port: int, servers: Sequence[int], told: Mapping[str, str]) -> str:
    """The configuration file: listen on `port`, in front of these ports, with these directives."""
    return _CONFIGURATION.format(
        folder=folder, address=LOOPBACK, port=port,
        user=f"user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else "",  # else it may not write to the folder
        servers="\n".join(f"        server {LOOPBACK}:{one} max_fails=0;" for one in servers),
        directives="\n".join(f"            {name} {value};" for name, value in told.items()),
    )  # fmt: skip


def installed() -> str:
    """The path of nginx. Raises MeasurementError, which says how to get it."""
    found = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    if found is None:
        raise MeasurementError("nginx is not installed: `apt-get install nginx-light` on Debian and Ubuntu")
    return found


def start(folder: Path, servers: Sequence[int], told: Mapping[str, str]) -> Server:
    """nginx on a free port, in front of these ports. Its files lie in `folder`."""
    program, port = installed(), free_port()
    path = folder / "nginx.conf"
    path.write_text(configuration(folder, port, servers, told), encoding="utf-8")
    return Server([program, "-p", str(folder), "-e", "stderr", "-c", str(path)], port)


def attempts(log: str) -> Counter[str]:
    """Requests by the status of each attempt, as "200" or "502, 200": the last is what the client got.

    502 is an attempt whose connection was refused or broken.
    """
    found: Counter[str] = Counter()
    for line in log.splitlines():
        status, _, tried = line.partition("|")
        found[tried if "," in tried else status] += 1
    return found
