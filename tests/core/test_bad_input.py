"""Bad input: hundreds of recipes, options and files, each answered by one line that names the field or file, before
anything starts.

Most are made from the fields themselves: every number is given what is no number, every choice what is none. The others
are a list.
"""

import io
import math
import time
from contextlib import redirect_stderr, redirect_stdout
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any, get_args, get_origin

import pytest
import yaml

import launch
from core.config import Config
from core.errors import ConfigError, RetrospectError
from core.load import FIELDS, load_config, override, parse_config
from core.machine import Machine
from core.plan import check_machine, placement
from core.run_directory import RunDirectory
from tests.processes import LONG


def kinds(name: str) -> set[Any]:
    annotation = FIELDS[name].annotation
    return {annotation, *get_args(annotation)}


NUMBERS = [name for name in FIELDS if {int, float} & kinds(name)]
NO_NUMBERS: tuple[Any, ...] = (math.nan, math.inf, -math.inf, True, "many", [1], {"a": 1}, 1e300, -(10**20))
FLAGS = [name for name in FIELDS if kinds(name) == {bool}]
TEXTS = [name for name in FIELDS if kinds(name) == {str}]
CHOICES = [
    name
    for name in FIELDS
    if get_origin(FIELDS[name].annotation) is not None and str in map(type, get_args(FIELDS[name].annotation))
]
NO_CHOICES: tuple[Any, ...] = ("none of them", 3, [], "")
NO_TEXTS: tuple[Any, ...] = (1, True, ["x"], {"a": "b"})
NO_FLAGS: tuple[Any, ...] = ("perhaps", 2, [True], math.nan)
FIELD_CASES: list[tuple[str, Any]] = [
    *((name, value) for name in NUMBERS for value in NO_NUMBERS),
    *((name, value) for name in FLAGS for value in NO_FLAGS),
    *((name, value) for name in TEXTS for value in NO_TEXTS),
    *((name, value) for name in CHOICES for value in NO_CHOICES),
]


def nested(name: str, value: object) -> dict[str, Any]:
    *sections, leaf = name.split(".")
    data: dict[str, Any] = {leaf: value}
    for section in reversed(sections):
        data = {section: data}
    return data


def one_line(error: BaseException, *parts: str) -> None:
    text = str(error)
    assert "\n" not in text
    assert all(part in text for part in parts), text


def test_a_field_refuses_what_it_cannot_be() -> None:
    accepted = []
    for name, value in FIELD_CASES:
        try:
            parse_config(nested(name, value), "r.yaml")
        except ConfigError as error:
            one_line(error, "r.yaml: ", name)
        else:
            accepted.append((name, value))
    assert accepted == []


def test_numbers_on_the_command_line_are_read_alike() -> None:
    for name in NUMBERS:
        for text in ("nan", "true", f"{2**60}", "1e9999999"):
            with pytest.raises(ConfigError) as error:
                override(Config(), [f"--{name}={text}"])
            one_line(error.value, name)


ALIASES = "task:\n  parameters:\n    a: &a [1, 2]\n" + "".join(  # 2^26 values
    f"    {after}: &{after} [*{name}, *{name}]\n" for name, after in pairwise(ascii_lowercase)
)

