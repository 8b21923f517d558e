"""Tries the judges of a task before a run: on its shortest problems, and on its canonical solutions."""

from collections.abc import Sequence
from contextlib import closing
from heapq import nsmallest

from core.config import RewardModelConfig, TaskConfig
from core.errors import ConfigError, DataError
from core.protocols import Case, Judge
from tasks.judging import start_judges
from tasks.kinds import find_kind, judged_by_model
from tasks.problems import Item
from tasks.rewards.combined import Rewards

PROBED = 4  # number of problems that `check_judges` probes: the shortest, because they pass the length filters
SHOWN = 60  # characters of a reference or a response in a line
SLOW = 256  # most canonical solutions that `check_judges` has judged where verdicts are slow (programs, own rewards)


def check_judges(config: TaskConfig, items: Sequence[Item], reward_model: RewardModelConfig | None = None) -> str:
    """Judge the shortest problems with their canonical solution and an empty response, then the canonical solutions.
    Returns a line for each of the user's own rewards, and one that says how many solutions are wrong. Raises
    ConfigError when the judge raises, hangs, crashes or returns no finite number on the shortest problems, DataError
    when a built-in verifier finds all solutions wrong."""
    if find_kind(config.name).episodes and not config.own_rewards:
        return "judge: the environment"
    workers = {"judge_workers": max(1, config.judge_workers)}  # in this process nothing would end what hangs
    with closing(start_judges(config.model_copy(update=workers), reward_model, check=True)) as judge:
        _probe(config, items, judge)
        solved = [item for item in items if item.solution is not None]
        return "\n".join([*_own_lines(solved, judge), _check_solutions(config, solved, judge)])


def probe_reward(config: TaskConfig, items: Sequence[Item]) -> None:
    """The first half of `check_judges` for the user's own reward, in one judging process. Raises ConfigError."""
    with closing(start_judges(config.model_copy(update={"judge_workers": 1}), check=True)) as judge:
        _probe(config, items, judge)


def _case(item: Item, response: str, judge: Judge) -> Case:
    prompt = item.form.text(item.prompt) if judge.asks.query else ""
    columns = item.kept(judge.asks)
    return Case(item.reference, response, item.where, columns, prompt=prompt, query=prompt + response)


def _probe(config: TaskConfig, items: Sequence[Item], judge: Judge) -> None:
    shortest = nsmallest(PROBED, items, key=lambda item: len(item.prompt) + len(item.solution or ""))
    probes = [(item, text) for item in shortest for text in {item.solution or "", ""}]
    # one by one, to stop at the first failure
    verdicts = (judge.judge([_case(item, text, judge)])[0] for item, text in probes)
    failed = next((verdict for verdict in verdicts if verdict.judge_failed), None)
    if failed is not None:
        name = f"task {config.name}"
        if config.own_rewards:
            name = f"task.reward = {', '.join(each.name for each in config.own_rewards)}"
        raise ConfigError(f"{name}: {failed.detail} (on one of the shortest problems); fix the reward function")


def _own_lines(solved: Sequence[Item], judge: Judge) -> list[str]:
    if not isinstance(judge, Rewards):
        return []
    return judge.describe(_case(solved[0], solved[0].solution or "", judge) if solved else None)


def _check_solutions(config: TaskConfig, solved: Sequence[Item], judge: Judge) -> str:
    if not solved:
        return "canonical solutions: none"
    if judged_by_model(config):  # a reward model's score is neither right nor wrong
        return f"canonical solutions: {len(solved)}"
    if config.own_rewards or find_kind(config.name).runs_programs:
        solved = solved[:: -(-len(solved) // SLOW)]
    verdicts = judge.judge([_case(item, item.solution or "", judge) for item in solved])
    wrong = [(item, verdict) for item, verdict in zip(solved, verdicts, strict=True) if not verdict.correct]
    if not wrong:
        return f"canonical solutions: {len(solved)} judged, all correct"
    first, why = wrong[0]
    told = f"{first.where or repr(first.prompt[:60])}: {why.detail or f'reward {why.reward:g}'}"
    if len(wrong) == len(solved) and not config.own_rewards:
        raise DataError(
            f"all {len(solved)} canonical solutions are judged wrong, the first of {told}; name the right task and "
            "columns, or fix the data set"
        )
    got = f"judged were the reference {_start(first.reference)} and the response {_start(first.solution or '')}"
    return f"warning: canonical solutions: {len(wrong)} of {len(solved)} judged wrong, the first of {told}; {got}"


def _start(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
