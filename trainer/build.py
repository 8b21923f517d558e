"""Starting and stopping the parts of a run: store, rollout pool, learner.

Called by `launch.py`. The engine adapters are imported here and not above, so that bad input is found without them.
Invariant: whatever has been started is stopped when the block is left, however it is left.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from core.config import Config, Device
from core.plan import BatchPlan, transport
from core.records import Start
from core.run_directory import RunDirectory, quarantine
from core.sampling import Sampling
from core.seeds import derive
from trainer.evaluation import EvaluationPlan
from trainer.loop import Parts, Rollouts, Settings
from trainer.preflight import inspect_model

logger = logging.getLogger("retrospect.build")

if TYPE_CHECKING:
    from actors.local import LocalPool
    from actors.pool import RolloutPool
    from actors.stream import RolloutStream
    from learner.group import LearnerGroup
    from tasks.task import Task
    from trainer.asynchronous import Pipeline


def training_sampling(config: Config) -> Sampling:
    """How training rollouts are drawn."""
    rollout = config.rollout
    return Sampling(
        rollout.temperature,
        rollout.top_p,
        rollout.max_response_tokens,
        rollout.repetition_tokens,
        rollout.repetition_times,
    )


def evaluation_plan(config: Config) -> EvaluationPlan:
    """How evaluation responses are drawn."""
    rollout, evaluation = config.rollout, config.evaluation
    greedy = Sampling(0.0, 1.0, rollout.max_response_tokens, rollout.repetition_tokens, rollout.repetition_times)
    sampled = replace(greedy, temperature=evaluation.temperature, top_p=evaluation.top_p)
    return EvaluationPlan(greedy, sampled, evaluation.samples)


def settings(config: Config, plan: BatchPlan) -> Settings:
    """The numbers of an iteration."""
    from replay.rankings import RANKINGS

    return Settings(
        seed=config.run.seed,
        starts=plan.starts,
        replayed=plan.replayed_starts,
        start_states=config.replay.start_states,
        samples=config.rollout.samples,
        sampling=training_sampling(config),
        canonical=config.replay.canonical,
        chains=RANKINGS[config.replay.ranking].chains,
        refresh=config.replay.refresh if RANKINGS[config.replay.ranking].needs_values else 0,
        beside=not config.rollout.sleep,
        probe_sequences=config.learner.probe_sequences,
    )


def name_start(start: Start, reason: str) -> None:
    """Say which start no engine can generate."""
    logger.error("start %s of problem %s is left out: %s", start.id, start.problem_id, reason)


@contextmanager
def rollout_pool(
    config: Config,
    model: str,
    device: Device,
    local: bool = False,
    quarantine: Callable[[Start, str], None] = name_start,
) -> Iterator["RolloutPool | LocalPool"]:
    """The engines alone, as evaluation needs them. `local`: one, in this process. `quarantine` is told which starts the others
    cannot generate.
    """
    pool = local_pool(config, model, device) if local else ray_pool(config, model, device, quarantine)
    try:
        yield pool
    finally:
        pool.close()


def ray_pool(config: Config, model: str, device: Device, quarantine: Callable[[Start, str], None]) -> "RolloutPool":
    """Engines in Ray actors."""
    from actors.pool import RolloutPool

    return RolloutPool(
        model,
        config.rollout,
        dtype=config.model.dtype,
        device=device,
        seed=derive(config.run.seed, "engine"),
        cpus=config.cluster.rollout_cpus,
        quarantine=quarantine,
    )


def local_pool(config: Config, model: str, device: Device) -> "LocalPool":
    """One engine in this process."""
    from actors.engines import build_engine
    from actors.local import NAME, LocalPool

    seed = derive(config.run.seed, "engine")
    engine = build_engine(model, config.rollout, dtype=config.model.dtype, device=device, seed=seed, name=NAME)
    return LocalPool(engine, config.rollout)


@contextmanager
def learner_group(
    config: Config, model: str, device: Device, plan: BatchPlan, local: bool = False
) -> Iterator["LearnerGroup"]:
    """The DeepSpeed learner. `local`: one rank, in this process."""
    from core.transport import GroupSender, HandleSender
    from learner.group import LearnerGroup

    senders = {"object_store": None, "collective": GroupSender, "ipc": HandleSender}

    group = LearnerGroup(
        model,
        config.learner,
        config.algorithm,
        dtype=config.model.dtype,
        device=device,
        temperature=config.rollout.temperature,
        total_steps=plan.total_steps,
        seed=derive(config.run.seed, "learner"),
        cpus=config.cluster.learner_cpus,
        gpus=config.cluster.learner_gpus,
        local=local,
        sender=senders[transport(config, device)],
    )
    try:
        yield group
    finally:
        group.close()


def engines_and_learner(
    config: Config, plan: BatchPlan, run: RunDirectory, model: str, device: Device, local: bool, stack: ExitStack
) -> "tuple[RolloutPool | LocalPool, LearnerGroup]":
    """Both, side by side: each spends most of its time importing. In one process the learner must come first: it sets the
    number of threads and the process group, which vLLM would not let it do later.
    """
    pool = rollout_pool(config, model, device, local, partial(quarantine, run))
    group = learner_group(config, model, device, plan, local)
    if local:
        learner = stack.enter_context(group)
        return stack.enter_context(pool), learner
    with ThreadPoolExecutor(2) as starters:
        pool_starting = starters.submit(stack.enter_context, pool)
        group_starting = starters.submit(stack.enter_context, group)
    return pool_starting.result(), group_starting.result()


def asynchronous(config: Config, pool: "RolloutPool", stack: ExitStack) -> "tuple[RolloutStream, Pipeline]":
    """The pool on a thread of its own, and what it is fed from."""
    from actors.stream import streaming
    from trainer.asynchronous import Pipeline

    stream = stack.enter_context(streaming(pool))
    return stream, Pipeline(
        stream,
        training_sampling(config),
        starts=config.rollout.starts,
        max_staleness=config.rollout.max_staleness,
        iterations=config.run.iterations,
    )


@contextmanager
def parts(
    config: Config,
    plan: BatchPlan,
    run: RunDirectory,
    task: "Task",
    model: str,
    device: Device,
    *,
    local: bool = False,
) -> Iterator[Parts]:
    """All parts of a training run; `local`: all of them in this process."""
    from replay.boundaries import TokenTable, boundaries
    from replay.store import ReplayStore
    from tasks.sampling import problem_sampler

    with ExitStack() as stack:
        store = ReplayStore(  # first: files that cannot be written must not cost the start of the engines
            config.replay,
            vocabulary=max(len(task.tokenizer), inspect_model(model).vocabulary),  # engines sample unused rows too
            directory=run.replay,
            fingerprint=task.fingerprint,
            local=local,
        )
        stack.callback(store.close)
        pool, learner = engines_and_learner(config, plan, run, model, device, local, stack)
        actors: Rollouts = pool
        pipeline = None
        if config.rollout.max_staleness:
            actors, pipeline = asynchronous(config, cast("RolloutPool", pool), stack)
        yield Parts(
            task=task,
            problems=problem_sampler(config.task.sampling, task.train, derive(config.run.seed, "problems")),
            by_id={problem.id: problem for problem in task.train},
            replay=store,
            actors=actors,
            pipeline=pipeline,
            learner=learner,
            cut=partial(
                boundaries,
                table=TokenTable.from_tokenizer(task.tokenizer),
                rule=config.replay.boundary,
                stride=config.replay.stride,
            ),
        )
