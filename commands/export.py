"""`launch.py export`: writes a run's policy with curves and a model card into a folder, or uploads them."""

import shutil
import tempfile
from argparse import Namespace
from pathlib import Path

import yaml

from core.config import Config, task_sources
from core.errors import ConfigError, ModelError, first_line
from core.load import load_config
from core.run_directory import RunDirectory, read_jsonl
from monitor.report import draw_curves
from monitor.run_files import read_run
from trainer.model.files import model_of

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
    config = load_config(run.config)
    shutil.copytree(model_of(run.path), folder, dirs_exist_ok=True)
    draw_curves(read_run(run))
    for path in (run.config, run.metrics, run.curves):
        shutil.copy(path, folder)
    (folder / "README.md").write_text(model_card(config, run), encoding="utf-8")


def model_card(config: Config, run: RunDirectory) -> str:
    """The text of the model card: base model, data, method, held-out success, curves, and how the run is repeated."""
    parts = [source.config for source in task_sources(config.task)]
    data = "; ".join(f"{part.path or f'generated ({part.name})'}, task `{part.name}`" for part in parts)
    head = {"library_name": "transformers", "tags": ["reinforcement-learning", "ppo", "retrospective-replay"]}
    if config.model.path != "starter" and not Path(config.model.path).exists():
        head["base_model"] = config.model.path
    rows = [
        f"| {line['iteration']} | {100 * line['success']:.1f} % | {100 * line['low']:.1f} to {100 * line['high']:.1f} "
        f"% | {line['problems']} |"
        for line in read_jsonl(run.evaluations)
    ]
    table = ["| iteration | success | 95 % interval | problems |", "|---|---|---|---|", *rows]
    method = (
        f"Trained with {config.algorithm.estimator} for {config.run.iterations} iterations of {config.rollout.starts} "
        f"starts x {config.rollout.samples} samples; replay share {config.replay.ratio}, "
        f"ranking `{config.replay.ranking}`."
    )
    sections = [
        "---\n" + yaml.safe_dump(head, sort_keys=True) + "---",
        f"# {run.name}",
        "A policy that Retrospect (PPO with retrospective replay, arXiv 2504.14363) trained from "
        f"`{config.model.path}`.",
        f"**Data.** {data}.",
        f"**Method.** {method} Every setting is in `config.yaml`.",
        "**Success on held-out problems**, greedy, from the prompt:",
        "\n".join(table),
        "![curves](curves.png)",
        "**Again:** `python launch.py train --config config.yaml`",
    ]
    return "\n\n".join(sections) + "\n"


def upload(folder: Path, name: str, private: bool) -> str:
    """Upload `folder` to the model repository `name`, made if need be; returns its address. Raises ModelError."""
    from huggingface_hub import HfApi

    hub = HfApi()
    try:
        hub.create_repo(name, private=private, exist_ok=True)
        found = hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Export from Retrospect")
    except Exception as error:  # the hub client raises many unrelated types
        raise ModelError(
            f"--to {HUB}{name}: upload failed: {first_line(error)}; log in with `hf auth login`, or name a folder"
        ) from None
    return str(found.repo_url)
