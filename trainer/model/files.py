"""Finds the model at a path, and checks model, tokenizer and data before anything expensive starts."""

import json
import math
import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.config import Config, ResolvedRewardModel, TaskConfig
from core.errors import CheckpointError, ModelError, first_line
from core.plan import check_context, sequence_tokens
from core.run_directory import RunDirectory
from core.seeds import derive
from tasks.synthetic.starter import arithmetic_starter
from trainer import checkpoint
from trainer.model.fields import SIZES, wrong_field
from trainer.model.gguf import model_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tasks.task import Task

HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
NO_FOLDER = (
    "for a local folder give its path (./NAME); for a model with restricted access run `hf auth login`; without a "
    "connection download the model first and set HF_HUB_OFFLINE=1"
)
"""What helps when a model is no folder on this machine and was not found on the hub."""
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Properties of a model that a run needs."""

    architecture: str
    context: int  # tokens
    vocabulary: int  # rows of the embedding
    parameters: int
    dtype: str  # of the weights: float32 or bfloat16 (float16 counts as bfloat16, which has the larger range)
    layers: int
    hidden: int  # width
    intermediate: int  # width inside the feed-forward part
    key_value_width: int  # numbers of a token's keys in one layer, and of its values


def resolve_model(path: str, task: TaskConfig, seed: int) -> str:
    """The model to train: 'starter' is a directory in the cache, perhaps newly built; else a directory or hub name.
    Directories are absolute, because actors have another working directory. A hub name stays, because each node has its
    own cache. Raises ModelError for a directory or name that does not exist, ConfigError for the starter's task."""
    if path == "starter":
        return str(arithmetic_starter(task, seed))
    place = Path(path).expanduser()
    if place.is_dir():
        return str(place.resolve())
    if place.is_absolute() or path.startswith(".") or path.count("/") > 1:
        raise ModelError(f"model.path = {path}: no such directory; give a directory, a hub name or 'starter'")
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(path)
    except Exception as error:  # the hub client raises many unrelated types; all mean that there is no such model
        raise ModelError(
            f"model.path = {path}: neither a directory nor a model on the hub ({first_line(error)}); {NO_FOLDER}"
        ) from None
    return path


def run_of(target: Path) -> RunDirectory | None:
    """The run that `target` belongs to: a run directory, or a checkpoint or policy in it."""
    place = target.expanduser().resolve()
    for folder in (place, *place.parents[:3]):  # RUN/checkpoints/NNNNNN/policy is the deepest
        if (folder / "config.yaml").is_file() and (folder / "checkpoints").is_dir():
            return RunDirectory(folder)
    return None


def model_of(target: Path) -> str:
    """The Hugging Face directory of a run (its newest checkpoint's, else RUN/policy), a checkpoint, a model or a
    `.gguf` file; a name that is no path is a hub model. Raises CheckpointError when an existing path is none."""
    place = Path(model_folder(str(target))).expanduser().resolve()
    if (place / "config.yaml").is_file() and not (place / "config.json").is_file():  # an export has both
        run = RunDirectory(place)
        newest = run.checkpoints / f"{checkpoint.saved(run) or 0:06d}" / "policy"
        if newest.is_dir() or not run.policy.is_dir():
            return str(checkpoint.latest(run) / "policy")
        return str(run.policy)
    if (place / "progress.json").is_file():
        return str(place / "policy")
    if place.exists() and not (place / "config.json").is_file():
        raise CheckpointError(f"{target} is neither a run, nor a checkpoint, nor a model directory")
    return str(place) if place.exists() else str(target)


def load_task(config: Config, model: str) -> "tuple[Task, ModelInfo]":
    """Check a model and load the task, which the caller closes. Raises ModelError, DataError, ConfigError."""
    from actors.vllm_setup import stop_tokens
    from tasks.kinds import rollout_settings
    from tasks.task import build_task

    info = inspect_model(model)
    tokenizer = load_tokenizer(model, config.model.template_date)
    stop_tokens(model)  # the engines need them; raises ModelError
    check_vocabulary(model, info, tokenizer)
    check_context(config, info.context)
    check_value_model(model_folder(config.learner.value_path, "learner.value_path"), model)
    judging = check_judging_model(config) or info.context
    task = build_task(
        config.task,
        tokenizer,
        limits=(config.rollout.max_prompt_tokens, config.rollout.max_response_tokens),
        context=min(info.context, judging),
        seed=derive(config.run.seed, "task"),
        reward_model=located(config),
        rollout=rollout_settings(config.rollout, config.task),
        canonical=config.replay.canonical,
    )
    return task, info


