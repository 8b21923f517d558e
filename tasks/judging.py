"""The judge of a data set: its verifier, the user's own rewards, a reward model or an environment. `start_judge` starts
it; `check_judge` tries it before a run, on the shortest problems and on the canonical solutions."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from heapq import nsmallest

from core.config import ResolvedRewardModel, RewardConfig, TaskConfig
from core.errors import ConfigError, DataError
from core.parts.judge import Asks, Case, Judge
from core.records import Verdict
from tasks.code.programs import limits_of, setting_of
from tasks.code.sandbox import START_LIMIT, check_sandbox
from tasks.dialogue.language_judge import LanguageJudge
from tasks.dialogue.reward_model import RewardJudge, Scorer, local_scorer
from tasks.judge_pool import PATIENCE, JudgePool, LocalJudge
from tasks.kinds import find_kind, judged_by_model
from tasks.problems import Item
from tasks.rewards.combined import Rewards, WeightedReward
from tasks.rewards.remote import RemoteReward

PROBED = 4  # number of problems that `check_judge` probes: the shortest, because they pass the length filters
SHOWN = 60  # characters of a reference or a response in a line
MEMORY_GIB = 8.0  # address space of a judging process
SLOW = 256  # most canonical solutions that `check_judge` has judged where verdicts are slow (programs, own rewards)


def start_judge(config: TaskConfig, reward_model: ResolvedRewardModel | None = None, *, check: bool = False) -> Judge:
    """Start the judge of a data set. `check`: without Ray. Raises ConfigError when the user's reward cannot be
    imported, no sandbox can be started or an endpoint does not answer, ModelError for a bad reward model."""
    judge = _start(config, reward_model, check)
    return judge if config.success_reward is None else Threshold(judge, config.success_reward)


def _start(config: TaskConfig, reward_model: ResolvedRewardModel | None, check: bool) -> Judge:
    if judged_by_model(config):
        if reward_model and reward_model.judge.url:
            return LanguageJudge(reward_model)
        local = check or not config.judge_workers
        return RewardJudge(reward_model or ResolvedRewardModel(), local_scorer if local else _remote_scorer)
    if find_kind(config.name).episodes and not config.own_rewards:
        return EpisodeJudge()
    return _own_rewards(config) if config.own_rewards else _task_judge(config)


def _own_rewards(config: TaskConfig) -> Rewards:
    with ExitStack() as started:  # one that does not start ends the others
        rewards = []
        for reward in config.own_rewards:
            judge = _own_reward(config, reward)
            started.callback(judge.close)
            rewards.append(WeightedReward(reward.title, reward.weight, judge))
        started.pop_all()
    return Rewards(rewards)


def _own_reward(config: TaskConfig, reward: RewardConfig) -> Judge:
    if reward.remote:
        timeout, workers = PATIENCE * config.judge_timeout, max(1, config.judge_workers)
        return RemoteReward(reward.name, timeout=timeout, concurrency=workers)
    try:  # the user's code: report an error now, not after the first rollouts
        judge = _task_judge(config) if reward.name == "task" else _verifier_judge(config, reward.name)
        judge.wait_until_ready()
    except ConfigError as error:
        raise ConfigError(f"task.reward: {error}") from None
    return judge


def _task_judge(config: TaskConfig) -> LocalJudge | JudgePool:
    kind = find_kind(config.name)
    if not kind.verifier:
        raise ConfigError(f"task {config.name} has no verifier; leave 'task' out of task.rewards")
    if not kind.runs_programs:
        return _verifier_judge(config, kind.verifier)
    limits = limits_of(config)
    check_sandbox(config.sandbox, limits, setting_of(config))
    # the program, and what judges its answers
    patience = 2 * (3 * config.code.program_seconds + limits.wall + 2 * START_LIMIT)
    return _verifier_judge(config, kind.verifier, patience, config.code.worst, config.model_dump_json())


def _verifier_judge(
    config: TaskConfig,
    verifier: str,
    patience: float | None = None,
    failed_reward: float = 0.0,
    settings: str | None = None,
) -> LocalJudge | JudgePool:
    if not config.judge_workers:
        return LocalJudge(verifier, failed_reward, settings)
    return JudgePool(
        verifier,
        workers=config.judge_workers,
        limit=patience or config.judge_timeout,
        memory_gib=MEMORY_GIB,
        failed_reward=failed_reward,
        settings=settings,
        patience=patience,
    )


def _remote_scorer(config: ResolvedRewardModel) -> Scorer:
    from tasks.dialogue.reward_actor import RewardService  # imports Ray: not before its environment is set

    return RewardService(config)


class EpisodeJudge:
    """The verdict of an environment: its last reward, and whether the episode is a success. The rewards of earlier
    turns are those of steps."""

    asks = Asks(episode=True)

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """See `core.parts.judge.Judge`. A response without an episode fails."""
        return [self._verdict(case) for case in cases]

    @staticmethod
    def _verdict(case: Case) -> Verdict:
        if case.episode is None:
            return Verdict(0.0, False, "no environment answered", judge_failed=True)
        last = sum(reward for at, reward in case.episode.rewards if at == case.tokens - 1)
        return Verdict(last, case.episode.succeeded, case.episode.detail)

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class Threshold:
    """Another judge, whose responses are successes from a reward on (`task.success_reward`); of an episode all its
    rewards count. A response on which the judge failed is none."""

    def __init__(self, judge: Judge, least: float) -> None:
        self.judged, self.least, self.asks = judge, least, judge.asks

    def judge(self, cases: Sequence[Case]) -> list[Verdict]:
        """See `core.parts.judge.Judge`."""
        verdicts = zip(cases, self.judged.judge(cases), strict=True)
        return [replace(verdict, correct=self._succeeds(case, verdict)) for case, verdict in verdicts]

    def _succeeds(self, case: Case, verdict: Verdict) -> bool:
        whole = 0.0 if case.episode is None else case.episode.total
        if case.episode is None or not self.asks.episode:  # else the verdict's reward is the last of the episode's
            whole += verdict.reward + sum(reward for _, reward in verdict.steps)
        return not verdict.judge_failed and whole >= self.least

    def close(self) -> None:
        """End the other judge."""
        self.judged.close()


def check_judge(config: TaskConfig, items: Sequence[Item], reward_model: ResolvedRewardModel | None = None) -> str:
    """Judge the shortest problems with their canonical solution and an empty response, then the canonical solutions.
    Returns a line for each of the user's own rewards, and one that says how many solutions are wrong. Raises
    ConfigError when the judge raises, hangs, crashes or returns no finite number on the shortest problems, DataError
    when a built-in verifier finds all solutions wrong."""
    if find_kind(config.name).episodes and not config.own_rewards:
        return "judge: the environment"
    workers = {"judge_workers": max(1, config.judge_workers)}  # in this process nothing would end what hangs
    with closing(start_judge(config.model_copy(update=workers), reward_model, check=True)) as judge:
        _probe(config, items, judge)
        solved = [item for item in items if item.solution is not None]
        return "\n".join([*_own_lines(solved, judge), _check_solutions(config, solved, judge)])


def probe_reward(config: TaskConfig, items: Sequence[Item]) -> None:
    """The first half of `check_judge` for the user's own reward, in one judging process. Raises ConfigError."""
    with closing(start_judge(config.model_copy(update={"judge_workers": 1}), check=True)) as judge:
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
    rule = "above 0, or what its Verdict or `acc` says"
    if isinstance(judge, Threshold):
        rule, judge = f"a reward of {judge.least:g} or more in all (task.success_reward)", judge.judged
    if not isinstance(judge, Rewards):
        return []
    return judge.describe(_case(solved[0], solved[0].solution or "", judge) if solved else None, rule)


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
    example = f"{first.where or repr(first.prompt[:60])}: {why.detail or f'reward {why.reward:g}'}"
    if len(wrong) == len(solved) and not config.own_rewards:
        raise DataError(
            f"all {len(solved)} canonical solutions are judged wrong, the first of {example}; name the right task and "
            "columns, or fix the data set"
        )
    texts = (
        f"judged were the reference {_beginning(first.reference)} and the response {_beginning(first.solution or '')}"
    )
    return f"warning: canonical solutions: {len(wrong)} of {len(solved)} judged wrong, the first of {example}; {texts}"


def _beginning(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