RECIPES: list[tuple[bytes, str]] = [
    (b"\xff\xfe\x00bad", "not UTF-8"),
    ("run: {name: é}".encode("latin-1"), "not UTF-8"),
    (b"just text", "expected sections"),
    (b"42", "expected sections"),
    (b"0", "expected sections"),
    (b"false", "expected sections"),
    (b"''", "expected sections"),
    (b"- run\n- model", "expected sections"),
    (b"[]", "expected sections"),
    (b"run: {seed: 1}\nrun: {seed: 2}", "key 'run' occurs twice"),
    (b"run:\n  seed: 1\n  seed: 2", "key 'seed' occurs twice"),
    (b"rollout:\n  engine_options: {a: 1, a: 2}", "key 'a' occurs twice"),
    (b"run: [", "not valid YAML"),
    (b"run: {seed: 1", "not valid YAML"),
    (b"run:\n\tseed: 1", "not valid YAML"),
    (b"run: @x", "not valid YAML"),
    (b"run: *nothing", "not valid YAML"),
    (b"task: {parameters: &a {x: *a}}", "aliases"),
    (ALIASES.encode(), "aliases"),
    (b"run: !!python/object:os.system x", "not valid YAML"),
    (b"run: {seed: !!int x}", "not valid YAML"),
    (b"run: {name: 2024-99-99}", "not valid YAML"),
    (b"run: \x00", "not valid YAML"),
    (b"a: 1\n---\nb: 2", "not valid YAML"),
    (b"{[1]: 2}", "recipe.yaml"),
    (b"{1: 2}", "recipe.yaml"),
    (b"{null: 2}", "recipe.yaml"),
    (b"? {a: b}\n: c", "recipe.yaml"),
    (b"[" * 3000, "not valid YAML"),
    (b"run: 5", "run = 5"),
    (b"run:", "run = None"),
    (b"run: [1, 2]", "run = [1, 2]"),
    (b"run: text", "run = 'text'"),
    (b"run: {seed: }", "run.seed = None"),
    (b"run: {seed: 1.5}", "run.seed = 1.5"),
    (b"run: {seed: -1}", "run.seed = -1"),
    (b"run: {iterations: 0}", "run.iterations = 0"),
    (b"run: {name: a/b}", "run.name = 'a/b'"),
    (b"run: {name: ../up}", "run.name = '../up'"),
    (b"run: {name: ..}", "run.name = '..'"),
    (b"run: {name: .hidden}", "run.name = '.hidden'"),
    (b"run: {name: /abs}", "run.name = '/abs'"),
    (b'run: {name: "a\\nb"}', "run.name"),
    (b'run: {name: "a\\0b"}', "run.name"),
    (b"run: {name: a\\b}", "run.name"),
    (b"run: {name: " + b"x" * 300 + b"}", "run.name"),
    (b"replay: {ratio: 1}", "replay.ratio = 1"),
    (b"replay: {ratio: .nan}", "replay.ratio = nan"),
    (b"replay: {ratio: .inf}", "replay.ratio = inf"),
    (b"replay: {ratio: yes}", "give a number, not true or false"),
    (b"replay: {ranking: best}", "replay.ranking = 'best'"),
    (b"replay: {ratoi: 0.5}", "'replay.ratio'"),
    (b"rollouts: {actors: 2}", "'rollout'"),
    (b"rollout: {engine_options: [1]}", "rollout.engine_options"),
    (b"rollout: {sampling_options: 3}", "rollout.sampling_options"),
    (b"monitor: {sinks: [tensorbord]}", "monitor.sinks.0"),
    (b"monitor: {sinks: {a: b}}", "monitor.sinks"),
    (b"monitor: {project: ''}", "monitor.project"),
    (b"task: {columns: prompt}", "task.columns"),
    (b"task: {columns: {promt: q}}", "'task.columns.prompt'"),
    (b"algorithm: {clip_low: 1}", "algorithm.clip_low = 1"),
    (b"learner: {zero_stage: 4}", "learner.zero_stage = 4"),
]


@pytest.mark.parametrize(("content", "told"), RECIPES, ids=lambda one: repr(one)[:30])
def test_a_bad_recipe_is_one_line(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    one_line(error.value, "recipe.yaml", told)


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"replay": {"ratio": 0.5, "capacity": 10}}, "replay.capacity = 10 is less than replay.start_states = 64"),
    ({"rollout": {"sleep": True}}, "rollout.sleep moves weights off a GPU"),
    ({"rollout": {"starts": 10, "samples": 3}}, "do not divide"),
    ({"learner": {"minibatches": 256, "ranks": 4}}, "fewer than learner.ranks = 4"),
    (
        {"learner": {"micro_batch_tokens": 50}, "rollout": {"max_prompt_tokens": 32, "max_response_tokens": 80}},
        "learner.micro_batch_tokens = 50 is less than a whole sequence",
    ),
    ({"task": {"operations": [9, 3]}}, "task.operations = [9, 3]"),
    ({"learner": {"offload": True}}, "learner.zero_stage is 0"),
    ({"learner": {"value_model": "shared", "value_path": "x"}}, "learner.value_path"),
    ({"algorithm": {"kl_coefficient": 0, "kl_target": 0.1}}, "algorithm.kl_coefficient"),
    ({"rollout": {"gpu_memory_share": 1.5}}, "rollout.gpu_memory_share"),
    ({"rollout": {"actors": 2}, "cluster": {"colocate": True}}, "cluster.colocate"),
    ({"rollout": {"threads": 64}}, "rollout.threads = 64, but this machine has 4 cores"),
    ({"learner": {"threads": 5}}, "learner.threads = 5, but this machine has 4 cores"),
    (
        {"rollout": {"kv_cache_gib": 9.0}},
        "rollout.actors x rollout.kv_cache_gib = 9.0 GiB, but this machine has 8.0 GiB",
    ),
    ({"rollout": {"actors": 10}}, "rollout.actors x rollout.kv_cache_gib = 10.0 GiB"),
    ({"rollout": {"starts": 2**30}}, "the tokens of rollout.starts x rollout.samples"),
    ({"rollout": {"samples": 10**8}}, "the tokens of rollout.starts x rollout.samples"),
]


