"""Traces that are off cost nothing, and a program that cannot trace says so."""

import os
import subprocess
import sys
from pathlib import Path

from redrive.tracing import ENDPOINT

ROOT = Path(__file__).parents[3]
OFF = """
import os, sys, redrive.worker, redrive.processes.rabbitmq_bridge, redrive.starter.cli.main
from redrive.tracing import ENDPOINT, interceptors, mark_failed, note, span, start_tracing, trace_headers
for variables in ({}, {ENDPOINT: ""}):
    os.environ |= variables
    start_tracing("test")
    with span("run.start", "client", carrier={}, links=[{}], run_id="r"):
        note(step="s")
        mark_failed(category="timeout")
    assert interceptors() == []
    assert trace_headers() == {}
assert [name for name in sys.modules if name.startswith("opentelemetry")] == []
"""
NOT_INSTALLED = """
import sys
sys.modules["opentelemetry.exporter"] = None
sys.modules["opentelemetry.sdk"] = None
import redrive.tracing
assert not redrive.tracing.is_on()
assert redrive.tracing.interceptors() == []
import redrive.worker as worker
worker.main()
"""
FACTS = """
from opentelemetry import trace
from redrive.tracing import mark_failed, note, span, start_tracing, trace_headers, trace_id
start_tracing("test")
assert trace_id() is None
with span("run.start", "client", run_id="r", card="secret"):
    open_one = trace.get_current_span()
    assert trace_headers()["traceparent"].split("-")[1] == trace_id()
    note(step=None, payload="secret", attempt=2)
assert dict(open_one.attributes) == {"run_id": "r", "attempt": 2}
try:
    with span("service.call", "client"):
        failed = trace.get_current_span()
        raise ValueError("secret")
except ValueError:
    pass
assert (failed.status.is_ok, failed.status.description, failed.events) == (False, None, ())
assert dict(failed.attributes) == {"error_type": "ValueError"}
"""


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=inherited | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_is_off_is_not_imported() -> None:
    """Without a collector, or with an empty name for it, no part of OpenTelemetry is loaded by our programs."""
    done = run(OFF)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_without_the_extra_names_it() -> None:
    """A collector is named but the exporter is not there: a caller goes on without, a program says what to install."""
    done = run(NOT_INSTALLED, **{ENDPOINT: "http://127.0.0.1:1"})
    assert done.returncode == 1
    assert "pip install redrive[otel]" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_span_says_only_what_is_on_the_list() -> None:
    """Facts of other names are left out, and an error leaves its class alone."""
    done = run(FACTS, **{ENDPOINT: "http://127.0.0.1:1"})
    assert (done.returncode, done.stderr) == (0, "")
