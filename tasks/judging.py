"""Starts the judges of a task: those of its verifier or of the user's rewards, a reward model, or an environment."""

from contextlib import ExitStack

from core.config import RewardConfig, RewardModelConfig, TaskConfig
from core.errors import ConfigError
from core.protocols import Judge
from tasks.code.programs import limits_of, setting_of
from tasks.code.sandbox import START_LIMIT, check_sandbox
from tasks.dialogue.language_judge import LanguageJudge
from tasks.dialogue.reward_model import RewardJudge, Scorer, local_scorer
from tasks.judge_pool import PATIENCE, EpisodeJudge, JudgePool, LocalJudge
from tasks.kinds import find_kind, judged_by_model
from tasks.rewards.combined import Part, Rewards
from tasks.rewards.remote import RemoteReward


def start_judges(config: TaskConfig, reward_model: RewardModelConfig | None = None, *, check: bool = False) -> Judge:
    """Start the judges of a task. `check`: without Ray. Raises ConfigError when the user's reward cannot be imported,
    no sandbox can be started or an endpoint does not answer, ModelError for a bad reward model."""
    if judged_by_model(config):
        if reward_model and reward_model.judge.url:
            return LanguageJudge(reward_model)
        local = check or not config.judge_workers
        return RewardJudge(reward_model or RewardModelConfig(), local_scorer if local else _remote_scorer)
    if find_kind(config.name).episodes and not config.own_rewards:
        return EpisodeJudge()
    return _own_rewards(config) if config.own_rewards else _task_judges(config)


def _own_rewards(config: TaskConfig) -> Rewards:
    with ExitStack() as started:  # one that does not start ends the others
        parts = []
        for each in config.own_rewards:
            judge = _own_reward(config, each)
            started.callback(judge.close)
            parts.append(Part(each.title, each.weight, judge))
        started.pop_all()
    return Rewards(parts)


def _own_reward(config: TaskConfig, reward: RewardConfig) -> Judge:
    if reward.remote:
        timeout, workers = PATIENCE * config.judge_timeout, max(1, config.judge_workers)
        return RemoteReward(reward.name, timeout=timeout, concurrency=workers)
    try:  # the user's code: report an error now, not after the first rollouts
        judge = _task_judges(config) if reward.name == "task" else _verifier_judges(config, reward.name)
        judge.wait_until_ready()
    except ConfigError as error:
        raise ConfigError(f"task.reward: {error}") from None
    return judge


def _task_judges(config: TaskConfig) -> LocalJudge | JudgePool:
    kind = find_kind(config.name)
    if not kind.verifier:
        raise ConfigError(f"task {config.name} has no verifier; leave 'task' out of task.rewards")
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