@pytest.mark.parametrize(("fields", "told"), CONTRADICTIONS, ids=lambda one: str(one)[:40])
def test_fields_that_cannot_go_together(fields: dict[str, Any], told: str) -> None:
    def _check() -> None:
        config = parse_config(fields, "test")
        placement(config, "cpu")
        check_machine(config, Machine(cores=4, memory=8.0), "cpu")

    with pytest.raises(ConfigError) as error:
        _check()
    one_line(error.value, told)


def test_a_machine_without_the_gpus_of_a_recipe_may_not_be_that_of_the_run() -> None:
    config = parse_config({"learner": {"threads": 8}}, "test")
    with pytest.raises(ConfigError, match=r"learner\.threads.*offline"):
        check_machine(config, Machine(cores=4, memory=8.0), "cuda")
    for device, gpus in (("cpu", 0), ("cuda", 1)):
        with pytest.raises(ConfigError, match=r"learner\.threads((?!offline).)*$"):
            check_machine(config, Machine(cores=4, memory=8.0, gpus=gpus), device)


def test_what_fits_the_machine_is_accepted() -> None:
    check_machine(parse_config({}, "test"), Machine(cores=2, memory=8.0), "cpu")
    check_machine(parse_config({"rollout": {"kv_cache_gib": 9.0}}, "test"), Machine(cores=2, memory=8.0), "cuda")


