"""Builds the components of a run. Engines are imported inside the functions, so that bad input is reported before vLLM
and DeepSpeed load. Invariant: each context manager stops what it has started, also after an error."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from core.config import Config, Device, ReplayConfig, ResolvedConfig
from core.environments.protocol import load_environment
from core.environments.served import load_agent
from core.errors import ConfigError
from core.imports import imported
from core.machine import this_machine
from core.parts.sources import Progress, StartSource
from core.plan import (
    Bundle,
    batch_plan,
    check_context,
    check_machine,
    colocated,
    gpus_each,
    placement,
    transport,
)
from core.records import Boundaries, Problem, Sampling, Start
from core.run_directory import RunDirectory, quarantine
from core.seeds import derive
from core.startup import without_gc
from replay.coverage import Coverage
from replay.errors import Errors
from replay.imitation import Imitation, discoveries, own_successes
from replay.source import Cutting, Replay
from trainer.asynchronous import AsynchronousEngines
from trainer.engines import SynchronousEngines
from trainer.evaluation.scores import EvaluationPlan
from trainer.model.automatic import Note, expected_device, resolved
from trainer.model.estimates import check_memory, iteration_estimate, warnings_of
from trainer.model.files import ModelInfo, check_judging_model, describe_data, inspect_model, load_task, resolve_model
from trainer.model.gguf import model_folder
from trainer.model.gpus import describe_gpus, planned_gpus
from trainer.model.needs import check_needs, critic, methods
from trainer.run import Run, Sources

if TYPE_CHECKING:
    from actors.local import LocalPool
    from actors.pool import RolloutPool
    from core.parts.engines import Engines
    from learner.credit import Algorithm
    from learner.group import LearnerGroup
    from replay.store.store import ReplayStore
    from tasks.problems import Tokenizer
    from tasks.task import Task
    from trainer.run import Pool

logger = logging.getLogger("retrospect.build")
REFRESHED = 256  # stale values that the critic recomputes per iteration, highest priority first


@dataclass(frozen=True, slots=True)
class ModelAndTask:
    """The checked model and task of a run."""

    model: str  # Hugging Face directory or name
    task: Task
    config: ResolvedConfig


def evaluation_plan(config: ResolvedConfig) -> EvaluationPlan:
    """How evaluation responses are sampled."""
    evaluation = config.evaluation
    sampled = _sampling(config, evaluation.temperature, 1.0)
    greedy = replace(sampled, temperature=0.0, top_p=1.0)
    return EvaluationPlan(greedy, sampled, evaluation.samples, derive(config.run.seed, "evaluation"))


def _sampling(config: ResolvedConfig, temperature: float, top_p: float) -> Sampling:
    own = config.rollout
    return Sampling(temperature, top_p, own.max_response_tokens)


def check_methods(config: Config) -> None:
    """Find the environment, try estimator, policy loss and ranking on examples, and check their needs. Raises
    ConfigError."""
    from learner.methods import check_estimator, check_policy_loss
    from replay.rankings.find import check_ranking
    from tasks.kinds import rollout_settings

    algorithm = config.algorithm
    rollout = rollout_settings(config.rollout, config.task)
    if rollout.environment == "served":
        load_agent(str(rollout.environment_options.get("agent", "")))
    elif rollout.environment:
        load_environment(rollout.environment)
    check_estimator(algorithm.estimator)
    check_policy_loss(algorithm.policy_loss, algorithm.clip_low, algorithm.clip_high, algorithm.dual_clip)
    check_ranking(config.replay)
    for path in config.rollout.sources:
        own_source(path)
    check_needs(config)


def find_model(config: Config) -> str:
    """The directory or name of the model; a starter is built if need be. Raises ModelError, DataError, ConfigError."""
    path = model_folder(config.model.path, "model.path")
    return resolve_model(path, config.task, config.run.seed)


def open_model_and_task(config: Config, training: bool = True) -> AbstractContextManager[ModelAndTask]:
    """Find or build the model, check it, and load the task. Raises ModelError, DataError, ConfigError."""
    return open_task(config, find_model(config), training)


@contextmanager
def open_task(config: Config, model: str, training: bool = True) -> Iterator[ModelAndTask]:
    """Check the model, load the task, and choose what is `auto`. Raises ModelError, DataError, ConfigError."""
    with without_gc():
        task, info = load_task(config, model)
    with closing(task):
        chosen_config, notes = chosen(config, task, info, training)
        print(*(note.text for note in notes if training or note.audience == "everyone"), sep="\n", flush=True)
        yield ModelAndTask(model, task, chosen_config)


def chosen(config: Config, task: Task, info: ModelInfo, training: bool = True) -> tuple[ResolvedConfig, list[Note]]:
    """The configuration without `auto`, and notes about it. Raises ConfigError when the sizes contradict each other."""
    from tasks.kinds import prompt_warnings
    from trainer.cluster import joins

    if training:
        check_solutions(config.replay, (problem.solution_ids for problem in task.train))
    machine = this_machine()
    device = expected_device(config.cluster)
    chosen_config, notes = resolved(config, info, task.limits, task.left_out.solutions, machine, device)
    check_context(chosen_config, info.context)
    check_judging_model(chosen_config)
    memory = (config.cluster.gpu_memory or machine.gpu_memory) if device == "cuda" else 0.0
    chosen_config = planned_gpus(config, chosen_config, info, critic(chosen_config), memory, training)
    if not joins(chosen_config.cluster):
        check_machine(chosen_config, machine, device)
        if training and device == "cpu":
            check_memory(chosen_config, info, critic(chosen_config), machine.memory)
    of_data = map(Note, [describe_data(task), *prompt_warnings(chosen_config.task, task.first_prompt)])
    estimate = Note(iteration_estimate(chosen_config, info, device, critic(chosen_config)), "training")
    plan = [Note(describe_gpus(chosen_config, info, critic(chosen_config), memory), "training")] if memory else []
    return chosen_config, [*of_data, *notes, *warnings_of(chosen_config, task.left_out), estimate, *plan]


def check_solutions(config: ReplayConfig, solutions: Iterable[object]) -> None:
    """Raises ConfigError when canonical solutions are to be replayed, and no training problem has one that fits."""
    if config.ratio and config.canonical and all(solution is None for solution in solutions):
        raise ConfigError(
            "replay.canonical is true, but no training problem has a canonical solution within "
            "rollout.max_response_tokens; set task.columns.solution, raise the bound, or set replay.canonical false"
        )


def connected(
    config: Config, name: str, local: bool, needs: Callable[[Config, str], tuple[Bundle, ...]] = placement
) -> AbstractContextManager[Device]:
    """Connect to a Ray cluster with room for the run's processes; `local`: use this process. Yields the device."""
    if local:
        return nullcontext(cast(Device, config.cluster.device))  # chosen by `single_process`
    from trainer.cluster import connect

    return connect(config, name, needs)


