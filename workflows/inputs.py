"""Read what starts a workflow, from whoever sent it.

The payload is decoded here and not by Temporal's converter: what cannot be decoded has to fail the run with a sentence
that names the place, and not its workflow task for ever.
"""

from pydantic import ValidationError
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from redrive.contracts import RunInput, StepStatus
from redrive.dead_letters import ORDERS, Order, Verb
from redrive.documents import check_payload, json_problem, validation_sentence
from redrive.errors import Category, InvalidInput

# What a run gets that was started without any input: without it, its workflow task would fail for ever.
NOTHING = RawValue(Payload())


def read_run_input(raw: RawValue) -> RunInput:
    """Return the input of a run, or fail the run."""
    try:
        order = RunInput.model_validate(from_json(raw.payload.data, allow_inf_nan=False))
        check_payload(order.payload)
        _check_state(order)
    except ValidationError as error:
        raise _refusal(f"the run's input does not fit: {validation_sentence(error)}") from None
    except InvalidInput as error:
        raise _refusal(str(error)) from None
    except ValueError as error:
        raise _refusal(f"the run's input is not JSON: {error}") from None
    return order


def _check_state(order: RunInput) -> None:
    """Refuse a state that is not of these steps: only a run that continues itself sends one."""
    if order.state is None:
        return
    wanted = [step.name for step in order.steps or []]
    done = {step.name for step in order.state.steps if step.status is StepStatus.SUCCESS}
    if [step.name for step in order.state.steps] != wanted or done != order.state.outputs.keys():
        raise InvalidInput("the run's input: state: does not belong to the steps; leave it out")


def _refusal(sentence: str) -> ApplicationError:
    return ApplicationError(sentence, type=Category.VALIDATION, non_retryable=True)


def read_order(raw: RawValue, verb: Verb | None = None) -> Order | str:
    """Return an operator's order, or say what is wrong with it. `verb` is the signal's name, if that tells it."""
    try:
        value = from_json(raw.payload.data, allow_inf_nan=False)
        if verb is not None and isinstance(value, dict):
            value = {**value, "verb": verb}
        order = ORDERS.validate_python(value)
    except ValidationError as error:
        return f"the order does not fit: {validation_sentence(error)}"
    except ValueError as error:
        return f"the order is not JSON: {error}"
    problem = json_problem(order.model_dump(mode="json"))
    return f"the order{problem}" if problem else order
