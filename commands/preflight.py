"""The checks before anything expensive. Invariant: no actor is started and no model is built."""

from actors.options import check_options, check_sampling_values, check_training_options
from core.config import ClusterConfig, Config, every_source
from core.machine import this_machine
from core.plan import Resources, check_machine, choose_device
from core.run_directory import check_root
from core.seeds import derive
from core.startup import check_reachable
from monitor.trackers import check_trackers
from tasks.judging import probe_reward
from tasks.kinds import check_trained, rollout_settings, task_items
from trainer.build import check_methods
from trainer.mirror import open_store
from trainer.model.files import check_place


def preflight(config: Config, *, local: bool = False, offline: bool = False) -> None:
    """All checks but the model's. `offline`: of the configuration alone. Raises a RetrospectError."""
    check_configuration(config)
    check_training_options(config)
    if not offline:
        check_surroundings(config, local)
        check_data(config)


def check_configuration(config: Config) -> None:
    """Check the engines' options, and try what a user adds in Python. Raises ConfigError."""
    device = choose_device(config.cluster, lambda: this_machine().gpus > 0)
    check_options(rollout_settings(config.rollout, config.task), device)
    check_methods(config)


def check_surroundings(config: Config, local: bool = False) -> None:
    """Check this machine, the cluster and other servers. Raises ConfigError, ClusterError, ModelError."""
    check_root(config.run.root)
    check_trackers(config)
    if config.learner.value_path:
        check_place(config.learner.value_path, "learner.value_path")
    if config.run.mirror:
        open_store(config.run.mirror)
    from trainer.cluster import joins

    if not local:
        check_reachable(config.cluster)
    if local or not joins(config.cluster):
        machine = this_machine()
        check_machine(config, machine, choose_device(config.cluster, lambda: machine.gpus > 0))
    if options := config.rollout.sampling_options:
        check_sampling_values(options, config.rollout.max_response_tokens)


def check_data(config: Config) -> None:
    """Read the evaluation sets, and try the user's own rewards on a few problems. Raises ConfigError, DataError."""
    check_trained(config.task)
    sources = [source for source in every_source(config.task) if source.config.own_rewards]
    if sources or config.task.eval_sets:
        items = task_items(config.task, derive(config.run.seed, "task"))
        for label, _, source in sources:
            of_source = [item for item in (*items.train, *items.evaluation, *items.sets) if item.source == label]
            probe_reward(source, of_source)


def cluster_resources(cluster: ClusterConfig) -> Resources:
    """The resources of the running cluster that a run would join, else of this machine."""
    from trainer.cluster import attached_resources, joins

    if joins(cluster):
        return attached_resources(cluster)
    machine = this_machine()
    return Resources(cpus=float(machine.cores), gpus=float(machine.gpus))