COMMANDS: list[tuple[str, str]] = [
    ("check --task.name sums --model.path /nowhere", "model.path = /nowhere: no such directory"),
    ("check --task.name sums --model.path ~/nothing/here", "model.path = ~/nothing/here: no such directory"),
    ("check --task.name sums --model.path ./x", "model.path = ./x: no such directory"),
    ("check --task.name sums --model.path a/b/c", "model.path = a/b/c: no such directory"),
    ("check --task.name sums --model.path a=b", "model.path = a=b: no such directory"),
    ("check --task.name sums --model.path x/SmolLM2-135M-Instruct.Q4_1.gguf", "run `make model`, which installs it"),
    ("check --learner.value_path /x.gguf", "learner.value_path = /x.gguf: no such"),
    ("evaluate /nowhere.gguf", "/nowhere.gguf: no such"),
    ("check --learner.value_path /nowhere", "learner.value_path = /nowhere: no such directory"),
    ("check --learner.value_path a/b/c", "learner.value_path = a/b/c: no such directory"),
    ("check --run.root /dev/null/x", "run.root = /dev/null/x: cannot write below /dev/null"),
    ("check --run.root /proc/x", "run.root = /proc/x: cannot write below /proc"),
    ("check --config /nowhere.yaml", "--config /nowhere.yaml"),
    ("check --config /", "--config /: Is a directory"),
    ("check --model.path starter --task.name gsm8k --task.path /nowhere.jsonl", "/nowhere.jsonl"),
    ("check --task.reward nothing:reward", "task.reward: judge cannot start"),
    ("check --task.reward nothing", "task.reward: judge cannot start"),
    ('check --rollout.engine_options {"modle":1}', "rollout.engine_options.modle"),
    ('check --rollout.engine_options {"model":1}', "rollout.engine_options.model cannot be set"),
    ('check --rollout.sampling_options {"stop":1}', "rollout.sampling_options.stop cannot be set"),
    ('check --rollout.max_response_tokens 400 --rollout.sampling_options {"min_tokens":401}', "vLLM refuses it: "),
    ("check --rollout.sampling_options [", "rollout.sampling_options"),
    ("check --monitor.sinks tensorboard,nothing", "monitor.sinks.1"),
    ("check --learner.threads 100000", "learner.threads = 100000"),
    ("evaluate /nowhere", "/nowhere: no such directory"),
    ("evaluate a/b/c", "a/b/c: no such directory"),
    ("evaluate RUN --against /nowhere", "--against = /nowhere: no such directory"),
    ("train --resume /nowhere", "/nowhere is not a run"),
    ("train --resume RUN", "no checkpoint yet"),
    ("train --resume=", "argument --resume: give a run directory"),
    ("train --resume TAUGHT", "resume it with the command that began it"),
    ("sft --resume PPO", "is a run of `launch.py train`"),
    ("reward-model --resume PPO", "is a run of `launch.py train`"),
    ("replay /nowhere", "/nowhere is not a run"),
    ("replay RUN", "no replay store"),
    ("inspect /nowhere", "/nowhere is not a run"),
    ("inspect RUN", "no replay store"),
    ("inspect RUN --port x", "argument --port: give a whole number"),
    ("inspect RUN --port 99999", "from 0 to 65535, not '99999'"),
    ("inspect RUN --port -1", "argument --port"),
    ("replay RUN --top 0", "argument --top"),
    ("replay RUN --problems 1.5", "argument --problems"),
    ("replay RUN --depth 0 99999999999999999999", "argument --depth"),
    (f"replay RUN --top {'9' * 5000}", "argument --top"),
    (f"check --run.iterations {'9' * 5000}", "run.iterations"),
    ("check --run.root LOOP", "Symlink loop"),
    ("check --task.name sums --model.path LOOP", "LOOP: no such directory"),
    ("check --config LOOP", "LOOP"),
    ("check --model.path starter --task.name gsm8k --task.path LOOP.jsonl", "LOOP.jsonl"),
    ("evaluate LOOP", "LOOP: no such directory"),
    ("report LOOP", "is not a run"),
    ("report a\0b", "null character"),
    ("check --task.name sums --model.path a\0b", "null character"),
    ("check --run.name a\ud800b", "cannot be a name of a file"),
    ("replay \ud800", "cannot be a name of a file"),
    ("check --task.system \udcc3", "LC_ALL=C.UTF-8"),
    ("report /nowhere", "/nowhere is not a run"),
    ("report RUN", "no finished iteration"),
    ("report", "the following arguments are required: RUN"),
    ("runs /nowhere", "/nowhere: no runs here"),
    ("export /nowhere --to x", "/nowhere is not a run"),
    ("trian", "the nearest is 'train'"),
]


@pytest.mark.parametrize(("line", "told"), COMMANDS, ids=lambda one: one[:40])
def test_a_bad_command_is_one_line(line: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)  # `evaluate` makes the folder of its responses first
    for name in ("LOOP", "LOOP.jsonl"):
        (tmp_path / name).symlink_to(tmp_path / name)
    for name, progress in (("RUN", ""), ("TAUGHT", ""), ("PPO", '{"iteration": 1, "total_tokens": 1}')):
        run = RunDirectory.create(tmp_path, name, "demo")
        run.config.write_text(yaml.safe_dump({"sft": {"path": "rows.jsonl"}}))
        if progress:
            (run.checkpoints / "000001").mkdir()
            (run.checkpoints / "000001" / "progress.json").write_text(progress)
            (run.checkpoints / "latest").write_text("000001")
        if name == "TAUGHT":
            (run.checkpoints / "checkpoint-1").mkdir()
        line = line.replace(name, str(run.path))
    begun, errors = time.monotonic(), io.StringIO()
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        assert launch.main(line.split()) == 2
    (told_line,) = [text for text in errors.getvalue().splitlines() if text.startswith("error: ")]
    assert told in told_line
    assert time.monotonic() - begun < LONG


