"""Modules, pipelines and the registry: what is refused at import, and what a payload must hold."""

import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, RootModel, SecretStr

from redrive import STEP, Hidden, InvalidInput, ModuleContext, Pipeline, Registry
from redrive.contracts import Effect
from redrive.errors import RegistrationError, UnknownPipeline
from redrive.modules import MemoryCounters, Module, load_modules


class In(BaseModel):
    """An input."""

    a: int
    b: str = ""


class Out(BaseModel):
    """An output."""

    c: int = 0


async def good(ctx: ModuleContext, given: In) -> Out:
    """Do the right thing.

    And more of it.
    """
    return Out(c=given.a)


def plain(ctx: ModuleContext, given: In) -> Out:
    """Not async."""
    return Out(c=given.a)


def generator(ctx: ModuleContext, given: In) -> Iterator[Out]:
    """Returns more than once."""
    yield Out()


async def async_generator(ctx: ModuleContext, given: In) -> AsyncIterator[Out]:
    """Returns more than once."""
    yield Out()


async def no_parameters() -> Out:
    """Too few."""
    return Out()


async def one_parameter(given: In) -> Out:
    """Too few."""
    return Out()


async def three_parameters(ctx: ModuleContext, given: In, more: int) -> Out:
    """Too many."""
    return Out()


async def keyword_only(ctx: ModuleContext, *, given: In) -> Out:
    """Not positional."""
    return Out()


async def any_arguments(*given: In) -> Out:
    """Any number."""
    return Out()


async def no_input_type(ctx: ModuleContext, given) -> Out:  # type: ignore[no-untyped-def]  # what is tested
    """No annotation."""
    return Out()


async def no_return_type(ctx: ModuleContext, given: In):  # type: ignore[no-untyped-def]  # what is tested
    """No annotation."""
    return Out()


async def plain_input(ctx: ModuleContext, given: dict[str, Any]) -> Out:
    """Not a model."""
    return Out()


async def plain_output(ctx: ModuleContext, given: In) -> int:
    """Not a model."""
    return 1


async def optional_output(ctx: ModuleContext, given: In) -> Out | None:
    """Not a model."""
    return None


async def undefined_type(ctx: ModuleContext, given: "Nowhere") -> Out:  # type: ignore[name-defined]  # noqa: F821
    """A type that does not exist."""
    return Out()


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (generator, "a generator, not a function that returns once"),
        (async_generator, "a generator, not a function that returns once"),
        (no_parameters, "takes 0 parameters, not 2"),
        (one_parameter, "takes 1 parameters, not 2"),
        (three_parameters, "takes 3 parameters, not 2"),
        (keyword_only, "takes 2 parameters"),
        (any_arguments, "takes 1 parameters, not 2"),
        (no_input_type, "its input is None, not a pydantic model"),
        (no_return_type, "its return type is None, not a pydantic model"),
        (plain_input, "its input is dict[str, typing.Any], not a pydantic model"),
        (plain_output, "its return type is <class 'int'>, not a pydantic model"),
        (optional_output, "its return type is "),
        (undefined_type, "name 'Nowhere' is not defined"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_wrong_signature_is_refused_by_name(function: Any, problem: str) -> None:
    """The refusal names module and function, what is wrong with it, and how to write it."""
    registry = Registry()
    with pytest.raises(RegistrationError) as refused:
        registry.module("m")(function)
    assert str(refused.value).startswith(f"module 'm' ({__name__}.{function.__name__}): {problem}")
    assert registry.modules == {}


def test_what_is_no_function_is_refused_too() -> None:
    """A partial, which has no name of its own, gets a sentence as well."""
    partial: Any = functools.partial(plain)
    with pytest.raises(RegistrationError, match=r"module 'm' .*not a function"):
        Registry().module("m")(partial)


@pytest.mark.parametrize("name", ["", "A", "a_b", "a b", "ä", "a" * 65, "a\n", "a.b", "../a"])
def test_a_bad_name_is_refused(name: str) -> None:
    """A name is 1 to 64 of a-z, 0-9 and -, for modules and pipelines alike."""
    registry = Registry()
    with pytest.raises(RegistrationError, match=r"tests\.unit\.redrive\.test_modules\.good.*a name is 1 to 64"):
        registry.module(name)(good)
    step = registry.module("ok")(good)
    with pytest.raises(RegistrationError, match="a name is 1 to 64"):
        Pipeline(name, step, registry=registry)


def test_an_effect_is_one_of_three() -> None:
    """A word that is none of them is refused when the module is declared; without a word it is keyed."""
    registry = Registry()
    with pytest.raises(RegistrationError, match="effect 'some' is not one of none, keyed, unsafe"):
        registry.module("a", effect="some")(good)  # type: ignore[arg-type]  # what is tested
    assert registry.module("b")(good).effect is Effect.KEYED
    assert registry.module("c", effect="unsafe")(good).view().effect is Effect.UNSAFE


BRIEF = STEP.model_copy(update={"timeout": timedelta(seconds=5)})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"effect": "unsafe"}, "its effect is unsafe, and a fast step runs again when its worker dies"),
        ({"timeout": timedelta(seconds=5.001)}, "its timeout is 5.001 s, and a fast step has at most 5 s"),
        ({"policy": STEP}, r"its timeout is 60 s, .* add timeout=timedelta\(seconds=5\)"),
    ],
)
def test_a_module_that_cannot_be_fast_is_refused_with_the_reason(arguments: dict[str, Any], reason: str) -> None:
    """At import, by name and place; nothing is registered."""
    registry = Registry()
    with pytest.raises(RegistrationError, match=rf"module 'm' \(.*\.good\) cannot be fast: {reason}"):
        registry.module("m", **({"policy": BRIEF} | arguments), fast=True)(good)
    assert registry.modules == {}


