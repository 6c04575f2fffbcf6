"""Every place that walks a document, over the corpus of hostile ones: an answer or a sentence, for a bounded cost."""

import functools
import json
import time
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from redrive import InvalidInput
from redrive.classify import fingerprint
from redrive.console.api.dead_letters import plan_hash
from redrive.console.message_contents import WRITTEN, content
from redrive.console.problems import Refusal
from redrive.console.request_limits import _check
from redrive.console.web.edits import check_input
from redrive.console.web.render import json_text
from redrive.contracts import ELEMENT_LIMIT, MIB, NAME_LIMIT, RunInput
from redrive.dead_letters import Exhausted, Replay
from redrive.documents import (
    PATHS_NAMED,
    changed_paths,
    json_problem,
    merge_patch,
    number_problem,
    parse_json,
    parse_payload,
    validation_sentence,
)
from redrive.errors import RedriveError, TooLarge
from redrive.events import parse_envelope
from redrive.keys import request_hash
from redrive.levels import PATH_LIMIT
from redrive.postgres.values import json_text as stored_text
from redrive.redaction.redactor import Redactor
from redrive.starter.cli.dead_letters.commands import parse_object
from redrive.store.dead_letters.models import LetterRecord
from redrive.workflows.inputs import read_command, read_message, read_run_input
from tests.hostile.documents import THINNED, Document, around, corpus
from tests.integration.store.letters import exhausted, new_letter

# On an idle machine a megabyte takes at most 50 ms in each of them. This one may be busy: twenty times that is still
# far below what anything but linear work takes.
SECONDS = 1.0
MEMORY = 20_000_000
# A shorter one cannot take that much.
SHORT = 2048
COMMAND = {"request_id": "r-1", "requested_by": "ada", "reason": "why"}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "string", "pattern": "^(a+)+$"}}},
    "additionalProperties": False,
}


def raw(data: bytes) -> RawValue:
    """Return an argument with these bytes."""
    return RawValue(Payload(data=data))


READERS: dict[str, Callable[[bytes], object]] = {
    "a payload": parse_payload,
    "a request's body": lambda data: _check(around("payload", data, pipeline="p")),
    "a run's input": lambda data: read_run_input(raw(around("payload", data, pipeline="p"))),
    "a run's state": lambda data: read_run_input(raw(around("state", data, pipeline="p"))),
    "a command": lambda data: read_command([raw(data)], "replay"),
    "a command's edit": lambda data: read_command([raw(around("input_patch", data, **COMMAND))], "replay"),
    "a message": lambda data: read_message(Exhausted, [raw(data)]),
    "an event": lambda data: parse_envelope(around("payload", data, dedupeKey="k", type="t", source="s")),
    "an option": lambda data: parse_object("--patch", data),
    "an edited input": lambda data: check_input({"a": ["b"]}, data.decode("utf-8", "replace"), SCHEMA),
}


class Anything(BaseModel):
    """A model that nothing in the corpus fits."""

    a: dict[str, list[dict[str, bool]]]


def named_problems(document: dict[str, Any]) -> str:
    """Say why a document does not fit a model."""
    try:
        Anything.model_validate(document)
    except ValidationError as error:
        return validation_sentence(error)
    return ""


def planned(document: dict[str, Any]) -> str:
    """Return the hash of an edit."""
    record = cast("LetterRecord", SimpleNamespace(id="dead-letter-a", version=1))
    return plan_hash(record, Replay(**COMMAND, input_patch=document))


def looks_of(document: dict[str, Any]) -> str:
    """Return the fingerprint of a failure whose message is the document."""
    cycle = exhausted(new_letter("acme")).cycle
    return fingerprint("p", cycle.model_copy(update={"message": json.dumps(document)}))


WALKERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "its numbers": number_problem,
    "the fields of an edit": changed_paths,
    "an edit of itself": lambda document: merge_patch(document, document),
    "an edit of another": lambda document: merge_patch({"a": {"b": [1]}}, document),
    "a fingerprint": functools.partial(request_hash, "p"),
    "a plan's hash": planned,
    "a failure's fingerprint": looks_of,
    "what does not fit": named_problems,
    "the text of a page": json_text,
    "the text of a row": stored_text,
    "what was edited": lambda document: check_input(document, json.dumps(document), SCHEMA),
}


