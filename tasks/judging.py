"""The judges of a task: worker processes with hard limits on the time of a verdict, or this process, or a reward model.

Invariants: there is one verdict per item, in the order of the items. A verifier that raises, hangs, crashes or exhausts
memory gives a verdict of `failed_reward` with the reason, within its time limit. The limit is of processor time, so a
verdict does not depend on the machine's load; a much longer one of wall-clock time ends what sleeps. Only a verifier
that cannot be imported is an error: a ConfigError at the start, an ActorError when a lost worker cannot be replaced.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from heapq import nsmallest

from core.child import PythonProcess
from core.config import RewardModelConfig, TaskConfig
from core.errors import ActorError, ConfigError, DataError
from core.records import Trajectory, Verdict
from tasks.code.programs import limits_of, setting_of
from tasks.code.sandbox import START_LIMIT, check_sandbox
from tasks.dialogue.language_judge import LanguageJudge
from tasks.dialogue.reward_model import RewardJudge, Scorer, local_scorer
from tasks.judge_worker import judge_items, load_verifier, seconds_of
from tasks.kinds import find_kind, judged_by_model
from tasks.problems import Item
from tasks.rewards.cases import Asks, Case
from tasks.rewards.combined import PairJudge, Part, Rewards
from tasks.rewards.remote import RemoteReward

CHUNK = 64  # items per message to a worker: few messages, but small enough that the workers finish together
PATIENCE = 10.0  # wall-clock limit of a verdict in multiples of that on processor time: others may want the cores
WORKER_START_LIMIT = 120.0  # seconds in which a worker must import its verifier
PROBED = 4  # number of problems that `check_judges` probes: the shortest, because they pass the length filters
SHOWN = 60  # characters of a reference or a response in a line
SLOW = 256  # most canonical solutions that `check_judges` has judged where verdicts are slow (programs, own rewards)


class LocalJudge:
    """One verifier in this process (`task.judge_workers: 0`), for breakpoints. Nothing bounds its time or memory."""

    def __init__(self, verifier: str, failed_reward: float = 0.0, settings: str | None = None) -> None:
        """Arguments as for `JudgePool`. Raises ConfigError when the verifier cannot be imported."""
        if os.getcwd() not in sys.path:  # the user's own reward is in the current folder
            sys.path.append(os.getcwd())
        self._reward = load_verifier(verifier, settings)
        self._failed_reward = failed_reward
        self.asks = self._reward.asks

    def judge(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Verdicts of (reference, response) pairs, in order."""
        return judge_items(self._reward, items, self._failed_reward) if items else []

    def close(self) -> None:
        """Do nothing: there is no process to end."""