def test_a_fast_pipeline_makes_those_steps_fast_that_can_be() -> None:
    """Its others stay ordinary; a module that is fast by itself is so in every pipeline; the views tell."""
    registry = Registry()
    brief = registry.module("brief", policy=BRIEF)(good)
    slow = registry.module("slow")(good)
    unsafe = registry.module("unsafe", policy=BRIEF, effect="unsafe")(good)
    own = registry.module("own", policy=BRIEF, fast=True)(good)
    Pipeline("fast", brief, slow, unsafe, own, fast=True, registry=registry)
    Pipeline("plain", brief, own, registry=registry)

    assert [step.fast for step in registry.resolve("fast", {"a": 1})] == [True, False, False, True]
    assert [step.fast for step in registry.resolve("plain", {"a": 1})] == [False, True]
    assert [pipeline.view().fast for pipeline in registry.pipelines.values()] == [["brief", "own"], ["own"]]
    assert [module.view().fast for module in (brief, slow, unsafe, own)] == [False, False, False, True]


def test_a_fast_pipeline_without_a_step_that_can_be_is_refused() -> None:
    """With the reason of each step."""
    registry = Registry()
    slow = registry.module("slow")(good)
    with pytest.raises(
        RegistrationError, match="pipeline 'p': none of its steps can be fast: slow: its timeout is 60 s"
    ):
        Pipeline("p", slow, fast=True, registry=registry)
    assert registry.pipelines == {}


def test_what_is_not_fast_is_written_as_before() -> None:
    """A release that does not know fast steps can read every run input and catalog that has none."""
    registry = Registry()
    step = registry.module("m", policy=BRIEF)(good)
    Pipeline("p", step, registry=registry)
    assert "fast" not in step.snapshot().model_dump_json()
    assert "fast" not in registry.published("build").model_dump_json()
    assert '"fast":true' in step.snapshot(fast=True).model_dump_json()


def test_a_name_is_given_once() -> None:
    """The second module of a name is refused with both functions named; so is the second pipeline."""
    registry = Registry()
    step = registry.module("m")(good)
    with pytest.raises(RegistrationError, match=r"module 'm' .*\.good\): the name is taken by .*\.good"):
        registry.module("m")(good)
    Pipeline("p", step, registry=registry)
    with pytest.raises(RegistrationError, match="pipeline 'p' is declared twice"):
        Pipeline("p", step, registry=registry)


