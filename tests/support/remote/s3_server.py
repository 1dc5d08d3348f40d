"""An S3 server in a process of its own: moto's, with faults that a test switches on.

A fault is a JSON object that is sent by ``PUT /_faults``: ``{"status": 500, "rate": 1.0, "delay_s": 0, "cut": false, "flip":
false, "methods": ["GET"], "names": "/files/"}``. It holds for requests of objects, here of those with a word in their names,
until the next one.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

BUCKET = "kernels"
KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",  # moto takes any
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass
class S3Server:
    """A running server.

    Attributes:
        process: Its process.
        endpoint: Its address.
    """

    process: subprocess.Popen[str]
    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which clients find it."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.endpoint}

    def fault(self, **fault: Any) -> None:
        """Answer with a fault from now on; without one, as it should."""
        self._request("PUT", "/_faults", json.dumps(fault).encode())

    def requests(self) -> dict[str, int]:
        """Return the number of requests for objects by method, and of listings."""
        return json.loads(self._request("GET", "/_requests"))

    def faulted(self) -> int:
        """Return how many requests have met the fault that holds now."""
        return json.loads(self._request("GET", "/_faults"))

    def objects(self) -> dict[str, int]:
        """Return the sizes of all objects by name."""
        return json.loads(self._request("GET", "/_objects"))

    def kill(self) -> None:
        """End it as a machine that is switched off."""
        self.process.kill()
        self.process.wait()

    def _request(self, method: str, path: str, data: bytes | None = None) -> bytes:
        request = urllib.request.Request(f"{self.endpoint}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()


@contextmanager
def s3_server() -> Generator[S3Server]:
    """Run a server with an empty bucket in the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.remote.s3_server"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **KEYS},
    )
    try:
        assert process.stdout is not None
        yield S3Server(process, process.stdout.readline().strip())
    finally:
        with suppress(OSError):
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class Faults:
    """A WSGI application that answers for another one, with faults."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._fault: dict[str, Any] = {}
        self._requests: dict[str, int] = {}
        self._random, self._faulted = random.Random(0), 0
        self._guard = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        if path.startswith("/_"):
            return self._control(path, environ, start)
        parts = path.strip("/").split("/")
        with self._guard:
            kind = method if len(parts) > 1 else f"{method} bucket"
            self._requests[kind] = self._requests.get(kind, 0) + 1
            fault = self._fault
            hit = (
                bool(fault)
                and len(parts) > 1
                and method in fault.get("methods", ("GET", "PUT"))
                and fault.get("names", "") in path
                and self._random.random() < fault.get("rate", 1.0)
            )
            self._faulted += hit
        if not hit:
            return self._application(environ, start)
        time.sleep(fault.get("delay_s", 0.0))
        if fault.get("status"):
            body = b"<Error><Code>InternalError</Code><Message>try again</Message></Error>"
            start(f"{fault['status']} Error", [("Content-Length", str(len(body)))])
            return [body]
        if not (fault.get("cut") or fault.get("flip")):
            return self._application(environ, start)
        return self._damaged(environ, start, fault)

    def _damaged(self, environ: dict[str, Any], start: Any, fault: dict[str, Any]) -> list[bytes]:
        started: list[Any] = []

        def remember(status: str, headers: Any, _error: Any = None) -> None:
            started.extend((status, headers))

        body = b"".join(self._application(environ, remember))
        status, headers = started
        # Clients compare checksums that a server sends; a fault behind them is what is tested.
        headers = [(n, v) for n, v in headers if not n.lower().startswith("x-amz-checksum")]
        if status.startswith("20") and body and environ["REQUEST_METHOD"] == "GET":
            if fault.get("cut"):
                body = body[: len(body) // 2]
            if fault.get("flip"):
                at = len(body) // 2
                body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
            if fault.get("cut") == "whole":  # a proxy that states the length of what it has
                headers = [(n, v) for n, v in headers if n.lower() not in _LENGTHS]
                headers.append(("Content-Length", str(len(body))))
        start(status, headers)
        return [body]

    def _control(self, path: str, environ: dict[str, Any], start: Any) -> list[bytes]:
        answer = b"{}"
        if path == "/_faults" and environ["REQUEST_METHOD"] == "GET":
            with self._guard:
                answer = json.dumps(self._faulted).encode()
        elif path == "/_faults":
            size = int(environ.get("CONTENT_LENGTH") or 0)
            with self._guard:
                self._fault = json.loads(environ["wsgi.input"].read(size) or b"{}")
                self._random, self._faulted = random.Random(0), 0
        elif path == "/_requests":
            with self._guard:
                answer = json.dumps(self._requests).encode()
        else:
            answer = json.dumps(_objects()).encode()
        start("200 OK", [("Content-Length", str(len(answer)))])
        return [answer]


_LENGTHS = ("content-length", "content-range")


def _objects() -> dict[str, int]:
    from moto.s3.models import s3_backends

    backend: Any = s3_backends["123456789012"]["aws"]
    return {name: key.size for name, key in backend.buckets[BUCKET].keys.items()}


def main() -> None:
    """Serve on a free port, and print the address."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    moto: Any = importlib.import_module("moto.server")

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002
            pass

    application = Faults(moto.DomainDispatcherApplication(moto.create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    urllib.request.urlopen(
        urllib.request.Request(f"{address}/{BUCKET}", data=b"", method="PUT"), timeout=60
    ).read()
    print(address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
