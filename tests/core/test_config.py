"""Configuration: defaults, files, and one clear line for every mistake."""

from pathlib import Path
from typing import Any

import pytest

from core.config import Config
from core.errors import ClusterError, ConfigError
from core.load import check_named, dump_config, load_config, override, parse_config
from core.plan import (
    Resources,
    batch_plan,
    check_context,
    check_resources,
    evaluation_placement,
    generated_bound,
    placement,
    plan_warnings,
    transport,
)

CONFIGS = sorted(Path(__file__).parents[2].joinpath("configs").glob("*.yaml"))


def parse(text: str, tmp_path: Path) -> Config:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return load_config(path)


def message(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert "\n" not in text, "an error for the user is one line"
    return text


def test_every_field_is_described() -> None:
    schema = Config.model_json_schema()
    for name, section in schema["$defs"].items():
        for field, value in section["properties"].items():
            if "$ref" not in value:
                assert value.get("description"), f"{name}.{field} has no description"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_recipes_load_and_survive_a_round_trip(path: Path) -> None:
    config = load_config(path)
    assert parse_config_text(dump_config(config)) == config


def parse_config_text(text: str) -> Config:
    import yaml

    return parse_config(yaml.safe_load(text), "dump")


def test_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        parse("replay:\n  ratoi: 0.5\n", tmp_path)
    assert "unknown key 'replay.ratoi'; the nearest valid name is 'replay.ratio'" in message(error)


def test_a_wrong_key_or_name_is_told_the_nearest(tmp_path: Path) -> None:
    for text, told in (
        (
            "task: {rewards: [{name: task, weigth: 2}]}",
            "'task.rewards.0.weigth'; the nearest valid name is 'task.rewards.0.weight'",
        ),
        ("algorithm: {estimator: gpro}", "algorithm.estimator = 'gpro': name one of gae, grpo, "),
        ("algorithm: {estimator: gpro}", "as module:function; the nearest is 'grpo'"),
        ("algorithm: {kl_schedule: constan}", "or 'unsolved'; the nearest is 'constant'"),
    ):
        with pytest.raises(ConfigError) as error:
            parse(text, tmp_path)
        assert told in message(error)
    with pytest.raises(ConfigError) as error:
        parse("algorithm: {kl_schedule: 3}", tmp_path)
    assert message(error).endswith("Input should be 'constant' or 'unsolved'")


def test_unknown_section_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        parse("rollouts:\n  actors: 2\n", tmp_path)
    assert "'rollout'" in message(error)


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 1.5])
def test_replay_ratio_outside_its_range(ratio: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        parse(f"replay:\n  ratio: {ratio}\n", tmp_path)
    assert f"replay.ratio = {ratio}" in message(error)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "none.yaml")
    assert "none.yaml" in message(error)


