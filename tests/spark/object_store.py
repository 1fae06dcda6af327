"""An object store as a process of its own, with the part of S3's interface that tables need, and faults on demand.

`python -m tests.spark.object_store` prints its port. A PUT of JSON to `/-faults` sets `Faults`. deltalake holds the
interpreter while it waits for an answer, so a thread of the same process could not answer. With `moto`, the store is
moto's, which knows no faults: it shows that this one is not easier to use than S3.
"""

import itertools
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

FOREIGN = b'{"commitInfo":{"operation":"SOMETHING"}}'
SECRET = "secret-of-the-store"
ROOT = Path(__file__).parents[2]


@dataclass
class Faults:
    """How many of the next requests go wrong."""

    errors: int = 0
    """Answered with 500, and nothing else is done."""
    cut_commits: int = 0
    """PUTs into the log of a table that are done, and whose connection ends without an answer."""
    lost_commits: int = 0
    """PUTs into the log of a table that are not done, and whose connection ends without an answer."""
    beaten: int = 0
    """PUTs into the log of a table before which `FOREIGN` is put at the same place, as by another client."""
    denied: int = 0
    """Answered with 403: wrong keys, which no further try mends."""
    cut_reads: int = 0
    """GETs of files of rows whose connection ends in the midst of the answer."""
    slow_seconds: float = 0.0
    """Before each answer."""


class Objects(dict[str, bytes]):
    """By key; and when each was put. A table removes files of its log that seem old."""

    def __init__(self) -> None:
        self.put_at: dict[str, str] = {}

    def __setitem__(self, key: str, data: bytes) -> None:
        super().__setitem__(key, data)
        self.put_at[key] = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.000Z}"