def describe_data(task: "Task") -> str:
    """How many problems there are, and what was left out, in one line."""
    sets = "".join(f", {len(one.problems)} of {label}" for label, one in task.sets.items())
    counts = f"{len(task.train)} training problems, {len(task.evaluation)} evaluation problems{sets}"
    return f"data: {counts}; {task.left_out}"


def check_judging_model(config: Config) -> int | None:
    """The context of the task's reward model, if it has one. Raises ModelError when it is unusable or too short."""
    from tasks.dialogue.reward_model import check_reward_context
    from tasks.kinds import judged_by_model

    if not judged_by_model(config.task) or config.reward_model.judge.url:
        return None
    return check_reward_context(located(config).path, sequence_tokens(config.rollout))


def located(config: Config) -> ResolvedRewardModel:
    """The reward model with the directory that its path means."""
    settings = dict(config.reward_model)
    settings["path"] = model_of(Path(settings["path"]).expanduser()) if settings["path"] else ""
    return ResolvedRewardModel(**settings, template_date=config.model.template_date)


def load_tokenizer(path: str, template_date: date | None = None) -> "PreTrainedTokenizerBase":
    """The tokenizer of a model; its chat template writes this date, else today's. Raises ModelError when there is none
    or it has no end-of-sequence token."""
    from transformers import AutoTokenizer

    folder = Path(path)
    if folder.exists() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        # AutoTokenizer would make an empty tokenizer of the architecture's default kind
        raise ModelError(f"model.path = {path}: no tokenizer in it; save one there with tokenizer.save_pretrained")
    tokenizer = _read(AutoTokenizer, path, "model.path", "no tokenizer can be loaded")
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"model.path = {path}: the tokenizer has no end-of-sequence token; set eos_token in tokenizer_config.json"
        )
    try:
        tokenizer("a")
    except Exception as error:  # such as a text for a number in tokenizer_config.json
        raise ModelError(f"model.path = {path}: the tokenizer fails: {first_line(error)}") from None
    tokenizer.template_date = template_date
    return tokenizer


def _read(kind: Any, path: str, field: str, failure: str = "cannot read the model", **options: Any) -> Any:
    """Load `path` with the transformers class `kind`. Raises ModelError that names the configuration `field`."""
    from transformers import AutoConfig, PretrainedConfig

    check_place(path, field)
    try:
        wrong = wrong_field(PretrainedConfig.get_config_dict(path, **options)[0]) if kind is AutoConfig else ""
        if not wrong:
            return kind.from_pretrained(path, trust_remote_code=False, **options)
    except Exception as error:  # the readers raise many unrelated types; all mean that the files cannot be used
        remedy = "" if Path(path).exists() else f"; {NO_FOLDER}"
        raise ModelError(f"{field} = {path}: {failure}: {first_line(error)}{remedy}") from error
    raise ModelError(f"{field} = {path}: config.json: {wrong}")


def check_place(path: str, field: str) -> None:
    """Raises ModelError for a path that is neither there nor the form of a hub name."""
    place = Path(path).expanduser()
    for file in place.iterdir() if place.is_dir() else ():
        if not (file.is_file() or file.is_dir()):
            raise ModelError(f"{field} = {path}: {file.name} is a pipe, a device or a link to nothing, and no file")
    if not place.exists() and (place.is_symlink() or path.startswith((".", "~")) or not HUB_NAME.fullmatch(path)):
        raise ModelError(f"{field} = {path}: no such directory; give a model directory, or a hub name (owner/name)")


