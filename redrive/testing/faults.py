"""Failures that a test plans: a step fails so often, before its work or after it."""

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redrive.errors import Transient
from redrive.modules import Module, ModuleContext


@dataclass
class _Fault:
    error: BaseException
    left: int
    after: bool


class Faults:
    """Make steps fail: `faults.fail("charge", times=2)`."""

    def __init__(self) -> None:
        self._planned: defaultdict[str, list[_Fault]] = defaultdict(list)

    def fail(
        self,
        step: str | Module[Any, Any],
        *,
        times: int = 1,
        error: BaseException | None = None,
        after: bool = False,
    ) -> None:
        """Let the next attempts of a step fail: without `error`, in a way that is tried again.

        With `after` the module does its work first, and its answer is lost: what a worker's death leaves behind.
        `Terminal("declined")` parks the run at once; so do more failures than the module's policy allows.
        """
        if times < 1:
            raise ValueError(f"times={times}: a step fails at least once")
        name = step if isinstance(step, str) else step.name
        self._planned[name].append(_Fault(error or Transient("a failure that the test planned"), times, after))

    @property
    def left(self) -> dict[str, int]:
        """How many planned failures have not happened, by step."""
        left = {step: sum(fault.left for fault in planned) for step, planned in self._planned.items()}
        return {step: count for step, count in left.items() if count}

    def applied(self, modules: Sequence[Module[Any, Any]]) -> dict[str, Module[Any, Any]]:
        """Return the modules of a run, failing as planned, by their names. A failure planned for no step is refused."""
        names = [module.name for module in modules]
        if unknown := sorted(self.left.keys() - set(names)):
            raise ValueError(f"faults: the run has no step {unknown[0]!r}, only {', '.join(names)}")
        return {module.name: self._failing(module) for module in modules}

    def _failing(self, module: Module[Any, Any]) -> Module[Any, Any]:
        function = _failing_async if module.is_async else _failing_plain
        return replace(module, function=function(module, self))

    def take(self, step: str) -> _Fault | None:
        """Return the failure that the next attempt of a step has, and count it."""
        fault = next((each for each in self._planned[step] if each.left), None)
        if fault:
            fault.left -= 1
        return fault


def _failing_async(module: Module[Any, Any], faults: Faults) -> Any:
    function: Any = module.function

    @functools.wraps(function)
    async def call(ctx: ModuleContext, given: Any) -> Any:
        fault = faults.take(module.name)
        if fault and not fault.after:
            raise fault.error.with_traceback(None)
        result = await function(ctx, given)
        if fault:
            raise fault.error.with_traceback(None)
        return result

    return call


def _failing_plain(module: Module[Any, Any], faults: Faults) -> Any:
    function: Any = module.function

    @functools.wraps(function)
    def call(ctx: ModuleContext, given: Any) -> Any:
        fault = faults.take(module.name)
        if fault and not fault.after:
            raise fault.error.with_traceback(None)
        result = function(ctx, given)
        if fault:
            raise fault.error.with_traceback(None)
        return result

    return call
