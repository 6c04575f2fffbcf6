"""What the published catalogs of several builds say together about a start."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, model_validator

from redrive import InvalidInput, ModuleContext, Pipeline, Registry
from redrive.contracts import PublishedCatalog
from redrive.errors import UnknownPipeline
from redrive.published_catalogs import BuildCatalog, input_problem, merged, output_problem, refusal, steps_of


class Small(BaseModel):
    """What the older build takes."""

    n: int


class Text(BaseModel):
    """What the newer build takes."""

    n: str


class Coded(BaseModel):
    """What only code can check."""

    n: int

    @model_validator(mode="after")
    def _refuse(self) -> "Coded":
        raise ValueError("no")


def build(model: type[BaseModel], *pipelines: str, build_id: str = "build") -> BuildCatalog:
    """Return the catalog of a build, as it is read: pipelines of one step `s`, then one that needs `later`."""
    registry = Registry()

    class Later(BaseModel):
        s: Any
        later: int

    async def first(ctx: ModuleContext, given: Any) -> Any:
        return given

    async def second(ctx: ModuleContext, given: Later) -> Later:
        return given

    first.__annotations__ |= {"given": model, "return": model}
    second.__annotations__ |= {"given": Later, "return": Later}
    modules = registry.module("s")(first), registry.module("t")(second)
    for name in pipelines:
        Pipeline(name, *modules, registry=registry)
    document = registry.published(build_id).model_dump_json()
    read = BuildCatalog.read(document)
    assert read
    return read


def test_nothing_known_refuses_nothing() -> None:
    """No worker has published, or the database does not answer."""
    assert refusal([], "p", {}) is None
    assert steps_of([], "p", {}) is None
    assert merged([]) is None


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        ({"n": "x", "later": 1}, "payload does not fit 's': n: "),
        ({"n": 1}, "payload.later: missing; step 't' needs it"),
        ({"n": 1, "later": 1, "t": 1}, "payload.t: the name belongs to a step"),
        ({"n": "1", "later": "x"}, None),
    ],
    ids=str,
)
def test_a_build_refuses_as_its_code_does(payload: dict[str, Any], sentence: str | None) -> None:
    """The first step is checked whole; of later ones, whether their fields can come."""
    refused = refusal([build(Small, "p")], "p", payload)
    assert (refused is None) == (sentence is None)
    if sentence:
        assert str(refused).startswith(sentence)


def test_one_build_that_takes_it_is_enough() -> None:
    """A payload is refused by all or by none; the build that knows the pipeline gives the reason."""
    older, newer = build(Small, "p"), build(Text, "p", "q")
    assert refusal([newer, older], "p", {"n": "x", "later": 1}) is None
    assert refusal([newer, older], "p", {"n": 1, "later": 1}) is None
    assert isinstance(refusal([newer, older], "p", {"n": [], "later": 1}), InvalidInput)
    only_newer = refusal([older, newer], "q", {"n": 1, "later": 1})
    assert str(only_newer).startswith("payload does not fit 's'")
    unknown = refusal([older, newer], "r", {})
    assert isinstance(unknown, UnknownPipeline)
    assert str(unknown) == "pipeline 'r' is not known here; known: p, q"


def test_an_edit_is_held_against_the_builds_that_have_the_module() -> None:
    """A worker of other modules, on the same queue or a minute ago, does not make an edit fit."""
    other = BuildCatalog.read(Registry().published("other").model_dump_json())
    older, newer = build(Small, "p"), build(Text, "p")
    assert input_problem([other, older], "s", {"n": "x"}) == (
        "n: Input should be a valid integer, unable to parse string as an integer (got 'x')"
    )
    assert input_problem([other, newer, older], "s", {"n": "x"}) is None
    assert input_problem([older, None], "s", {"n": "x"}) is None
    assert input_problem([other], "s", {"n": "x"}) is None


def test_an_output_is_held_against_the_builds_that_have_the_module() -> None:
    """What one of them could have returned is not refused, nor what a catalog of an older release does not tell."""
    older, newer = build(Small, "p"), build(Text, "p")
    silent = BuildCatalog(PublishedCatalog(catalog=older.catalog, inputs={}))
    assert output_problem([older], "s", {"n": "5"}) is None
    assert output_problem([older], "s", {}) == "n: Field required"
    assert output_problem([newer, older], "s", {"n": "x"}) is None
    assert output_problem([silent, older], "s", {}) is None
    assert output_problem([older], "charge@0-1", {}) is None


def test_a_catalog_that_cannot_be_read_takes_everything() -> None:
    """Of another release, or with rules of another version of pydantic."""
    assert BuildCatalog.read("null") is None
    assert BuildCatalog.read('{"version": 2}') is None
    known = build(Small, "p")
    assert refusal([known, None], "p", {}) is None
    registry = Registry().published("b")
    strange = PublishedCatalog(
        catalog=known.catalog.model_copy(),
        inputs={
            name: {"reads": None, "required": [], "rules": {"type": "from-the-future"}, "is_complete": True}
            for name in ("s", "t")
        },
    )
    assert registry.inputs == {}
    assert refusal([BuildCatalog(strange)], "p", {}) is None


def test_steps_come_from_the_build_that_takes_the_payload() -> None:
    """If only code can tell whether it fits, no catalog answers."""
    older, newer = build(Small, "p"), build(Text, "p")
    steps = steps_of([newer, older], "p", {"n": 1, "later": 1})
    assert steps is not None
    assert [(step.name, step.reads) for step in steps] == [("s", ["n"]), ("t", ["later", "s"])]
    assert steps_of([build(Coded, "p")], "p", {"n": 1, "later": 1}) is None
    assert steps_of([None, older], "p", {"n": 1, "later": 1}) is None


def test_fast_steps_are_published() -> None:
    """A caller without the code knows which steps of which pipeline are fast."""
    registry = Registry()

    @registry.module("s", timeout=timedelta(seconds=1))
    async def step(ctx: ModuleContext, given: Small) -> Small:
        return given

    Pipeline("p", step, registry=registry)
    Pipeline("q", step, fast=True, registry=registry)
    read = BuildCatalog.read(registry.published("build").model_dump_json())
    found = {name: steps_of([read], name, {"n": 1}) or [] for name in ("p", "q")}
    assert {name: [step.fast for step in steps] for name, steps in found.items()} == {"p": [False], "q": [True]}


def test_together_they_know_every_pipeline_and_the_newest_modules() -> None:
    """What operators see while a release rolls out."""
    together = merged([build(Text, "p", build_id="newer"), None, build(Small, "p", "q", build_id="older")])
    assert together
    assert (together.build_id, [each.name for each in together.pipelines]) == ("newer", ["p", "q"])
    assert together.modules[0].input_schema["properties"]["n"]["type"] == "string"
