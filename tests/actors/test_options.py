"""vLLM's own options: names checked without vLLM, values passed on."""

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from actors.jobs import Continuation, Job
from actors.options import (
    ENGINE,
    ENGINE_GPU_ONLY,
    SAMPLING,
    check_options,
    check_sampling_values,
    check_training_options,
    class_fields,
    describe_options,
)
from actors.vllm_engine import VllmEngine
from actors.vllm_setup import sampling_extras
from core.config import Config, ResolvedRollout, RolloutConfig
from core.errors import ConfigError
from core.load import dump_config, override, parse_config
from core.records import Sampling
from tests.actors import models
from tests.actors.conftest import CONFIG

Get = Callable[[bool], Path]


def test_options_are_json_on_the_command_line_and_survive_the_run_directory() -> None:
    config = override(Config(), ["--rollout.engine_options", '{"cache_dtype": {"a": 1}}'])
    assert config.rollout.engine_options == {"cache_dtype": {"a": 1}}
    import yaml

    assert parse_config(yaml.safe_load(dump_config(config)), "again") == config
    for bad in ("[1", "5"):
        with pytest.raises(ConfigError, match=r"rollout\.engine_options = .*"):
            override(Config(), ["--rollout.engine_options", bad])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"engine_options": {"scheduling_polcy": "fcfs"}},
            r"scheduling_polcy: vLLM's EngineArgs .* 'scheduling_policy'",
        ),
        (
            {"engine_options": {"speculative_config": {}}},
            r"speculative_config cannot be set: it needs cluster\.device cuda, on CPU",
        ),
        ({"engine_options": {"block_size": 64}}, r"block_size cannot be set: it needs cluster\.device cuda, on CPU"),
        ({"sampling_options": {"structured_outputs": {}}}, r"structured_outputs = \{\}: give a mapping such as"),
        ({"sampling_options": {"structured_outputs": "[0-9]"}}, r"structured_outputs = '\[0-9\]': give a mapping"),
        (
            {"sampling_options": {"structured_outputs": {"regexp": "x"}}},
            r"structured_outputs\.regexp: vLLM's StructuredOutputsParams .* 'regex'",
        ),
        ({"sampling_options": {"stop": "x"}}, r"stop cannot be set: engines work on token ids"),
        ({"sampling_options": {"prompt_logprobs": 1}}, r"prompt_logprobs cannot be set: Retrospect needs"),
        ({"engine_options": {"max_num_seqs": 4}}, r"engine_options\.max_num_seqs cannot be set: rollout\.max_running"),
        ({"engine_options": {"logprobs_mode": "x"}}, r"logprobs_mode cannot be set: Retrospect needs"),
        ({"sampling_options": {"top_q": 4}}, r"sampling_options\.top_q: vLLM's SamplingParams .* 'top_"),
        ({"sampling_options": {"seed": 4}}, r"sampling_options\.seed cannot be set: run\.seed"),
    ],
)
def test_an_option_that_cannot_be_set_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_options(RolloutConfig(**options), "auto")
    check_options(RolloutConfig(engine_options={"scheduling_policy": "fcfs"}, sampling_options={"top_k": 4}), "cpu")
    check_options(RolloutConfig(engine_options=dict.fromkeys(ENGINE_GPU_ONLY)), "cuda")


def test_a_grammar_is_for_starts_from_the_root() -> None:
    config = override(Config(), ["--rollout.sampling_options", '{"structured_outputs": {"regex": "[0-9]+"}}'])
    check_options(config.rollout, "cpu")
    with pytest.raises(ConfigError, match=r"structured_outputs: .*replay\.ratio"):
        check_training_options(config)  # replay is on by default
    check_training_options(override(config, ["--replay.ratio", "0"]))
    check_training_options(Config())
    (line,) = describe_options(config.rollout)
    assert "the learner does not see the grammar" in line
    assert describe_options(Config().rollout) == []