@contextmanager
def opened(
    directory: RunDirectory,
    ready: ModelAndTask,
    device: Device,
    *,
    local: bool = False,
    ready_part: Callable[[str], None] = lambda _: None,
) -> Iterator[Run]:
    """Start store, engines and learner. `local`: in this process. `ready_part` is told "engines", "learner"."""
    config, task = ready.config, ready.task
    problems = {problem.id: problem for problem in task.train}
    shutil.rmtree(directory.replay, ignore_errors=True)  # a resumed run restores the store from its checkpoint
    with ExitStack() as stack:
        store = _store(config, ready, directory, local)  # first: a file error is reported before the engines start
        if store is not None:
            stack.callback(store.close)
        start_engines = partial(engine_pool, config, ready.model, device, local, partial(quarantine, directory))
        start_learner = partial(_learner, config, ready.model, device, local)
        in_turn = local or (device == "cuda" and colocated(config, device))
        pool, learner = _start_both(start_engines, start_learner, stack, ready_part, in_turn)
        pool, engines = stack.enter_context(_engines(config, pool))
        boundaries = step_ends(config, task)
        is_wrong = task.prefix_is_wrong if config.replay.exclude_wrong else None
        cutting = Cutting(boundaries, config.rollout.max_response_tokens, is_wrong)
        sources = _sources(config, task, problems, store, cutting, pool)
        stack.callback(sources.close)
        yield Run(
            begin=Progress(config.run.seed, 0, config.run.iterations, config.rollout.samples),
            task=task,
            problems=problems,
            sources=sources,
            engines=engines,
            pool=pool,
            algorithm=_algorithm(config, boundaries),
            learner=learner,
            resample=config.rollout.resample,
        )