def test_a_pipeline_needs_modules_each_once() -> None:
    """An empty pipeline, a plain function and a module that stands in it twice are refused by name."""
    registry = Registry()
    step = registry.module("m")(good)
    undecorated: Any = good
    with pytest.raises(RegistrationError, match="pipeline 'p' has 0 steps"):
        Pipeline("p", registry=registry)
    with pytest.raises(RegistrationError, match=r"good.* is not a module; decorate it with @module"):
        Pipeline("p", undecorated, registry=registry)
    with pytest.raises(RegistrationError, match="module 'm' stands in it twice"):
        Pipeline("p", step, step, registry=registry)
    assert registry.pipelines == {}


async def test_a_module_is_still_a_function() -> None:
    """A test can call a module with a context of its own making."""
    step = Registry().module("m")(good)
    nobody: Any = None
    assert await step(nobody, In(a=3)) == Out(c=3)


async def test_a_plain_function_is_a_module() -> None:
    """It is called as an async one is."""
    step = Registry().module("m")(plain)
    nobody: Any = None
    assert not step.is_async
    assert await step(nobody, In(a=3)) == Out(c=3)


def test_a_module_describes_itself() -> None:
    """Its view has the first line of the docstring, and the schemas of input and output."""
    view = Registry().module("m")(good).view()
    assert view.summary == "Do the right thing."
    assert view.input_schema["required"] == ["a"]
    assert list(view.output_schema["properties"]) == ["c"]


class Aliased(BaseModel):
    """Fields under other names."""

    plain: int = 0
    renamed: int = Field(default=0, alias="other-name")
    validated: int = Field(default=0, validation_alias="read-as")
    one_of: int = Field(default=0, validation_alias=AliasChoices("first", AliasPath("second", "deep")))


class Open(BaseModel):
    """Takes all."""

    model_config = ConfigDict(extra="allow")

    a: int = 0


class HasDefault(BaseModel):
    """Needs nothing."""

    a: int = 5


class Root(RootModel[dict[str, int]]):
    """Is all."""


def module_with(model: type[BaseModel], name: str = "m", registry: Registry | None = None) -> Module[Any, Any]:
    """Make a module that reads the model."""

    async def step(ctx: ModuleContext, given: Any) -> Out:
        return Out()

    step.__annotations__["given"] = model
    return (registry or Registry()).module(name)(step)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (In, ["a", "b"]),
        (
            Aliased,
            ["first", "one_of", "other-name", "plain", "read-as", "renamed", "second", "validated"],
        ),
        (Open, None),
        (Root, None),
    ],
)
def test_a_module_reads_what_its_input_model_names(model: type[BaseModel], names: list[str] | None) -> None:
    """Fields, aliases and the first parts of alias paths are read; a model that takes all reads all."""
    assert module_with(model).reads == names


def pipeline_of(*models: type[BaseModel]) -> Callable[[dict[str, Any]], Any]:
    """Return the check of payloads for a pipeline of steps `m1`, `m2`, ... with these inputs."""
    registry = Registry()
    steps = [module_with(model, f"m{number}", registry) for number, model in enumerate(models, 1)]
    Pipeline("p", *steps, registry=registry)
    return lambda payload: registry.resolve("p", payload)


class NeedsFirst(BaseModel):
    """Needs the first step's output."""

    m1: Out


class NeedsItself(BaseModel):
    """Needs what only comes later."""

    m3: Out


@pytest.mark.parametrize(
    ("models", "payload", "sentence"),
    [
        ((In,), {}, "payload does not fit 'm1': a: Field required"),
        ((In,), {"a": "x"}, "payload does not fit 'm1': a: Input should be a valid integer.*got 'x'"),
        ((In,), {"a": 1, "m1": 2}, "payload.m1: the name belongs to a step"),
        ((Open, In), {}, "payload.a: missing; step 'm2' needs it$"),
        ((HasDefault, In), {}, "payload.a: missing; step 'm2' needs it. The default in 'm1' is for that step alone: "),
        ((Open, In, NeedsItself), {"a": 1}, "payload.m3: missing; step 'm3' needs it"),
    ],
)
def test_a_payload_with_which_a_step_could_never_start_is_refused(
    models: tuple[type[BaseModel], ...], payload: dict[str, Any], sentence: str
) -> None:
    """The first step is checked in full, later ones for missing fields, and names of steps are theirs."""
    with pytest.raises(InvalidInput, match=sentence):
        pipeline_of(*models)(payload)