@functools.cache
def small_corpus() -> tuple[Document, ...]:
    """All documents, of about 32 KiB where size is what is hostile: a path for each element takes 100 MB even so."""
    return tuple(corpus(32 * 1024))


@functools.cache
def taken() -> tuple[tuple[str, dict[str, Any]], ...]:
    """Those of the corpus that are taken as payloads."""
    found = []
    for document in small_corpus():
        try:
            found.append((document.name, parse_payload(document.data)))
        except InvalidInput:
            continue
    return tuple(found)


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of some work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def memory(work: Callable[[], object]) -> int:
    """Return the most memory that some work takes at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def is_weighed(document: int, way: int) -> bool:
    """Tell whether memory is measured, which takes several times the work: each document by some of the ways."""
    return (document + way) % THINNED == 0


def answered(read: Callable[[bytes], object], data: bytes) -> object:
    """Return what a reader makes of bytes: a value, or the sentence of its refusal. Anything else is raised."""
    try:
        return read(data)
    except (RedriveError, ApplicationError) as error:
        sentence = str(error)
        assert 0 < len(sentence) < 4096, sentence[:200]
        return sentence


def test_the_corpus_is_large_and_stays_the_same() -> None:
    """At least 200 documents, each with a name of its own; the same ones each time; many are fine, many are not."""
    names = [document.name for document in small_corpus()]
    assert len(set(names)) == len(names) >= 200
    assert tuple(corpus(32 * 1024)) == small_corpus()
    assert 50 <= len(taken()) <= len(names) - 50


@pytest.mark.parametrize("what", READERS)
def test_whatever_comes_is_taken_or_refused_for_its_share(what: str) -> None:
    """No document makes a reader raise anything but a refusal, take long, or take much memory."""
    read = READERS[what]
    for number, document in enumerate(small_corpus()):
        work = functools.partial(answered, read, document.data)
        assert seconds(work) < SECONDS, document.name
        if len(document.data) > SHORT and is_weighed(number, list(READERS).index(what)):
            assert memory(work) < MEMORY, document.name


@pytest.mark.parametrize("what", WALKERS)
def test_whatever_is_taken_costs_its_share_everywhere(what: str) -> None:
    """Every walker is linear in a document that was taken, whatever its shape."""
    for number, (name, document) in enumerate(taken()):
        work = functools.partial(WALKERS[what], document)
        assert seconds(work) < SECONDS, name
        if len(json.dumps(document)) > SHORT and is_weighed(number, list(WALKERS).index(what)):
            assert memory(work) < MEMORY, name


def test_a_megabyte_of_anything_is_checked_for_its_share() -> None:
    """The whole corpus at a megabyte each: parsing and checking stay within bounds, problems found at the very end
    included."""
    for document in corpus(MIB):
        work = functools.partial(answered, parse_payload, document.data)
        assert seconds(work) < SECONDS, document.name
        if document.name.startswith(("long_names", "deep", "trees")):
            assert memory(work) < MEMORY, document.name


def test_the_document_of_the_review_is_refused_at_once() -> None:
    """A name of 100,000 characters over 300,000 texts took 21 GB: a path for every text."""
    data = b'{"' + b"k" * 100_000 + b'": [' + b'"",' * 299_999 + b'""]}'
    with pytest.raises(TooLarge, match=f"payload: more than {ELEMENT_LIMIT} elements"):
        parse_payload(data)
    value = from_json(data)
    assert (
        json_problem(value, 1_000_000)
        == f": key 'kkkkkkkkkkkkkkkkkkkk'… has 100000 characters; the limit is {NAME_LIMIT}"
    )
    assert memory(lambda: json_problem(value, 1_000_000)) < MEMORY


def written(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Write lists and objects, with what would count as elements in names."""
    items = st.lists(inner, max_size=4)
    members = items.map(lambda each: ",".join(f'"{place}{{[,": {item}' for place, item in enumerate(each)))
    return items.map(lambda each: f"[{', '.join(each)}]") | members.map(lambda each: f"{{{each}}}")


@given(st.recursive(st.sampled_from(['""', "0", '"[,"', '"\\\\"', '"\\""', "[ ]", "{}"]), written, max_leaves=12))
@settings(deadline=None)
def test_elements_are_counted_in_the_text_as_in_the_value(text: str) -> None:
    """What is refused before it is parsed is what would be refused after."""

    def count(value: Any) -> int:
        inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
        return len(inner) + sum(map(count, inner))

    value = json.loads(text)
    elements = count(value)
    assert parse_json(text, elements) == value
    assert json_problem(value, elements) is None
    if elements:
        assert "more than" in str(json_problem(value, elements - 1))
        with pytest.raises(TooLarge, match="more than"):
            parse_json(text, elements - 1)