def _store(config: ResolvedConfig, ready: ModelAndTask, directory: RunDirectory, local: bool) -> ReplayStore | None:
    """The replay store, if states are replayed."""
    from replay.store.store import ReplayStore

    if not config.replay.ratio:
        return None
    directory.replay.mkdir()
    return ReplayStore(
        config.replay,
        # engines sample unused ids too
        vocabulary=max(len(ready.task.tokenizer), inspect_model(ready.model).vocabulary),
        directory=directory.replay,
        fingerprint=ready.task.fingerprint,
        local=local,
    )


def _sources(
    config: ResolvedConfig,
    task: Task,
    problems: Mapping[str, Problem],
    store: ReplayStore | None,
    cutting: Cutting,
    pool: Pool,
) -> Sources:
    """The start sources: fresh problems, states if some are replayed, own successes if some are imitated, the user's.
    Coverage only observes, before those that read it."""
    from tasks.sampling import Fresh, problem_sampler

    seed = derive(config.run.seed, "problems")
    coverage = Coverage(len(problems))
    others: dict[str, StartSource] = {"coverage": coverage}
    if cutting.is_wrong is not None:
        others["errors"] = Errors(cutting.boundaries, cutting.is_wrong)
    reserved: Callable[[int, Progress], int] | None = None
    if store is not None:
        _, ranking = methods(config)
        values_count = ranking.values != "unused" and critic(config) != "none"
        refreshed = REFRESHED if values_count else 0
        if most := config.replay.discoveries:
            rule = partial(discoveries, coverage)
            others["discoveries"] = Imitation("discovered", most, rule, problems, cutting.is_wrong)
        others["replay"] = replay = Replay(config.replay, store, problems, coverage, cutting, refreshed, pool.take_lost)
        if not config.replay.fill:
            reserved = replay.wanted
    if most := config.replay.imitated:
        others["imitation"] = Imitation("imitated", most, own_successes, problems, cutting.is_wrong)
    for path in config.rollout.sources:
        others[path.replace(":", ".")] = own_source(path)(problems, task.tokenizer)
    fresh = Fresh(problem_sampler(config.task.sampling, task.train, seed, task.weights), task.fingerprint)
    return Sources(fresh, others, task.check_starts, reserved)


def own_source(path: str) -> Callable[[Mapping[str, Problem], Tokenizer], StartSource]:
    """A user's start source of `rollout.sources`; it is made with the training problems by id and the tokenizer. Raises
    ConfigError."""
    source_class = imported("rollout.sources", path)
    if not (isinstance(source_class, type) and issubclass(source_class, StartSource)):
        raise ConfigError(f"rollout.sources {path!r}: name a subclass of core.parts.sources.StartSource")
    made: Callable[[Mapping[str, Problem], Tokenizer], StartSource] = source_class
    return made


def step_ends(config: ResolvedConfig, task: Task) -> Boundaries:
    """Where a step of a response ends."""
    from replay.boundaries import TokenTable, boundaries, no_boundaries, remembered
    from tasks.kinds import rollout_settings

    if rollout_settings(config.rollout, config.task).environment:
        return no_boundaries
    table = TokenTable.from_tokenizer(task.tokenizer)
    return remembered(partial(boundaries, table=table, rule=config.replay.boundary, stride=config.replay.stride))