def test_not_yaml(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        parse("replay: [", tmp_path)
    assert "not valid YAML" in message(error)


def test_batches_that_do_not_divide() -> None:
    with pytest.raises(ConfigError) as error:
        parse_config({"rollout": {"starts": 10, "samples": 3}, "learner": {"minibatches": 4}}, "test")
    assert "10 x 3 = 30" in message(error)


def test_batch_arithmetic() -> None:
    config = parse_config(
        {
            "run": {"iterations": 5},
            "rollout": {"starts": 12, "samples": 4, "max_prompt_tokens": 20, "max_response_tokens": 30},
            "replay": {"ratio": 0.25},
            "learner": {"minibatches": 6, "epochs": 2},
        },
        "test",
    )
    plan = batch_plan(config)
    assert plan.replayed_starts == 3  # 12 x 0.25
    assert plan.trajectories == 48  # 12 x 4
    assert plan.minibatch == 8  # 48 / 6
    assert plan.steps_per_iteration == 12  # 6 x 2
    assert plan.total_steps == 60  # 12 x 5
    assert generated_bound(config) == 1440  # 48 x 30
    assert generated_bound(override(config, ["--rollout.resample", "3"])) == 5760  # in four rounds


def test_choices_that_lack_what_they_rest_on() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.kl_coefficient"):
        parse_config({"algorithm": {"kl_coefficient": 0.0, "kl_target": 0.01}}, "test")
    with pytest.raises(ConfigError, match=r"algorithm\.kl_estimator 'k1'"):
        parse_config({"algorithm": {"kl_coefficient": 0.05, "kl_estimator": "k1"}}, "test")
    for estimator, where, warned in (
        ("auto", "loss", 0),
        ("k2", "loss", 0),
        ("k3", "loss", 1),
        ("auto", "reward", 0),
        ("k3", "reward", 1),
    ):
        chosen = {"kl_coefficient": 0.05, "kl_estimator": estimator, "kl_placement": where}
        assert len(plan_warnings(parse_config({"algorithm": chosen}, "test"))) == warned
    for fields, warned in (
        ({}, 0),
        ({"kl_schedule": "unsolved"}, 1),
        ({"kl_schedule": "unsolved", "kl_target": 0.1}, 0),
        ({"kl_schedule": "unsolved", "kl_coefficient": 0}, 0),
    ):
        talk = {"name": "dialogue", "path": "talk.jsonl"}
        judged: dict[str, Any] = {"task": talk, "algorithm": fields, "replay": {"ratio": 0.0}}
        assert len(plan_warnings(parse_config(judged, "test"))) == warned
    for imitated, warned in ((32, 1), (0, 0)):
        alone = {
            "rollout": {"samples": 1},
            "replay": {"imitated": imitated},
            "algorithm": {"positive_coefficient": 1},
        }
        assert len(plan_warnings(parse_config(alone, "test"))) == warned
    for of_replay, warned in ({"ratio": 0.5}, 0), ({"ratio": 0.0}, 1):
        solutions = {"replay": {"canonical": True, **of_replay}}
        assert len(plan_warnings(parse_config(solutions, "test"))) == warned
    for ratio, coefficient, warned in ((0.25, 0.0, 1), (0.0, 0.0, 0), (0.25, 0.01, 0)):
        free = {"replay": {"ratio": ratio}, "algorithm": {"kl_coefficient": coefficient}}
        assert len(plan_warnings(parse_config(free, "test"))) == warned
    for starts, warned in ((4, 1), (6, 0)):  # a tenth of the starts, rounded: 0 and 1
        few = {"replay": {"ratio": 0.1}, "rollout": {"starts": starts}}
        assert len(plan_warnings(parse_config(few, "test"))) == warned
    for warmup_steps, warned in ((7, 0), (8, 1)):  # 2 iterations x 4 minibatches = 8 steps of the critic alone
        critic = {"critic_warmup": 2, "minibatches": 4, "warmup_steps": warmup_steps}
        assert len(plan_warnings(parse_config({"learner": critic}, "test"))) == warned
    in_reward = {"kl_coefficient": 0.05, "kl_estimator": "k1", "kl_placement": "reward"}
    parse_config({"algorithm": in_reward}, "test")
    with pytest.raises(ConfigError, match=r"learner\.zero_stage"):
        parse_config({"learner": {"offload": True}}, "test")
    with pytest.raises(ConfigError, match=r"learner\.value_model"):
        parse_config({"learner": {"value_model": "shared", "value_path": "rm"}}, "test")


def test_resampling_needs_engines_that_wait_and_groups() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.resample"):
        parse_config({"rollout": {"resample": 2, "max_staleness": 1}}, "test")
    with pytest.raises(ConfigError, match=r"rollout\.samples"):
        parse_config({"rollout": {"resample": 2, "samples": 1}}, "test")


@pytest.mark.parametrize("rollout", [{"resample": 2}, {"max_staleness": 1}])
def test_iterations_of_different_sizes_are_refused_where_they_must_be_alike(rollout: dict[str, int]) -> None:
    parse_config({"replay": {"fill": False}}, "test")
    with pytest.raises(ConfigError, match=r"replay\.fill"):
        parse_config({"replay": {"fill": False}, "rollout": rollout}, "test")


def test_a_sequence_fits_a_pass() -> None:
    sizes = {"rollout": {"max_prompt_tokens": 20, "max_response_tokens": 30}, "learner": {"micro_batch_tokens": 50}}
    parse_config(sizes, "test")
    with pytest.raises(ConfigError, match=r"learner\.micro_batch_tokens"):
        parse_config(sizes | {"learner": {"micro_batch_tokens": 49}}, "test")


APART = {"cluster": {"colocate": False}}
PAIRS = {"rollout": {"actors": 8}, "learner": {"ranks": 8}}


@pytest.mark.parametrize(
    ("fields", "device", "expected"),
    [
        ({}, "cpu", "object_store"),
        ({}, "cuda", "ipc"),  # an engine and a rank on a GPU
        (PAIRS, "cuda", "ipc"),
        (APART, "cuda", "collective"),  # a GPU for each
        ({"rollout": {"actors": 2}}, "cuda", "collective"),  # more engines than ranks
        ({"rollout": {"max_staleness": 1}}, "cuda", "collective"),
        ({"rollout": {"tensor_parallel": 2}}, "cuda", "object_store"),
        ({"learner": {"transport": "ipc"}}, "cpu", "ipc"),
        ({"learner": {"transport": "collective"}}, "cpu", "collective"),
        ({"learner": {"transport": "object_store"}}, "cuda", "object_store"),
    ],
)
def test_how_weights_travel_follows_from_the_device_and_who_shares_it(
    fields: dict[str, Any], device: str, expected: str
) -> None:
    assert transport(parse_config(fields, "test"), device) == expected


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        (APART | {"learner": {"transport": "ipc"}}, r"learner\.transport.*cluster\.colocate"),
        ({"learner": {"transport": "collective"}}, r"learner\.transport.*cluster\.colocate"),
        ({"learner": {"transport": "ipc"}, "rollout": {"tensor_parallel": 2}}, r"rollout\.tensor_parallel"),
        ({"learner": {"transport": "collective"}, "rollout": {"tensor_parallel": 2}}, r"rollout\.tensor_parallel"),
        ({"rollout": {"actors": 2}, "cluster": {"colocate": True}}, r"cluster\.colocate.*rollout\.actors"),
        ({"rollout": {"tensor_parallel": 2}, "cluster": {"colocate": True}}, r"cluster\.colocate.*tensor_parallel"),
    ],
)
def test_ways_for_weights_that_cannot_be_are_refused_before_anything_starts(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        placement(parse_config(fields, "test"), "cuda")


def test_pairs_reserve_a_gpu_each_and_a_small_reward_model_lies_on_one_of_them() -> None:
    def bundles(fields: dict[str, Any], device: str = "cuda") -> dict[str, tuple[int, float, float]]:
        made = placement(parse_config(fields, "test"), device)
        return {one.name: (one.count, one.cpus, one.gpus) for one in made if one.name != "replay shard"}

    assert bundles(PAIRS) == {"engine-rank pair": (8, 2.0, 1.0)}
    assert bundles(PAIRS | APART) == {"rollout actor": (8, 1.0, 1.0), "learner rank": (8, 1.0, 1.0)}
    assert bundles(PAIRS, "cpu") == {"rollout actor": (8, 1.0, 0.0), "learner rank": (8, 1.0, 0.0)}
    assert bundles({"cluster": {"colocate": True}}, "cpu") == {"engine-rank pair": (1, 2.0, 0.0)}
    judged: dict[str, Any] = {"task": {"name": "dialogue", "path": "talk.jsonl"}}
    assert bundles(judged | {"reward_model": {"gpus": 0.25}})["engine-rank pair"][2] == 0.75
    assert bundles(judged | {"reward_model": {"gpus": 1.0}})["engine-rank pair"][2] == 1.0
    evaluated = evaluation_placement(parse_config({"rollout": {"tensor_parallel": 2}}, "test"), "cuda")
    assert [(one.name, one.gpus) for one in evaluated] == [("rollout actor", 2.0)]


def test_no_room_in_the_context() -> None:
    config = parse_config({"rollout": {"max_prompt_tokens": 100, "max_response_tokens": 60}}, "test")
    check_context(config, 160)
    with pytest.raises(ConfigError, match=r"160 .*128"):
        check_context(config, 128)


def test_not_enough_resources_says_what_was_asked_and_what_there_is() -> None:
    config = parse_config({"rollout": {"actors": 4}, "learner": {"ranks": 2}}, "test")
    cpu = placement(config, "cpu")
    check_resources(cpu, Resources(cpus=6, gpus=0))
    with pytest.raises(ClusterError) as error:
        check_resources(cpu, Resources(cpus=2, gpus=0))
    assert "asks for 6 CPUs (4 rollout actors x 1, 2 learner ranks x 1) but the cluster has 2" in message(error)
    with pytest.raises(ClusterError, match=r"6 GPUs .* 1"):  # four engines and two ranks are no pairs
        check_resources(placement(config, "cuda"), Resources(cpus=64, gpus=1))


def test_options_change_single_fields() -> None:
    options = [
        "--rollout.max-prompt-tokens",
        "7",
        "--rollout.engine_options={a-b: 1}",
        "--algorithm.kl_target=null",
    ]
    config = override(Config(), [*options, "--task.template", "a b={prompt}", "--task.columns.prompt", "q"])
    assert (config.rollout.max_prompt_tokens, config.algorithm.kl_target) == (7, None)
    assert config.rollout.engine_options == {"a-b": 1}
    assert (config.task.template, config.task.columns.prompt) == ("a b={prompt}", "q")
    printed = ['--monitor.sinks=["tensorboard"]', "--task.code.packages=[]", "--rollout.sources=['a:B']"]
    config = override(config, printed)
    assert (config.monitor.sinks, config.task.code.packages) == (("tensorboard",), ())
    assert config.rollout.sources == ("a:B",)
    with pytest.raises(ConfigError, match=r"run\.seed = 'x'"):
        override(config, ["--run.seed", "x"])
    with pytest.raises(ConfigError, match=r"task\.operations = \['2'\]: give the fewest and the most"):
        override(config, ["--task.operations", "2"])


def test_a_later_recipe_changes_fields_of_the_earlier_ones(tmp_path: Path) -> None:
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("run: {seed: 1, name: a}\ntask: {columns: {prompt: q}}\nsft: {arguments: {max_steps: 1}}\n")
    second.write_text("run: {seed: 2}\ntask: {columns: {answer: a}}\nsft: {arguments: {max_length: 9}}\n")
    both, swapped = load_config(first, second), load_config(second, first)
    assert (both.run.seed, both.run.name, swapped.run.seed) == (2, "a", 1)
    assert (both.task.columns.prompt, both.task.columns.answer) == ("q", "a")
    assert both.sft.arguments == {"max_length": 9}  # a field is replaced whole, as by an option
    second.write_text("run: 3\n")
    with pytest.raises(ConfigError, match=r"b\.yaml: run = 3"):
        load_config(first, second)


def test_what_names_a_model_and_a_task_is_kept_by_options() -> None:
    """`override` does not name what nobody named. Rows of `sft` need no task."""
    for options, missing in (
        ([], r"model\.path and task\.name"),
        (["--model.path=m"], r"task\.name"),
        (["--task.name=gsm8k"], r"model\.path"),
        (["--sft.path=rows.jsonl"], r"model\.path"),
    ):
        with pytest.raises(ConfigError, match=missing):
            check_named(override(override(Config(), options), ["--run.seed", "3"]), rows=["sft.path"])
    with pytest.raises(ConfigError, match=r"task\.name"):
        check_named(override(Config(), ["--model.path=m", "--sft.path=rows.jsonl"]))
    for option in ("--task.name=gsm8k", '--task.sources=[{"name": "sums"}]', "--sft.path=rows.jsonl"):
        named = override(Config(), ["--model.path=m", option])
        check_named(override(named, ["--run.seed", "3"]), rows=["sft.path"])
        check_named(override(Config(), [option]), model="m", rows=["sft.path"])
    for option in ("--model.path=starter", "--task.name=arithmetic"):  # they name each other
        check_named(override(Config(), [option]))