def test_of_many_changed_fields_some_are_named() -> None:
    """The first, each cut where it is long, and how many more there are: 448 KB must not become 100 MB."""
    patch: dict[str, Any] = {f"field-{number}": number for number in range(PATHS_NAMED + 5)}
    assert changed_paths(patch)[-2:] == [f"field-{PATHS_NAMED - 1}", "and 5 more"]
    deep: dict[str, Any] = {f"{number}" * 4: None for number in range(20_000)}
    for _ in range(90):
        deep = {"k" * 1000: deep}
    paths = changed_paths(deep)
    assert len(paths) == PATHS_NAMED + 1
    assert max(map(len, paths)) <= PATH_LIMIT
    assert paths[-1] == f"and {20_000 - PATHS_NAMED} more"


def test_changed_fields_are_named_by_their_path() -> None:
    """An empty object is a field that changes; what is inside another is named with it."""
    assert changed_paths({}) == []
    assert changed_paths({"a": {"b": 1, "c": {}}, "d": None, "e": [{"f": 1}]}) == ["a.b", "a.c", "d", "e"]


def test_very_many_problems_are_counted_not_named() -> None:
    """Each named problem costs half a kilobyte, and naming one names them all."""
    with pytest.raises(ValidationError) as refused:
        Anything.model_validate({"a": {str(number): 0 for number in range(50_000)}})
    sentence = validation_sentence(refused.value)
    assert sentence == "50000 fields do not fit Anything: too many to name"
    with pytest.raises(ValidationError) as unknown:
        RunInput.model_validate({"pipeline": "p"} | {str(number): 0 for number in range(50_000)})
    assert "50001 fields; at most 1000 are read" in validation_sentence(unknown.value)


def test_a_value_that_does_not_fit_is_shown_by_its_beginning() -> None:
    """A megabyte of text is neither shown nor searched for secrets to its end; names and messages are cut, too."""
    with pytest.raises(ValidationError) as refused:
        Anything.model_validate({"a": {"k" * 5000: "4111 " * 200_000}})
    work = functools.partial(validation_sentence, refused.value)
    assert len(work()) < 500
    assert seconds(work) < SECONDS


@pytest.mark.parametrize("depth", [1, 90])
def test_a_page_does_not_grow_by_indentation(depth: int) -> None:
    """A deep document is written without line breaks: indented, each of its elements would take 180 spaces."""
    value: Any = [1] * 20_000
    for _ in range(depth):
        value = [value]
    assert len(json_text(value)) < 512 * 1024
    shown = content(json.dumps([[[[[[[[[[1] * 10_000]]]]]]]]]).encode(), Redactor())
    assert len(shown.text) <= WRITTEN


def test_equal_large_numbers_have_one_short_spelling() -> None:
    """A float of 308 digits is compared with a whole number of as many, and takes no more room than it came with."""
    assert request_hash("p", {"n": 1e300}) == request_hash("p", {"n": int(1e300)})
    assert request_hash("p", {"n": 1e300}) != request_hash("p", {"n": int(1e300) + 1})
    assert memory(lambda: request_hash("p", {"n": [1e308] * 90_000})) < MEMORY


def test_numbers_that_others_cannot_read_are_refused() -> None:
    """A whole number of more digits than a parser takes would be written by us and read by nobody."""
    assert json_problem({"n": [10**4299, -(10**4299)]}) is None
    assert json_problem({"n": [1, -(10**4300)]}) == ".n[1]: a number of more than 4300 digits; send it as text"


def test_a_body_that_is_too_much_is_refused_by_the_limits_name() -> None:
    """The refusal says which limit it is."""
    with pytest.raises(Refusal) as many:
        _check(around("payload", b"[" + b"0," * 150_000 + b"0]"))
    assert (many.value.problem.status, many.value.problem.code) == (413, "too_large")
    assert "more than 60000 elements" in many.value.problem.detail
    with pytest.raises(Refusal) as long:
        _check(around("payload", b'{"' + b"k" * 2000 + b'": 1}'))
    assert long.value.problem.places[0].place == "body.payload"
    assert "the limit is 1024" in long.value.problem.detail