TYPOS = [
    ("--replay.ratoi", "replay.ratio"),
    ("--lr", "learner.policy_lr"),
    ("--learning_rate", "learner.policy_lr"),
    ("--batch_size", "rollout.starts"),
    ("--num_generations", "rollout.samples"),
    ("--max_new_tokens", "rollout.max_response_tokens"),
    ("--kl_coef", "algorithm.kl_coefficient"),
    ("--gae_lambda", "algorithm.policy_lambda"),
    ("--save_steps", "run.checkpoint_every"),
    ("--output_dir", "run.root"),
    ("--report_to", "monitor.sinks"),
    ("--wandb_project", "monitor.project"),
    ("--logger", "monitor.sinks"),
    ("--loss_agg_mode", "algorithm.aggregation"),
    ("--actor_rollout_ref.actor.loss_agg_mode", "algorithm.aggregation"),
    ("--loss_type", "algorithm.aggregation"),
    ("--epsilon_high", "algorithm.clip_high"),
    ("--actor_rollout_ref.actor.clip_ratio_high", "algorithm.clip_high"),
    ("--epsilon", "algorithm.clip_low"),
    ("--scale_rewards", "algorithm.estimator"),
    ("--delta", "algorithm.dual_clip"),
    ("--beta", "algorithm.kl_coefficient"),
    ("--actor_rollout_ref.actor.kl_loss_type", "algorithm.kl_estimator"),
    ("--algorithm.use_kl_in_reward", "algorithm.kl_placement"),
    ("--algorithm.kl_ctrl.kl_coef", "algorithm.kl_coefficient"),
    ("--mask_truncated_completions", "algorithm.overlong"),
    ("--num_iterations", "learner.epochs"),
    ("--steps_per_generation", "learner.minibatches"),
    ("--gradient_accumulation_steps", "learner.micro_batch_tokens"),
    ("--actor_rollout_ref.actor.optim.lr", "learner.policy_lr"),
    ("--critic.optim.lr", "learner.value_lr"),
    ("--critic.model.path", "learner.value_path"),
    ("--warmup_ratio", "learner.warmup_steps"),
    ("--actor_rollout_ref.model.path", "model.path"),
    ("--actor_rollout_ref.rollout.n", "rollout.samples"),
    ("--actor_rollout_ref.rollout.val_kwargs.n", "evaluation.samples"),
    ("--vllm_gpu_memory_utilization", "rollout.gpu_memory_share"),
    ("--rollout.tensor_model_parallel_size", "rollout.tensor_parallel"),
    ("--data.train_batch_size", "rollout.starts"),
    ("--data.max_response_length", "rollout.max_response_tokens"),
    ("--data.val_files", "task.eval_path"),
    ("--data.prompt_key", "task.columns.prompt"),
    ("--trainer.experiment_name", "run.name"),
    ("--trainer.total_epochs", "run.iterations"),
    ("--trainer.n_gpus_per_node", "learner.ranks"),
    ("--reward_funcs", "task.reward"),
    ("--reward_weights", "task.rewards"),
    ("--custom_reward_function.path", "task.reward"),
    ("--algorithm.filter_groups.enable", "rollout.resample"),
    ("--importance_sampling_level", "algorithm.policy_loss"),
    ("--vllm_importance_sampling_cap", "algorithm.importance_cap"),
    ("--top_k", "rollout.sampling_options"),
    ("--peft_config", "learner.lora_rank"),
    ("--temperatur", "rollout.temperature"),
    ("--save_strategy", "run.checkpoint_every"),
    ("--max_seq_length", "rollout.max_prompt_tokens"),
    ("--data.val_batch_size", "rollout.max_running"),
]


@pytest.mark.parametrize(("typed", "meant"), TYPOS)
def test_a_typo_names_the_field_of_the_same_meaning(typed: str, meant: str) -> None:
    with pytest.raises(RetrospectError) as error:
        override(Config(), [typed, "1"])
    one_line(error.value, f"the nearest is '--{meant}'")


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("--use_vllm", "always so"),
        ("--data.trust_remote_code", "code of their own"),
        ("--resume_from_checkpoint", "--resume RUN"),
        ("--push_to_hub", "export"),
        ("--logging_steps", "every iteration"),
        ("--actor_rollout_ref.rollout.name", "vLLM generates"),
        ("--optim", "AdamW"),
        ("--actor_rollout_ref.model.attn_implementation", "an attention of its own"),
        ("--packing_samples", "always so"),
        *(
            (f"--{name}", "no name resembles it")
            for name in ("gizmo_xyzzy", "ring_attn_size", "ddp_timeout", "pad_token")
        ),
    ],
)
def test_what_has_no_field_is_said(typed: str, why: str) -> None:
    with pytest.raises(RetrospectError) as error:
        override(Config(), [typed, "1"])
    one_line(error.value, why)