def _algorithm(config: ResolvedConfig, boundaries: Boundaries) -> Algorithm:
    from learner.credit import Algorithm

    weight = config.learner.value_coefficient if critic(config) == "shared" else 1.0
    longest, warmup = config.rollout.max_response_tokens, config.learner.critic_warmup
    return Algorithm(config.algorithm, longest, boundaries, weight, warmup)


@contextmanager
def _engines(config: ResolvedConfig, pool: Any) -> Iterator[tuple[Pool, Engines]]:
    """The engines for evaluation and weights, and for training: synchronous, or asynchronous in a thread."""
    sampling = _sampling(config, config.rollout.temperature, config.rollout.top_p)
    if not config.rollout.max_staleness:
        yield pool, SynchronousEngines(pool, sampling, config.rollout.starts)
        return
    from actors.stream import RolloutStream

    counts = {"starts": config.rollout.starts, "max_staleness": config.rollout.max_staleness}
    with closing(RolloutStream(pool)) as stream:
        yield stream, AsynchronousEngines(stream, sampling, **counts)


def _start_both(
    engines: Callable[[], Any],
    learner: Callable[[], Any],
    stack: ExitStack,
    ready: Callable[[str], None],
    in_turn: bool,
) -> tuple[Any, Any]:
    """Start engines and learner at the same time: each spends most of its time importing. `in_turn`: the learner first.
    In one process it sets the number of threads and the process group, which is impossible after vLLM. On a shared GPU
    vLLM measures what memory is left, and refuses to start if that grows meanwhile."""

    def _start(name: str, one: Callable[[], Any]) -> Any:
        started = stack.enter_context(closing(one()))
        ready(name)
        return started

    if in_turn:
        started = _start("learner", learner)
        return _start("engines", engines), started
    with ThreadPoolExecutor(2) as threads:
        pool, group = threads.submit(_start, "engines", engines), threads.submit(_start, "learner", learner)
    return pool.result(), group.result()


def _log_start(start: Start, reason: str) -> None:
    logger.error("start %s of problem %s is left out: %s", start.id, start.problem_id, reason)


def engine_pool(
    config: ResolvedConfig,
    model: str,
    device: Device,
    local: bool = False,
    quarantine: Callable[[Start, str], None] = _log_start,
) -> RolloutPool | LocalPool:
    """The engines, to be closed. `local`: one in this process. `quarantine` gets the starts that none can generate."""
    from tasks.kinds import rollout_settings

    seed = derive(config.run.seed, "engine")
    rollout = rollout_settings(config.rollout, config.task)
    if local:
        from actors.engines import build_engine
        from actors.local import NAME, LocalPool
        from actors.vllm_setup import keep_model_classes

        keep_model_classes()
        engine = build_engine(model, rollout, dtype=config.model.dtype, device=device, seed=seed, name=NAME)
        return LocalPool(engine, rollout, quarantine)
    from actors.handle import EngineSpec
    from actors.pool import RolloutPool

    cpus, gpus = config.cluster.rollout_cpus, gpus_each(config, device)[0]
    spec = EngineSpec(model, rollout, config.model.dtype, device, seed, cpus, gpus)
    return RolloutPool(spec, quarantine)


def _learner(config: ResolvedConfig, model: str, device: Device, local: bool) -> LearnerGroup:
    from core.transport import GroupSender, HandleSender
    from learner.group import LearnerGroup, LearnerSpec

    critic_path = model_folder(config.learner.value_path, "learner.value_path")
    senders = {"object_store": None, "collective": GroupSender, "ipc": HandleSender}
    spec = LearnerSpec(
        model,
        config.learner.model_copy(update={"value_model": critic(config), "value_path": critic_path}),
        config.algorithm,
        config.rollout.temperature,
        dtype=config.model.dtype,
        device=device,
        total_steps=batch_plan(config).total_steps,
        seed=derive(config.run.seed, "learner"),
        cpus=config.cluster.learner_cpus,
        gpus=gpus_each(config, device)[1],
        local=local,
        sender=senders[transport(config, device)],
        pairs=colocated(config, device),
    )
    return LearnerGroup(spec)
