"""The judges of a task: starts the one that a config names, and checks that it works.

Called by `tasks/task.py` (`start_judges`) and by `launch.py check` (`check_judges`).
"""

from collections.abc import Sequence
from heapq import nsmallest

from core.config import RewardModelConfig, TaskConfig
from core.errors import ConfigError, DataError
from tasks.code.programs import limits_of, setting_of
from tasks.code.sandbox import START_LIMIT, check_sandbox
from tasks.dialogue.language_judge import LanguageJudge
from tasks.dialogue.reward_model import RewardJudge, Scorer, local_scorer
from tasks.judge import JudgePool, LocalJudge
from tasks.kinds import KINDS, judged_by_model
from tasks.problems import Item

PROBED = 4
"""Number of problems that `check_judges` probes: the shortest, because they pass the length filters."""
SLOW = 256
"""Most canonical solutions that `check_judges` has judged if verdicts are slow: for programs and the user's own rewards."""


Judges = JudgePool | LocalJudge | RewardJudge | LanguageJudge
"""Judges responses: `judge` returns a verdict for each (reference, response) pair, `close` ends its processes."""


def start_judges(config: TaskConfig, reward_model: RewardModelConfig | None = None, *, check: bool = False) -> Judges:
    """Start the judges of a task. `check`: without Ray.

    Raises ConfigError when the user's reward cannot be imported or no sandbox can be started, ModelError for a bad reward model, ConfigError
    for an endpoint that does not answer.
    """
    if judged_by_model(config):
        if reward_model and reward_model.judge.url:
            return LanguageJudge(reward_model)
        local = check or not config.judge_workers
        return RewardJudge(reward_model or RewardModelConfig(), local_scorer if local else _remote_scorer)
    if config.reward:
        try:  # the user's code: report an error now, not after the first rollouts
            judges = _verifier_judges(config, config.reward)
            if isinstance(judges, JudgePool):
                judges.wait_until_ready()
        except ConfigError as error:
            raise ConfigError(f"task.reward: {error}") from None
        return judges
    kind = KINDS[config.name]
    if not kind.runs_programs:
        return _verifier_judges(config, kind.verifier)
    limits = limits_of(config)
    check_sandbox(config.sandbox, limits, setting_of(config))
    # the program, and what judges its answers
    patience = 2 * (3 * config.code.program_seconds + limits.wall + 2 * START_LIMIT)
    return _verifier_judges(config, kind.verifier, patience, config.code.worst, config.model_dump_json())


def _verifier_judges(
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
        memory_gib=config.judge_memory_gib,
        failed_reward=failed_reward,
        settings=settings,
        patience=patience,
    )


def _remote_scorer(config: RewardModelConfig) -> Scorer:
    from tasks.dialogue.reward_actor import RewardService  # imports Ray: not before its environment is set

    return RewardService(config)


def check_judges(config: TaskConfig, items: Sequence[Item], reward_model: RewardModelConfig | None = None) -> str:
    """Judge the shortest problems with their canonical solution and an empty response, then the canonical solutions.

    Returns a line that says how many solutions are wrong. Raises ConfigError when the judge raises, hangs, crashes or returns no
    finite number on the shortest problems, DataError when a built-in verifier finds all canonical solutions wrong.
    """
    judges = start_judges(config, reward_model, check=True)
    try:
        shortest = nsmallest(PROBED, items, key=lambda item: len(item.prompt) + len(item.solution or ""))
        probes = [(item.reference, text) for item in shortest for text in {item.solution or "", ""}]
        verdicts = (judges.judge([probe])[0] for probe in probes)  # one by one, to stop at the first failure
        failed = next((verdict for verdict in verdicts if verdict.judge_failed), None)
        if failed is not None:
            name = f"task.reward = {config.reward}" if config.reward else f"task {config.name}"
            raise ConfigError(f"{name}: {failed.detail} (on one of the shortest problems); fix the reward function")
        return _check_solutions(config, items, judges)
    finally:
        judges.close()


def _check_solutions(config: TaskConfig, items: Sequence[Item], judges: Judges) -> str:
    solved = [item for item in items if item.solution is not None]
    if not solved:
        return "canonical solutions: none"
    if judged_by_model(config):  # a reward model's score is neither right nor wrong
        return f"canonical solutions: {len(solved)}"
    if config.reward or KINDS[config.name].runs_programs:
        solved = solved[:: -(-len(solved) // SLOW)]
    verdicts = judges.judge([(item.reference, item.solution or "") for item in solved])
    wrong = [(item, verdict) for item, verdict in zip(solved, verdicts, strict=True) if not verdict.correct]
    if not wrong:
        return f"canonical solutions: {len(solved)} judged, all correct"
    first, why = wrong[0]
    told = f"{first.where or repr(first.prompt[:60])}: {why.detail or f'reward {why.reward:g}'}"
    if len(wrong) == len(solved) and not config.reward:
        raise DataError(
            f"all {len(solved)} canonical solutions are judged wrong, the first of {told}; name the right task and columns, or "
            f"fix the data set"
        )
    return f"canonical solutions: {len(wrong)} of {len(solved)} judged wrong, the first of {told}"