class Store:
    """What the handlers of all connections share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects = Objects()
        self.parts: dict[str, dict[int, bytes]] = {}
        self.numbers = itertools.count()
        self.faults = Faults()

    def takes(self, fault: str) -> bool:
        """Whether this fault is due, once."""
        with self.lock:
            left = getattr(self.faults, fault)
            setattr(self.faults, fault, max(0, left - 1))
            return bool(left)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def log_message(self, *_: object) -> None:
        """Nothing."""

    def do_PUT(self) -> None:  # noqa: N802  # the name that http.server calls, as those below
        store, key, query = self.store, self._key(), self._query()
        body = self._body()
        if key == "-faults":
            store.faults = Faults(**json.loads(body))
            return self._answer(200)
        if self._goes_wrong():
            return None
        is_commit = "/_delta_log/" in key and key.endswith(".json")
        if is_commit and store.takes("lost_commits"):
            return self._cut()
        if is_commit and store.takes("beaten"):
            store.objects[key] = FOREIGN
        with store.lock:
            if "partNumber" in query:
                store.parts[query["uploadId"]][int(query["partNumber"])] = body
            elif self.headers.get("if-none-match") == "*" and key in store.objects:
                return self._answer(412, _error("PreconditionFailed"))
            else:
                store.objects[key] = body
        if is_commit and store.takes("cut_commits"):
            return self._cut()
        return self._answer(200, etag=_etag(body))

    def do_POST(self) -> None:  # noqa: N802
        store, key, query = self.store, self._key(), self._query()
        body = self._body()
        if self._goes_wrong():
            return None
        with store.lock:
            if "uploads" in query:
                upload = str(next(store.numbers))
                store.parts[upload] = {}
                said = f"<UploadId>{upload}</UploadId>"
                return self._answer(200, f"<InitiateMultipartUploadResult>{said}</InitiateMultipartUploadResult>")
            if "delete" in query:
                bucket = key.partition("/")[0]
                names = [one.text or "" for one in ElementTree.fromstring(body).iter() if one.tag.endswith("Key")]
                for name in names:
                    store.objects.pop(f"{bucket}/{name}", None)
                found = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
                return self._answer(200, f"<DeleteResult>{found}</DeleteResult>")
            parts = store.parts.pop(query["uploadId"])
            store.objects[key] = data = b"".join(parts[number] for number in sorted(parts))
        etag = _etag(data)
        return self._answer(
            200, f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>"
        )

    def do_DELETE(self) -> None:  # noqa: N802
        if not self._goes_wrong():
            with self.store.lock:
                self.store.objects.pop(self._key(), None)
            self._answer(204)

    def do_HEAD(self) -> None:  # noqa: N802
        self.do_GET()

    def do_GET(self) -> None:  # noqa: N802
        if self._goes_wrong():
            return None
        store, query, key = self.store, self._query(), self._key()
        with store.lock:
            if "list-type" in query:
                return self._answer(200, _listed(store.objects, key.strip("/"), query))
            data = store.objects.get(key)
        if data is None:
            return self._answer(404, _error("NoSuchKey"))
        wanted = self.headers.get("range")
        is_cut = key.endswith(".parquet") and self.command == "GET" and store.takes("cut_reads")
        if wanted is None:
            return self._answer(200, data, is_cut=is_cut, etag=_etag(data))
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        begin = int(first) if first else max(0, len(data) - int(last))
        end = min(int(last) + 1, len(data)) if first and last else len(data)
        more = {"content-range": f"bytes {begin}-{end - 1}/{len(data)}"}
        return self._answer(206, data[begin:end], is_cut=is_cut, etag=_etag(data), **more)

    def _goes_wrong(self) -> bool:
        time.sleep(self.store.faults.slow_seconds)
        for fault, code, name in (("errors", 500, "InternalError"), ("denied", 403, "AccessDenied")):
            if self.store.takes(fault):
                self._answer(code, _error(name))
                return True
        return False

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.close()

    def _answer(self, code: int, body: str | bytes = b"", *, is_cut: bool = False, **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("last-modified", formatdate(usegmt=True))
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if is_cut:
            self.wfile.write(data[: len(data) // 2])
            self._cut()
        elif self.command != "HEAD" and code != 204:
            self.wfile.write(data)

    def _body(self) -> bytes:
        """Arrow sends chunks, in which there are chunks of S3."""
        if self.headers.get("transfer-encoding") == "chunked":
            data = b"".join(_chunks(self.rfile))
        else:
            data = self.rfile.read(int(self.headers.get("content-length", 0)))
        return b"".join(_chunks(BytesIO(data))) if "aws-chunked" in self.headers.get("content-encoding", "") else data

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/")

    def _query(self) -> dict[str, str]:
        found = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in found.items()}


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    """Up to the last one, and what follows it."""
    while size := int(file.readline().partition(b";")[0], 16):
        yield file.read(size)
        file.readline()
    while file.readline().strip():
        pass


def _etag(data: bytes) -> str:
    return f'"{md5(data).hexdigest()}"'


def _error(code: str) -> str:
    return f"<Error><Code>{code}</Code><Message>{code}</Message></Error>"


def _listed(objects: Objects, bucket: str, query: dict[str, str]) -> str:
    prefix, delimiter, after = (query.get(name, "") for name in ("prefix", "delimiter", "start-after"))
    found, folders = [], set()
    for key in sorted(objects):
        name = key.removeprefix(f"{bucket}/")
        if name == key or not name.startswith(prefix) or name <= after:
            continue
        rest = name[len(prefix) :]
        if delimiter and delimiter in rest:
            folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            continue
        about = f"<Key>{escape(name)}</Key><Size>{len(objects[key])}</Size><ETag>{escape(_etag(objects[key]))}</ETag>"
        found.append(f"<Contents>{about}<LastModified>{objects.put_at[key]}</LastModified></Contents>")
    common = "".join(f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders))
    body = "".join(found) + common
    return f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{body}</ListBucketResult>"


class StoreProcess:
    """One that runs; used in a `with`."""

    def __init__(self, *kind: str) -> None:
        """`kind`: `moto`, or nothing."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.object_store", *kind], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        self.address = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def set(self, faults: Faults) -> None:
        self.put("-faults", json.dumps(asdict(faults)).encode())

    def put(self, key: str, data: bytes) -> None:
        of = {"Content-Type": "application/octet-stream"}  # or moto takes it for a form
        urllib.request.urlopen(urllib.request.Request(f"{self.address}/{key}", data, of, method="PUT")).close()


def serve() -> None:
    handler: Any = type("Shared", (Handler,), {"store": Store()})
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # clients are killed in the midst of an answer
    print(server.server_address[1], flush=True)
    server.serve_forever()


def serve_moto() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    _, port = server.get_host_and_port()
    urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")).close()
    print(port, flush=True)
    signal.pause()


if __name__ == "__main__":
    {"": serve, "moto": serve_moto}["".join(sys.argv[1:])]()
