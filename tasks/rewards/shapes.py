"""Tells by the names of its parameters how a reward function is called: as ours, as TRL's, or as verl's.

Invariants: a function of TRL or verl gets what its own trainer gives it, by keyword, so that it works unchanged. No
parameter is told by its place, because (completion, answer) would get the two swapped.
"""

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.errors import ConfigError
from core.parts.judge import Asks, Case
from core.records import Verdict

ACCEPTED = (
    "a function of (reference, response), by these names, if it wants also of prompt and columns of the row; "
    "TRL's (prompts, completions, completion_ids, **columns); "
    "or verl's (data_source, solution_str, ground_truth, extra_info)"
)
TRL = ("prompts", "completions", "completion_ids")
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
REFERENCE = ("reference", "ground_truth", "gold", "answer", "label", "target")
RESPONSE = ("response", "completion", "output", "response_text")
"""What the gold answer and the response are called in our own shape; of several names the first."""
NOT_APPLIED = Verdict(math.nan, False, "does not apply")
"""For a None among the rewards of TRL's shape: the other rewards decide."""


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A reward function of any shape. It has `together` if `asks.batch`, else `alone`."""

    asks: Asks
    alone: Callable[[Case], object] | None = None
    # (cases, most seconds of one that is awaited) -> a result each, or the exception that it ended with
    together: Callable[[Sequence[Case], float | None], Sequence[object]] | None = None


def read_shape(function: Callable[..., Any], path: str) -> RewardFunction:
    """A function as a `RewardFunction`. Raises ConfigError for parameters of no known shape."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ConfigError(f"verifier {path!r} does not tell its parameters; name {ACCEPTED}") from None
    rest = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [parameter.name for parameter in parameters if parameter.kind in by_place]
    named = {
        parameter.name: parameter.default is parameter.empty
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }
    waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)

    def _called(values: Mapping[str, Any]) -> Any:
        return function(**{name: value for name, value in values.items() if rest or name in named})

    def _asks(shape: str, given: Sequence[str], also: Sequence[str], every: bool, batch: bool) -> Asks:
        columns = {name: needed for name, needed in named.items() if name not in (*given, *also)}
        optional = [*also, *(name for name, needed in columns.items() if not needed)]
        needed = [name for name, needed in columns.items() if needed]
        return Asks(needed, optional, every, batch=batch, shape=shape)

    if named.keys() & set(TRL):
        asks = _asks("TRL's shape", TRL, ["prompt"], rest, True)
        return _batches(_called, asks._replace(ids=rest or "completion_ids" in named), waits)
    if "solution_str" in named:
        also = ["data_source", "reward_model", "extra_info"]
        return _single(_called, _asks("verl's shape", VERL, also, False, waits), _verl, _number)
    first, second = (next((name for name in names if name in named), "") for names in (REFERENCE, RESPONSE))
    if not (first and second):
        raise ConfigError(f"verifier {path!r} takes ({', '.join(map(str, parameters))}); name {ACCEPTED}")
    also = [name for name in ("prompt",) if name in named]
    asks = _asks(f"shape ({first}, {second})", (first, second), also, rest, waits)
    if asks.nothing:
        ordered = places[:2] == [first, second]
        if ordered:
            return RewardFunction(asks, lambda case: function(case.reference, case.response))
        return RewardFunction(asks, lambda case: function(**{first: case.reference, second: case.response}))

    def _ours(case: Case) -> dict[str, Any]:
        return {**case.columns, first: case.reference, second: case.response}

    return _single(_called, asks, _ours, lambda result: result)


def plain_number(value: object) -> float | None:
    """A number of Python, numpy, torch, decimal, ..., an array of one; None for all else. An array of several raises.

    >>> plain_number(True), plain_number("1"), plain_number(2j)
    (1.0, None, None)
    """
    item = getattr(value, "item", None)
    value = item() if callable(item) else value
    return float(value) if hasattr(type(value), "__float__") else None  # type: ignore[arg-type]


def _verl(case: Case) -> dict[str, Any]:
    """What verl's reward manager passes; the row's own gold answer may be more than a text."""
    row = case.columns
    model = row.get("reward_model")
    truth = model.get("ground_truth", case.reference) if isinstance(model, Mapping) else case.reference
    values = {"data_source": row.get("data_source", ""), "extra_info": row.get("extra_info") or {}}
    return {**row, **values, "solution_str": case.response, "ground_truth": truth}


def _number(result: Any) -> object:
    """verl's results: a number, a mapping with `score` and perhaps `acc`, or a sequence that begins with the score."""
    if isinstance(result, Mapping):
        score = float(result["score"])
        return Verdict(score, bool(result.get("acc", score > 0)))
    return float(result[0]) if isinstance(result, tuple | list) else result


def _single(
    called: Callable[[Mapping[str, Any]], Any],
    asks: Asks,
    values: Callable[[Case], dict[str, Any]],
    read: Callable[[Any], object],
) -> RewardFunction:
    """A reward of one response. Those of an `async def` are awaited together, each for at most `patience` seconds."""
    if not asks.batch:
        return RewardFunction(asks, lambda case: read(called(values(case))))
    runner = asyncio.Runner()

    async def _awaited(case: Case, patience: float | None) -> object:
        try:
            async with asyncio.timeout(patience) as limit:
                return read(await called(values(case)))
        except Exception as error:
            return TimeoutError(f"no reward after {patience:g} s") if limit.expired() else error

    async def _together(cases: Sequence[Case], patience: float | None) -> list[object]:
        return list(await asyncio.gather(*(_awaited(case, patience) for case in cases)))

    return RewardFunction(asks, together=lambda cases, patience: runner.run(_together(cases, patience)))


def _batches(called: Callable[[Mapping[str, Any]], Any], asks: Asks, waits: bool) -> RewardFunction:
    """A reward of TRL's shape: lists in, a list of numbers or None out."""
    runner = asyncio.Runner()

    def _many(cases: Sequence[Case], _: float | None) -> Sequence[object]:
        names = dict.fromkeys(name for case in cases for name in case.columns if name not in ("prompt", *TRL))
        values: dict[str, list[Any]] = {name: [case.columns.get(name) for case in cases] for name in names}
        chats = [isinstance(case.columns.get("prompt"), list) for case in cases]
        values["prompts"] = [case.columns.get("prompt", "") for case in cases]
        values["completions"] = [
            [{"role": "assistant", "content": case.response}] if chat else case.response
            for case, chat in zip(cases, chats, strict=True)
        ]
        values["completion_ids"] = [list(case.ids) for case in cases]
        returned = called(values)
        results = list(runner.run(returned) if waits else returned)
        if len(results) != len(cases):
            raise ValueError(f"{len(results)} rewards for {len(cases)} completions")
        return [NOT_APPLIED if result is None else result for result in results]

    return RewardFunction(asks, together=_many)
