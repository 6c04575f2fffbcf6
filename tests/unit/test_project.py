"""The project's own files keep their promises."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from redrive.logs import FIELDS
from redrive.tracing import FACTS

ROOT = Path(__file__).parents[2]
PACKAGES = ["redrive", "workflows", "activities", "starter"]
REQUIREMENTS = [f"requirements{kind}.txt" for kind in ("", "-dev", "-image", "-setup")]
# Put together here, so that this file does not hold what it looks for.
MACHINE_PATHS = ["/" + "root/", "/" + "work/main", "/" + "work/shared", "/" + "tmp/tools"]


def tracked_files() -> list[Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_every_requirement_is_pinned_with_hashes(name: str) -> None:
    """A requirement has one version and at least one hash: what was tried is what gets installed."""
    logical_lines = (ROOT / name).read_text().replace("\\\n", " ").splitlines()
    requirements = [line for line in logical_lines if line.strip() and not line.lstrip().startswith("#")]
    assert requirements
    for line in requirements:
        assert re.match(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_requirement_files_name_no_registry(name: str) -> None:
    """Where packages come from is the machine's business, not the repository's."""
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert "index-url" not in text.replace("--no-emit-index-url", "")
    assert "find-links" not in text


def test_the_installer_is_pinned_like_everything_else() -> None:
    """Set-up fetches uv by its hash, before anything else is installed."""
    assert re.search(r"^uv==\S+", (ROOT / "requirements-setup.txt").read_text(), re.MULTILINE)
    assert "--require-hashes" in (ROOT / "run.py").read_text().split("def find_uv()")[1].split("def ")[0]


def test_ci_runs_the_tests_last() -> None:
    """CI checks first, then becomes the tests, so that their summary is its last line and their exit code its own."""
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = script.read_text().split("\n")
    commands = [line for line in lines if "run.py" in line]
    # What is made ready beside the checks says nothing.
    beside = "python3 run.py test --collect-only > /dev/null &"
    assert commands == [beside, "python3 run.py check", "exec python3 run.py test"]
    assert lines[-2] == commands[-1]
    assert "set -euo pipefail" in lines


def test_no_file_names_a_path_of_one_machine() -> None:
    """What is tracked works wherever it is cloned."""
    for path in tracked_files():
        text = path.read_bytes().decode(errors="replace")
        assert not [needle for needle in MACHINE_PATHS if needle in text], path


def test_make_help_lists_every_target() -> None:
    """Every target that one may call has a line of help, and none is listed that is not there."""
    makefile = (ROOT / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[0].split()
    described = re.findall(r"^([a-z-]+):.*## .+$", makefile, re.MULTILINE)
    assert sorted(described) == sorted(phony)
    assert re.search(r"^\.DEFAULT_GOAL := help$", makefile, re.MULTILINE)


def test_every_log_event_is_documented() -> None:
    """An event that the code can log has a row in the table, and every row is an event of the code."""
    sources = [
        *(path for name in PACKAGES for path in (ROOT / name).rglob("*.py")),
        ROOT / "worker.py",
    ]
    # A program's `failed` is the event that tells why it cannot go on; libraries' lines about outages become events.
    call = re.compile(
        r"(?:log\.(?:debug|info|warning|error|exception)\(\s*|failed=|\"(?:temporalio\.activity|asyncpg|asyncio)\": )"
        r"\"([a-z_]+\.[a-z_]+)\""
    )
    logged = {event for path in sources for event in call.findall(path.read_text())}
    rows = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \|", (ROOT / "docs/events.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(logged)


def test_every_log_field_is_documented() -> None:
    """The page names every field that a log line may have."""
    page = (ROOT / "docs/events.md").read_text()
    assert [name for name in FIELDS if f"`{name}`" not in page] == []


def test_every_span_is_documented() -> None:
    """A span that the code opens has a row in the table, and every row is a span of the code."""
    sources = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    opened = {name for path in sources for name in re.findall(r"\bspan\(\s*\"([a-z_.]+)\"", path.read_text())}
    rows = re.findall(r"^\| \w+ \| `([a-z_.]+)` \|", (ROOT / "docs/events.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(opened)


def test_every_attribute_of_spans_is_documented() -> None:
    """The part of the page that is about traces names every attribute that a span may have."""
    words = set(re.findall(r"\w+", (ROOT / "docs/events.md").read_text().partition("## Traces")[2]))
    assert sorted(FACTS - words) == []


def test_every_metric_is_documented() -> None:
    """A metric that the code creates has a row in the table, and every row is a metric of the code."""
    made = re.findall(r"create_\w+\(\s*\"(\w+)\"", (ROOT / "redrive/metrics.py").read_text())
    rows = re.findall(r"^\| `(workflow_\w+)` \|", (ROOT / "docs/events.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(made)


def test_every_metric_of_the_retry_scheduler_is_documented() -> None:
    """The same for the bridge's metrics, whose names are the specification's."""
    made = re.findall(
        r"(?:Counter|Gauge|Histogram)\(\s*\"(\w+)\"", (ROOT / "redrive/bridges/rabbitmq/metrics.py").read_text()
    )
    rows = re.findall(r"^\| `(retr(?:y|ies)_\w+)` \|", (ROOT / "docs/events.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(made)


def test_every_file_that_the_requirements_name_exists() -> None:
    """The pages of requirements and crash points prove each by a test, and by files, that are there."""
    page = "".join((ROOT / "docs" / name).read_text() for name in ("requirements.md", "what_happens_if.md"))
    places = "|".join([*PACKAGES, "tests", "examples", "docs", "deploy"])
    named = set(re.findall(rf"`((?:{places})/[\w./-]+)`", page))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


# What the product's texts say with another word, and that word.
OTHER_WORDS = {
    r"\b[Tt]ries<|\d tries|'tries'|failed tries": "attempts",
    r"\bheals?\b": "recover",
    r"\bmend(s|ed)?\b": "fix",
    r"\banew\b": "again",
    r"at the most\b": "at most",
    r"\b(became|came) of\b": "outcome",
    r"\bheld back\b": "suppressed",
    r"\bis away\b": "is unavailable",
    r"pairs? of eyes": "second approver",
    r"lets? go of": "close",
}


def test_texts_keep_to_one_vocabulary() -> None:
    """Pages, the console and the command line use one word for one thing."""
    texts = [
        ROOT / "README.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "redrive/console/web/templates").glob("*.html"),
        *(ROOT / "starter").rglob("*.py"),
    ]
    found = [
        f"{path.name}: {match[0]!r}; say {word!r}"
        for path in texts
        for pattern, word in OTHER_WORDS.items()
        for match in re.finditer(pattern, path.read_text())
    ]
    assert found == []


def test_links_between_the_pages_lead_somewhere() -> None:
    """A relative link in a page points to a file that exists, and to a heading that it has."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", page.read_text()):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(there), f"{page.name}: {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """Return what can be linked to in a page: its headings, as they are written in addresses."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
