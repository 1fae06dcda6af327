"""`[tracing]`: where spans go, and what a collector that is away or hangs costs."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from qmq.config import NodeSettings
from qmq.config.load import load_node
from qmq.errors import ConfigError
from qmq.node import tracing as module
from qmq.node.tracing import tracing


def test_without_the_extra_the_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    file = tmp_path / "node.toml"
    file.write_text("[tracing]\nenabled = true\n")

    with pytest.raises(ConfigError) as refused:
        load_node(file)

    (line,) = refused.value.diagnostics
    assert line.startswith(f"{file}:2: tracing.enabled = true: needs opentelemetry.exporter.otlp")
    assert line.endswith("pip install 'qmq[opentelemetry]'")


def test_by_default_nothing_of_the_extra_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    file = tmp_path / "node.toml"
    file.write_text("[tracing]\nenabled = false\n")

    with tracing(load_node(file).tracing) as tracer:
        assert tracer is None


@contextmanager
def collector(answers: threading.Event) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Its address, and what it gets; it answers once the event is set."""
    got: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # noqa: N802
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            answers.wait()
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", got
        finally:
            answers.set()
            server.shutdown()
            thread.join()


def enabled() -> Any:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    return NodeSettings(tracing={"enabled": True}).tracing  # type: ignore[arg-type]  # as a file has it


def test_spans_go_where_the_variables_of_opentelemetry_say(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, answers = enabled(), threading.Event()
    answers.set()
    with collector(answers) as (url, got):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=trial")

        with tracing(settings) as tracer:
            assert tracer is not None
            tracer.start_span("store /queue/jobs").end()

    ((path, body),) = got
    assert path == "/v1/traces"
    for text in (b"store /queue/jobs", b"service.name", b"qmq", b"deployment.environment.name", b"trial"):
        assert text in body


def test_a_node_stops_although_its_collector_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = enabled()
    monkeypatch.setattr(module, "FAREWELL_SECONDS", 0.01)
    with collector(threading.Event()) as (url, _):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)

        with tracing(settings) as tracer:
            assert tracer is not None
            tracer.start_span("store /queue/jobs").end()
        # The collector answers only after this block.
        assert "qmq-last-spans" in [thread.name for thread in threading.enumerate()]


def test_a_client_cannot_fill_the_log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    settings = enabled()
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "no state"}
    with tracing(settings):
        assert TraceContextTextMapPropagator().extract(headers)

    assert caplog.records == []


def test_a_variable_that_the_sdk_refuses_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = enabled()
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")

    with (
        pytest.raises(ConfigError, match="the environment variables OTEL_…: max_queue_size must be"),
        tracing(settings),
    ):
        pass