class _Worker(PythonProcess):
    """One judging process (`tasks/judge_worker.py`)."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__("tasks.judge_worker", arguments)
        self._ready = False
        self.asks = Asks()

    def wait_until_ready(self) -> None:
        """Wait until the verifier is imported. Raises ConfigError when it cannot be."""
        if self._ready:
            return
        self.asks = Asks(*self.ready("judge", WORKER_START_LIMIT))
        self._ready = True


class JudgePool:
    """Worker processes that run one verifier, named by its import path 'module:function'."""

    def __init__(
        self,
        verifier: str,
        *,
        workers: int,
        limit: float,
        memory_gib: float,
        failed_reward: float = 0.0,
        settings: str | None = None,
        patience: float | None = None,
    ) -> None:
        """`limit`: seconds of processor time per verdict; `patience`: on the wall clock, by default PATIENCE x limit.
        `memory_gib`: of a worker, 0 for no bound. `settings`: if given, the function returns the verifier for them."""
        self._limit, self._patience = limit, patience or PATIENCE * limit
        self._failed_reward = failed_reward
        self._arguments = [verifier, str(limit), str(self._patience), str(memory_gib), str(failed_reward)]
        self._arguments += [] if settings is None else [settings]
        self._workers = [_Worker(self._arguments) for _ in range(workers)]  # they import while the caller continues
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="judge")
        self.replaced = 0  # workers killed or lost so far
        self.asks = Asks()  # what the verifier asks for, once it is ready
        self._closed = False

    def wait_until_ready(self) -> None:
        """Wait until every worker has imported the verifier. If it cannot be imported, close and raise ConfigError."""
        try:
            for worker in self._workers:
                worker.wait_until_ready()
                self.asks = worker.asks
        except ConfigError:
            self.close()
            raise

    def judge(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Verdicts of (reference, response) pairs, in order. Raises ConfigError when the verifier cannot be imported,
        ActorError when a lost worker cannot be replaced."""
        size = max(1, -(-len(items) // len(self._workers)))
        size = size if self.asks.batch else min(CHUNK, size)
        begins = iter(range(0, len(items), size))  # the threads share it
        verdicts: dict[int, list[Verdict]] = {}

        def _drain(number: int) -> None:
            for begin in begins:
                verdicts[begin] = self._judge_chunk(number, items[begin : begin + size])

        list(self._threads.map(_drain, range(len(self._workers))))
        return [verdict for begin in sorted(verdicts) for verdict in verdicts[begin]]

    def _judge_chunk(self, number: int, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Judge on one worker. When it hangs or dies, its item fails and a new worker gets the remaining items. If all
        were judged in one call, nobody knows which item it was: then each gets a call of its own."""
        done: list[Verdict] = []
        size = len(items)
        while len(done) < len(items):
            worker = self._worker(number)
            part = items[len(done) : len(done) + size]
            seconds = seconds_of(len(part), self._limit, self._patience) if worker.asks.batch else self._patience
            detail = f"judge timed out after {seconds:g} s"
            try:
                worker.send(json.dumps(part).encode() + b"\n", time.monotonic() + seconds)
                for _ in part:
                    self._check_open()
                    told = json.loads(worker.line(time.monotonic() + seconds))
                    reward, correct, detail, failed, share, steps = told
                    paid = tuple((end, of_step) for end, of_step in steps)
                    done.append(Verdict(reward, correct, detail, failed, paid, share=share))
                continue
            except TimeoutError:
                pass
            except EOFError:
                ending = worker.ending()
                used_up = f"judge timed out after {self._limit:g} s of processor time"
                detail = f"judge crashed: {ending}" if ending else used_up
            if worker.asks.batch and len(part) > 1:
                size = 1
            else:
                done.append(Verdict(self._failed_reward, False, detail, judge_failed=True))
            self._replace(number)
        return done

    def _worker(self, number: int) -> _Worker:
        try:
            self._workers[number].wait_until_ready()
        except ConfigError as error:
            self._check_open()
            if not self.replaced:
                raise
            raise ActorError(f"a judging worker died and cannot be restarted: {error}") from None
        return self._workers[number]

    def _check_open(self) -> None:
        if self._closed:  # never return fewer verdicts than items
            raise ActorError("the judges were closed during a call of judge")

    def _replace(self, number: int) -> None:
        self._check_open()
        self._workers[number].kill()
        self._workers[number] = _Worker(self._arguments)
        if self._closed:  # `close` ran in between and did not see the new worker
            self._workers[number].stop()
        self.replaced += 1

    def close(self) -> None:
        """End all workers at once, also during a call of `judge` whose caller was interrupted."""
        self._closed = True
        for worker in self._workers:
            worker.stop()
        self._threads.shutdown(wait=True)
        for worker in self._workers:
            worker.kill()


class EpisodeJudge:
    """The verdict of an environment: its last reward, and whether the episode is a success. The rewards of earlier
    turns are those of steps."""

    def verdict(self, trajectory: Trajectory) -> Verdict:
        """Of an episode."""
        episode = trajectory.episode
        assert episode is not None
        last = sum(reward for at, reward in episode.rewards if at == trajectory.tokens.size - 1)
        return Verdict(last, episode.succeeded, episode.detail)

    def judge(self, items: Sequence[tuple[str, str]]) -> list[Verdict]:
        """Nothing but an episode can be judged."""
        raise NotImplementedError

    def close(self) -> None:
        """Do nothing: there is no process to end."""


Judges = JudgePool | LocalJudge | Rewards | RewardJudge | LanguageJudge | EpisodeJudge
"""Judges responses: `judge` returns a verdict for each (reference, response) pair, `close` ends its processes."""


def start_judges(config: TaskConfig, reward_model: RewardModelConfig | None = None, *, check: bool = False) -> Judges:
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
            judge: PairJudge
            if each.remote:
                timeout, workers = PATIENCE * config.judge_timeout, max(1, config.judge_workers)
                judge = RemoteReward(each.name, timeout=timeout, concurrency=workers)
            else:
                try:  # the user's code: report an error now, not after the first rollouts
                    judge = _task_judges(config) if each.name == "task" else _verifier_judges(config, each.name)
                    if isinstance(judge, JudgePool):
                        judge.wait_until_ready()
                except ConfigError as error:
                    raise ConfigError(f"task.reward: {error}") from None
            started.callback(judge.close)
            parts.append(Part(each.title, each.weight, judge))
        started.pop_all()
    return Rewards(parts)


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


def check_judges(config: TaskConfig, items: Sequence[Item], reward_model: RewardModelConfig | None = None) -> str:
    """Judge the shortest problems with their canonical solution and an empty response, then the canonical solutions.
    Returns a line for each of the user's own rewards, and one that says how many solutions are wrong. Raises
    ConfigError when the judge raises, hangs, crashes or returns no finite number on the shortest problems, DataError
    when a built-in verifier finds all solutions wrong."""
    if find_kind(config.name).episodes and not config.own_rewards:
        return "judge: the environment"
    workers = {"judge_workers": max(1, config.judge_workers)}  # in this process nothing would end what hangs
    with closing(start_judges(config.model_copy(update=workers), reward_model, check=True)) as judges:
        _probe(config, items, judges)
        solved = [item for item in items if item.solution is not None]
        return "\n".join([*_own_lines(solved, judges), _check_solutions(config, solved, judges)])


def probe_reward(config: TaskConfig, items: Sequence[Item]) -> None:
    """The first half of `check_judges` for the user's own reward, in one judging process. Raises ConfigError."""
    with closing(start_judges(config.model_copy(update={"judge_workers": 1}), check=True)) as judges:
        _probe(config, items, judges)


def _judged(items: Sequence[tuple[Item, str]], judges: Judges) -> list[Verdict]:
    """Verdicts of (item, response) pairs."""
    if not isinstance(judges, Rewards):
        return judges.judge([(item.reference, response) for item, response in items])
    return judges.judge_cases([_case(item, response, judges) for item, response in items])


def _case(item: Item, response: str, judges: Rewards) -> Case:
    text, columns = item.form.text(item.prompt), item.kept(judges.asks)
    return Case(item.reference, response, item.where, columns, text=text, query=text + response)


def _probe(config: TaskConfig, items: Sequence[Item], judges: Judges) -> None:
    shortest = nsmallest(PROBED, items, key=lambda item: len(item.prompt) + len(item.solution or ""))
    probes = [(item, text) for item in shortest for text in {item.solution or "", ""}]
    verdicts = (_judged([probe], judges)[0] for probe in probes)  # one by one, to stop at the first failure
    failed = next((verdict for verdict in verdicts if verdict.judge_failed), None)
    if failed is not None:
        name = f"task {config.name}"
        if config.own_rewards:
            name = f"task.reward = {', '.join(each.name for each in config.own_rewards)}"
        raise ConfigError(f"{name}: {failed.detail} (on one of the shortest problems); fix the reward function")


def _own_lines(solved: Sequence[Item], judges: Judges) -> list[str]:
    if not isinstance(judges, Rewards):
        return []
    return judges.describe(_case(solved[0], solved[0].solution or "", judges) if solved else None)


def _check_solutions(config: TaskConfig, solved: Sequence[Item], judges: Judges) -> str:
    if not solved:
        return "canonical solutions: none"
    if judged_by_model(config):  # a reward model's score is neither right nor wrong
        return f"canonical solutions: {len(solved)}"
    if config.own_rewards or find_kind(config.name).runs_programs:
        solved = solved[:: -(-len(solved) // SLOW)]
    verdicts = _judged([(item, item.solution or "") for item in solved], judges)
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