def test_what_the_engine_sets_cannot_be_set() -> None:
    """The arguments in the text of the engine, against the tables."""
    import actors.vllm_engine
    import actors.vllm_setup

    tree, setup = [ast.parse(Path(str(one.__file__)).read_text()) for one in (actors.vllm_engine, actors.vllm_setup)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]

    def keywords(name: str) -> set[str]:
        given = [call.keywords for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]
        return {one.arg for keywords in given for one in keywords if one.arg}

    (given,) = [one for one in setup.body if isinstance(one, ast.FunctionDef) and one.name == "engine_arguments"]
    tables = [node for node in ast.walk(given) if isinstance(node, ast.Dict)]
    common, *on_device = [{key.value for key in table.keys if isinstance(key, ast.Constant)} for table in tables]
    assert {"dtype", "seed"} <= keywords("EngineArgs") <= set(ENGINE)
    assert {"seed", "max_tokens", "prompt_logprobs"} <= keywords("SamplingParams") <= set(SAMPLING)
    assert "skip_tokenizer_init" in common
    assert common <= set(ENGINE)
    assert set[object]().union(*on_device) <= set(ENGINE) | set(ENGINE_GPU_ONLY)
    for options, file, name in (
        ({**ENGINE, **ENGINE_GPU_ONLY}, "engine/arg_utils.py", "EngineArgs"),
        (SAMPLING, "sampling_params.py", "SamplingParams"),
    ):
        assert set(options) <= set(class_fields(file, name))


def test_values_are_tried_with_the_budget_of_a_response() -> None:
    """vLLM's own budget would be 16 tokens. One that is too small: tests/core/test_bad_input.py."""
    check_sampling_values({"min_tokens": 17, "top_k": 4}, None)


def test_a_minimum_of_tokens_gives_way_to_what_a_prefix_leaves(engines: dict[bool, Any]) -> None:
    """Room for 12 tokens, and for 3 after a prefix of 9; at least 6 are asked for."""
    starts = [models.start(4, samples=16), models.start(5, prefix=9, samples=16)]

    def generate(actor: Any) -> list[Continuation]:
        engine: VllmEngine = actor._engine
        engine._extra = {"min_tokens": 6}
        try:
            engine.add([Job(start, Sampling(1.0, 1.0, 12), tuple(range(16))) for start in starts])
            return engine.run(500.0)
        finally:
            engine._extra = {}

    found = ray.get(engines[True].__ray_call__.remote(generate), timeout=300)
    lengths = {start.id: [len(one.tokens) for one in found if one.start_id == start.id] for start in starts}
    assert len(lengths["start-4"]) == len(lengths["start-5"]) == 16
    assert min(lengths["start-4"]) >= 6
    assert set(lengths["start-5"]) == {3}


def test_names_read_from_the_text_are_those_of_the_classes(engines: dict[bool, Any]) -> None:
    def real(_: Any) -> tuple[set[str], set[str]]:
        import dataclasses

        from vllm import EngineArgs, SamplingParams

        return {field.name for field in dataclasses.fields(EngineArgs)}, set(SamplingParams.__struct_fields__)

    engine, sampling = ray.get(engines[True].__ray_call__.remote(real))
    assert set(class_fields("engine/arg_utils.py", "EngineArgs")) == {n for n in engine if not n.startswith("_")}
    assert set(class_fields("sampling_params.py", "SamplingParams")) == {n for n in sampling if not n.startswith("_")}