@pytest.mark.parametrize(
    ("models", "payload"),
    [
        ((In,), {"a": 1, "unread": True}),
        ((In, NeedsFirst), {"a": 1}),
        ((Root,), {"x": 1}),
        ((In, Root), {"a": 1}),
        ((Open, Aliased), {}),
    ],
)
def test_a_payload_that_fits_gives_the_steps(models: tuple[type[BaseModel], ...], payload: dict[str, Any]) -> None:
    """Outputs of earlier steps, defaults and models of the whole document need nothing from the payload."""
    steps = pipeline_of(*models)(payload)
    assert [step.name for step in steps] == [f"m{number}" for number, _ in enumerate(models, 1)]


def test_a_secret_that_does_not_fit_is_not_shown() -> None:
    """The refusal of a payload does not repeat what stands under a secret's name."""

    class Login(BaseModel):
        password: int

    with pytest.raises(InvalidInput) as refused:
        pipeline_of(Login)({"password": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_an_unknown_pipeline_is_refused_with_those_that_are_known() -> None:
    """The refusal lists the names there are, or says that there are none."""
    with pytest.raises(UnknownPipeline, match="pipeline 'x' is not known here; known: none"):
        Registry().pipeline("x")


async def test_hidden_fields_are_found_in_all_models() -> None:
    """The names under which values are hidden are those on the wire, of inputs, outputs and inner models."""

    class Inner(BaseModel):
        draft: Hidden[str | None] = None

    class Asked(BaseModel):
        prompt: Hidden[str] = Field(alias="userPrompt")
        writeOnly: int = 0  # noqa: N815 - a name like the mark's
        key: SecretStr = SecretStr("")

    class Told(BaseModel):
        inner: list[Inner]
        plain: str

    registry = Registry()

    @registry.module("m")
    async def told(ctx: ModuleContext, given: Asked) -> Told:
        return Told(inner=[], plain=given.prompt)

    assert registry.hidden_names() == {"userPrompt", "draft", "key"}


async def test_counters_without_a_run_have_limits_also() -> None:
    """A module that counts can be called in a test: an amount beyond the limit is not added."""
    counters = MemoryCounters()
    assert await counters.add("tokens", 5, limit=8) == 5
    assert await counters.add("tokens", 4, limit=8) is None
    assert await counters.add("tokens", -2) == 3


@pytest.fixture
def authors_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a directory with two files of an author; what they were imported as is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "corner_shop.py").write_text("")
    (tmp_path / "corner_shops").mkdir()
    (tmp_path / "corner_shops" / "books.py").write_text("")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("given", "imported"),
    [
        ("corner_shop", "corner_shop"),
        ("corner_shop.py", "corner_shop"),
        ("./corner_shop.py", "corner_shop"),
        ("corner_shops/books.py", "corner_shops.books"),
    ],
)
def test_a_file_is_imported_as_its_module(authors_directory: Path, given: str, imported: str) -> None:
    """`--modules shop.py` is what completion writes: it is the same as `--modules shop`."""
    load_modules([given])
    load_modules([str(authors_directory / "corner_shop.py")])
    assert imported in sys.modules


@pytest.mark.parametrize("given", ["corner_store.py", "../elsewhere.py"])
def test_a_file_that_is_not_there_is_named(authors_directory: Path, given: str) -> None:
    """Python would speak of a module `py`. A file outside of this directory could not import its neighbours."""
    (authors_directory.parent / "elsewhere.py").write_text("")
    with pytest.raises(RegistrationError, match=f"there is no file '{given}' in '{authors_directory}'"):
        load_modules([given])


def test_what_is_wrong_in_a_file_is_said_with_its_line(authors_directory: Path) -> None:
    """A policy without its fields, say: in one sentence, and where."""
    (authors_directory / "corner_bank.py").write_text(
        "from redrive import RetryPolicy\n\nRetryPolicy.model_validate({'base': 1, 'max_attempts': 2})\n"
    )
    with pytest.raises(RegistrationError) as refused:
        load_modules(["corner_bank.py"])
    said = str(refused.value)
    assert said.startswith("cannot import 'corner_bank.py' (REDRIVE_MODULES): ValidationError: cap: Field required; ")
    assert said.endswith(" (corner_bank.py:3 in <module>)")
