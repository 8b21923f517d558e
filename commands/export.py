"""`launch.py export`: writes a run's policy with curves and a model card into a folder, or uploads them."""

import shutil
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from core.config import Config, Source, evaluation_sets, task_sources
from core.errors import ConfigError, ModelError, first_line
from core.load import load_config
from core.plan import describe_imitation
from core.run_directory import RunDirectory
from monitor.report import draw_curves
from monitor.run_files import read_run
from trainer.checkpoint import saved
from trainer.evaluation.files import read_evaluations
from trainer.evaluation.table import evaluation_table
from trainer.model.files import HUB_NAME, model_of

HUB = "hub:"


def export_run(options: Namespace) -> int:
    """Export the newest policy of a run to `--to FOLDER` or `--to hub:OWNER/NAME`. Raises CheckpointError without a run
    or a checkpoint, ConfigError for a folder that is not empty, ModelError when the upload fails."""
    run, target = RunDirectory.open(options.run), options.to
    if not target.startswith(HUB):
        folder = Path(target).expanduser()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"--to {target}: not an empty folder; name a new one, or {HUB}OWNER/NAME")
        write_export(run, folder)
        print(f"exported to {folder.resolve()}")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        write_export(run, Path(temporary))
        print(f"uploaded to {upload(Path(temporary), target.removeprefix(HUB), private=not options.public)}")
    return 0


def write_export(run: RunDirectory, folder: Path) -> None:
    """Write model, tokenizer, config.yaml, metrics.jsonl, curves.png and README.md (the model card) into `folder`."""
    config, item = load_config(run.config), read_run(run)
    shutil.copytree(model_of(run.path), folder, dirs_exist_ok=True)
    draw_curves(item)
    for path in (run.config, run.metrics, run.curves):
        shutil.copy(path, folder)
    iteration = saved(run) or item.metrics[-1].iteration
    (folder / "README.md").write_text(model_card(config, run, iteration), encoding="utf-8")


def model_card(config: Config, run: RunDirectory, iteration: int) -> str:
    """The text of the model card: base model, data, recipe, results, curves, and how the run is repeated. `iteration`:
    of the policy."""
    data = "; ".join(_data(source) for source in task_sources(config.task))
    hub = sorted({source.config.path for source in task_sources(config.task) if on_hub(source.config.path)})
    head: dict[str, object] = {
        "library_name": "transformers",
        "tags": ["reinforcement-learning", "ppo", *(["retrospective-replay"] if config.replay.ratio else [])],
        **({"base_model": config.model.path} if on_hub(config.model.path) else {}),
        **({"datasets": [name.partition(":")[0] for name in hub]} if hub else {}),
    }
    evaluations = [line for line in read_evaluations(run.evaluations) if line["iteration"] <= iteration]
    rows = [
        f"| {line['iteration']} | {100 * line['success']:.1f} % | {100 * line['low']:.1f} to {100 * line['high']:.1f} "
        f"% | {line['problems']} |"
        for line in evaluations
    ]
    table = ["| iteration | success | 95 % interval | problems |", "|---|---|---|---|", *rows]
    learner, rank = config.learner, config.learner.lora_rank
    trained = (
        f"LoRA of rank {rank}, alpha {learner.lora_alpha}; the adapters are in `adapter`" if rank else "all weights"
    )
    share = config.replay.ratio
    replayed = f"replay share {share:g} (ranking `{config.replay.ranking}`)" if share else "no replay"
    paper = " with retrospective replay (arXiv 2504.14363)" if share else ""
    recipe = (
        f"{config.algorithm.estimator}, {config.run.iterations} iterations of {config.rollout.starts} starts x "
        f"{config.rollout.samples} samples, {trained}, learning rate {learner.policy_lr:g}, {replayed}, "
        f"{describe_imitation(config.replay)}, seed {config.run.seed}."
    )
    sections = [
        "---\n" + yaml.safe_dump(head, sort_keys=True) + "---",
        f"# {run.name}",
        f"A policy that Retrospect trained from `{config.model.path}` by reinforcement learning{paper}, "
        f"after iteration {iteration}.",
        f"**Data.** {data}.",
        f"**Recipe.** {recipe} Every setting is in `config.yaml`.",
        "**Results.** Success on held-out problems, greedy, from the prompt:",
        "\n".join(table),
        *_sets(config, evaluations),
        "![curves](curves.png)",
        "**Again:** `python launch.py train --config config.yaml`",
    ]
    return "\n\n".join(sections) + "\n"


def on_hub(path: str) -> bool:
    """Whether a model or data set is named as on the hub ('owner/name', 'owner/name:subset'), and is no file here."""
    name = path.partition(":")[0]
    return "/" in name and HUB_NAME.fullmatch(name) is not None and not Path(path).exists()


def _data(source: Source) -> str:
    return f"{source.config.path or 'generated'}, task `{source.config.name}`"


def _sets(config: Config, evaluations: Sequence[Mapping[str, Any]]) -> list[str]:
    """The newest evaluation by data set, level and evaluation set, if there are evaluation sets."""
    if not (evaluations and evaluations[-1].get("sets")):
        return []
    data = "; ".join(f"{source.label}: {_data(source)}" for source in evaluation_sets(config.task))
    lines = "\n".join(evaluation_table(evaluations[-1]))
    return [f"After iteration {evaluations[-1]['iteration']}, with evaluation sets ({data}):", f"```\n{lines}\n```"]


def upload(folder: Path, name: str, private: bool) -> str:
    """Upload `folder` to the model repository `name`, made if need be; returns its address. Raises ModelError, and
    ConfigError for a repository that is to be `private` and is public."""
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        if private and not hub.repo_info(name).private:
            raise ConfigError(f"--to {HUB}{name}: this repository is public; add --public, or name another")
        commit = hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Export from Retrospect")
    except ConfigError:
        raise
    except Exception as error:  # the hub client raises many unrelated types
        raise ModelError(
            f"--to {HUB}{name}: upload failed: {first_line(error)}; log in with `hf auth login`, or name a folder"
        ) from None
    return str(commit.repo_url)