def test_sampling_options_shape_the_draws_and_their_logprobs(engines: dict[bool, Any], tiny_model: Get) -> None:
    """Three tokens allowed and the likelier two of them kept: a distribution that can be computed by hand."""
    start, allowed, path = models.start(3, samples=16), [5, 6, 7], str(tiny_model(True))
    options = {"allowed_token_ids": allowed, "top_k": 2}

    def generate(actor: Any) -> list[Continuation]:
        config = CONFIG.model_copy(update={"sampling_options": options})
        engine = second(actor, path, config)
        engine.add([Job(start, Sampling(1.0, 1.0, 6), tuple(range(16)))])
        return engine.run(500.0)

    model = models.load(tiny_model(True))
    for one in ray.get(engines[True].__ray_call__.remote(generate), timeout=300):
        sequence = np.concatenate([start.context_ids, one.tokens])
        with torch.no_grad():
            logits = model(torch.from_numpy(sequence.astype(np.int64))[None]).logits[0, len(start.context_ids) - 1 :]
        for row, token, logprob in zip(logits[:, allowed], one.tokens, one.logprobs, strict=False):
            kept = row.topk(2)
            assert token in {allowed[at] for at in kept.indices.tolist()}
            expected = torch.log_softmax(kept.values, 0)[kept.indices.tolist().index(allowed.index(token))]
            assert abs(float(expected) - logprob) < 1e-4


def test_a_grammar_is_obeyed_and_logprobs_are_those_of_what_it_allows(engines: dict[bool, Any], tmp_path: Path) -> None:
    """Two to six letters of three, then the end: what is allowed after any number of letters can be said by hand.

    The weights change after the second step. A grammar that is none is refused before any start is taken up; one that
    no allowed token fits ends with a line that says so.
    """
    old, new = models.build(tmp_path / "old", True, seed=1), models.build(tmp_path / "new", True, seed=2)
    letters = models.save_tokenizer(old)
    weights = models.weights(models.load(new), 2)
    config = CONFIG.model_copy(update={"sampling_options": {"structured_outputs": {"regex": "[abc]{2,6}"}}})
    start, samples = models.start(3, samples=16), tuple(range(16))

    def generate(actor: Any) -> tuple[list[Continuation], str, str]:
        engine = second(actor, str(old), config)
        with pytest.raises(ConfigError) as refused:
            sampling_extras({"structured_outputs": {"regex": "[abc"}}, 12, engine._engine)
        engine.add([Job(start, Sampling(1.0, 1.0, 12), samples)])
        while max(map(len, drawn(engine))) < 2:
            engine.step()
        engine.load_weights(weights)
        batch = engine.run(500.0)
        engine._extra |= {"allowed_token_ids": [models.EOS + 1]}  # none of the three letters
        engine.add([Job(start, Sampling(1.0, 1.0, 12), (0,))])
        with pytest.raises(RuntimeError) as unfit:
            engine.run(500.0)
        return batch, str(refused.value), str(unfit.value)

    batch, refused, unfit = ray.get(engines[True].__ray_call__.remote(generate), timeout=300)
    assert refused.startswith("rollout.sampling_options = ['structured_outputs']: ")
    assert "where no token of the model's vocabulary fits the grammar" in unfit
    policies = {0: models.load(old), 2: models.load(new)}
    assert len(batch) == 16
    assert any(len(set(one.versions)) == 2 for one in batch)
    for one in batch:
        for at, (token, logprob, version) in enumerate(zip(one.tokens, one.logprobs, one.versions, strict=True)):
            allowed = [*(letters if at < 6 else []), *([models.EOS] if at >= 2 else [])]
            sequence = np.concatenate([start.context_ids, one.tokens[:at]]).astype(np.int64)
            with torch.no_grad():
                logits = policies[version](torch.from_numpy(sequence)[None]).logits[0, -1, allowed]
            assert abs(float(torch.log_softmax(logits, 0)[allowed.index(token)]) - logprob) < 1e-4
        assert one.tokens[-1] == models.EOS
    assert len({tuple(one.tokens) for one in batch}) > 4  # drawn, not forced


def second(actor: Any, path: str, config: ResolvedRollout) -> VllmEngine:
    """Another engine in the process of an actor, which keeps it: its end would take the process groups of the first
    along."""
    engine = VllmEngine(path, config, dtype="float32", device="cpu", seed=0)
    actor.others = [*getattr(actor, "others", []), engine]
    return engine


def drawn(engine: VllmEngine) -> list[list[int]]:
    """The tokens of every sample in flight so far."""
    requests = engine._engine.engine_core.engine_core.scheduler.requests
    return [list(request.output_token_ids) for request in requests.values()]