def inspect_model(path: str, field: str = "model.path", alone: bool = False) -> ModelInfo:
    """Read config.json of a model, which `field` names. `alone`: a folder needs no weights, and nothing is downloaded.
    Raises ModelError unless it is a causal language model."""
    from transformers import AutoConfig

    folder = Path(path)
    if folder.exists() and not folder.joinpath("config.json").is_file():
        raise ModelError(
            f"{field} = {path}: no config.json in it; name a directory saved with save_pretrained, or 'starter'"
        )
    config = _read(AutoConfig, path, field, "cannot read config.json", local_files_only=alone)
    architecture = (getattr(config, "architectures", None) or [""])[0]
    if architecture not in causal_language_models():
        raise ModelError(f"{field} = {path}: {architecture or 'unknown architecture'} is not a causal language model")
    if not alone and folder.exists() and not any(folder.glob("*.safetensors")):
        raise ModelError(f"{field} = {path}: no *.safetensors in it; save the model with save_pretrained")
    try:
        shape = _shape(config)
    except (AttributeError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(
            f"{field} = {path}: config.json: {architecture} is not supported: {first_line(error)}"
        ) from error
    return ModelInfo(architecture=architecture, parameters=weights_size(folder) or parameters_of(config), **shape)


def causal_language_models() -> set[str]:
    """The architectures of text that transformers takes for causal language models, whatever their name
    ("GPT2LMHeadModel")."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
    every = {name for each in names for name in ((each,) if isinstance(each, str) else each)}
    return {name for name in every if not name.endswith("ForConditionalGeneration")}  # these read pictures


def _shape(config: Any) -> dict[str, Any]:
    text = config.get_text_config()
    if wrong := wrong_field({name: getattr(text, name) for name in SIZES}):  # by the names that all models have
        raise ValueError(wrong)
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    if heads % (getattr(text, "num_key_value_heads", None) or heads):
        raise ValueError(f"num_attention_heads = {heads}, which num_key_value_heads does not divide")
    return {
        "context": int(text.max_position_embeddings),
        "vocabulary": int(text.vocab_size),
        "dtype": "float32" if str(getattr(config, "dtype", None)).endswith(("None", "float32")) else "bfloat16",
        "layers": int(text.num_hidden_layers),
        "hidden": int(text.hidden_size),
        "intermediate": int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
        "key_value_width": size * int(getattr(text, "num_key_value_heads", None) or heads),
    }


def parameters_of(config: Any) -> int:
    """Number of parameters of a model that is not on this machine, by its configuration."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return int(AutoModelForCausalLM.from_config(config).num_parameters())


def weights_size(folder: Path) -> int | None:
    """Number of parameters in the safetensors files of a local model."""
    if not folder.exists():
        return None
    from safetensors import SafetensorError, safe_open

    total = 0
    for file in weight_files(folder):
        try:
            with safe_open(file, "np") as tensors:
                names = tensors.keys()  # a safetensors handle is no mapping
                total += sum(math.prod(tensors.get_slice(name).get_shape()) for name in names)
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{file}: unreadable weights: {first_line(error)}; copy or download the file again"
            ) from error
    return total


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers loads; others may lie beside them (`consolidated.safetensors`)."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        try:
            named = sorted({folder / name for name in json.loads(index.read_bytes())["weight_map"].values()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index}: cannot be read ({first_line(error)}); copy or download it again") from error
        return named
    return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))


def check_value_model(path: str, policy: str) -> None:
    """Raises ModelError when the critic's model (`path`) has another family or vocabulary than the policy's."""
    if not path:
        return
    from transformers import AutoConfig

    critic, own = _read(AutoConfig, path, "learner.value_path"), AutoConfig.from_pretrained(policy)
    if critic.model_type != own.model_type:
        raise ModelError(
            f"learner.value_path = {path}: a {critic.model_type} model, but the policy is {own.model_type}; name one "
            "of the policy's family, or leave it empty"
        )
    theirs, ours = (int(config.get_text_config().vocab_size) for config in (critic, own))
    if theirs != ours:
        raise ModelError(
            f"learner.value_path = {path}: {theirs} rows of embedding, the policy has {ours}: another tokenizer; name "
            "a critic with the policy's"
        )


def check_vocabulary(path: str, info: ModelInfo, tokenizer: "PreTrainedTokenizerBase") -> None:
    """Raises ModelError when the tokenizer has tokens that the model has no embedding for."""
    largest = max(tokenizer.get_vocab().values())
    if largest >= info.vocabulary:
        raise ModelError(
            f"model.path = {path}: vocabulary mismatch: the tokenizer has token ids up to {largest}, the model's "
            f"embedding {info.vocabulary} rows; use the model's own tokenizer or resize its embedding"
        )
