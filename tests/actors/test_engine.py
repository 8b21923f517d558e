"""The engine against Hugging Face, before and after weight updates, tied and untied embeddings."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch

from actors.jobs import Continuation, Job
from actors.ledger import Ledger
from actors.vllm_engine import SLEEPERS, VllmEngine
from actors.vllm_setup import stop_tokens
from core.errors import ModelError, WeightError
from core.records import Finish, Rollout, Sampling, Start
from core.weights import pack
from tests.actors import models
from tests.actors.test_pool import launch

BUDGET = 24
GREEDY = Sampling(temperature=0.0, top_p=1.0, max_response_tokens=BUDGET)
RANDOM = Sampling(temperature=1.0, top_p=1.0, max_response_tokens=BUDGET)
TOLERANCE = 1e-4  # nats; seen: 5e-6
PATIENT = 500.0  # seconds of a request that ends with its samples, on a machine that may be busy

Get = Callable[[bool], Path]


def generate(engine: Any, starts: Sequence[Start], sampling: Sampling = RANDOM) -> list[Rollout]:
    ledger = Ledger()
    ledger.add(starts, sampling)
    jobs = ledger.take("engine", ledger.open)
    ledger.accept(ray.get(engine.generate.remote(jobs, PATIENT, 0)).finished)
    return [one for start in starts for one in ledger.collect(start.id)]


def update(engine: Any, model: Any, version: int) -> None:
    weights = models.weights(model, version)
    acknowledgement = ray.get(engine.load_weights.remote(weights))
    assert acknowledgement.memory.resident > 2**26  # a process with torch
    assert (acknowledgement.version, acknowledgement.digest) == (version, weights.manifest.digest)


def largest_gap(model: Any, trajectories: Sequence[Rollout], temperature: float = 1.0) -> float:
    gaps = [
        np.abs(models.logprobs(model, one.sequence_ids, temperature)[-len(one.tokens) :] - one.logprobs).max()
        for one in trajectories
    ]
    return float(max(gaps))


def test_a_first_start_looks_at_the_model_in_no_second_process(engines: dict[bool, Any], vllm_cache: Path) -> None:
    """Such a process writes down what it has found, after 8 s."""
    assert len(engines) == 2
    assert not (vllm_cache / "modelinfos").exists()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_logprobs_agree_with_hugging_face_before_and_after_updates(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path, tied: bool
) -> None:
    engine, first = engines[tied], models.load(tiny_model(tied))
    update(engine, first, 1)
    starts = [models.start(index, prefix=index % 3 * 4, samples=2) for index in range(6)]
    before = generate(engine, starts)
    assert largest_gap(first, before) < TOLERANCE

    for version, temperature in ((2, 1.0), (3, 0.7)):
        changed = models.load(models.build(tmp_path / str(version), tied, seed=version))
        update(engine, changed, version)
        after = generate(engine, starts, Sampling(temperature, 1.0, BUDGET))
        assert largest_gap(changed, after, temperature) < TOLERANCE
        assert {int(v) for one in after for v in one.versions} == {version}
        assert largest_gap(first, after, temperature) > 0.5  # the old weights would be noticed
        sequences = [one.sequence_ids for one in after]
        scores = ray.get(engine.sequence_logprobs.remote(sequences))
        for sequence, score in zip(sequences, scores, strict=True):
            np.testing.assert_allclose(score, models.logprobs(changed, sequence), atol=TOLERANCE)
    update(engine, first, 1)


def test_greedy_tokens_are_those_of_hugging_face_generate(engines: dict[bool, Any], tiny_model: Get) -> None:
    engine, model = engines[True], models.load(tiny_model(True))
    update(engine, model, 1)
    for one in generate(engine, [models.start(index) for index in range(4)], GREEDY):
        prompt = torch.from_numpy(one.start.prompt_ids.astype(np.int64))[None]
        whole = model.generate(prompt, do_sample=False, max_new_tokens=BUDGET, eos_token_id=models.EOS, pad_token_id=0)
        assert one.tokens.tolist() == whole[0, prompt.shape[1] :].tolist()
        assert largest_gap(model, [one]) < TOLERANCE  # with temperature 0: the model's own, at temperature 1


def test_a_seed_gives_the_same_tokens_in_any_company(engines: dict[bool, Any]) -> None:
    engine = engines[False]
    starts = [models.start(index, prompt=10 + index, samples=3) for index in range(8)]
    together = generate(engine, starts)
    again = generate(engine, starts)
    backwards = generate(engine, starts[::-1])
    alone = [one for start in starts for one in generate(engine, [start])]
    for other in (again, alone, sorted(backwards, key=lambda one: int(one.start.id.split("-")[1]))):
        assert [one.tokens.tolist() for one in other] == [one.tokens.tolist() for one in together]
    assert len({tuple(one.tokens) for one in together}) == len(together)  # samples of a start differ


def test_a_prefix_uses_part_of_the_budget(engines: dict[bool, Any]) -> None:
    for one in generate(engines[True], [models.start(i, prefix=i, samples=2) for i in (1, 8, BUDGET - 1)]):
        room = BUDGET - len(one.start.prefix_ids)
        assert len(one.tokens) == room if one.finish is Finish.LENGTH else len(one.tokens) <= room


def test_a_continuation_ends_with_the_end_token_or_at_its_budget(engines: dict[bool, Any], tiny_model: Get) -> None:
    model = models.load(tiny_model(True))
    update(engines[True], model, 1)
    found = generate(engines[True], [models.start(index, samples=8) for index in range(16)])
    for one in found:
        assert (models.EOS in one.tokens) == (one.finish is Finish.STOP)
        assert one.finish is Finish.LENGTH or one.tokens.tolist().index(models.EOS) == len(one.tokens) - 1
    assert {one.finish for one in found} == {Finish.STOP, Finish.LENGTH}


def test_more_context_than_one_step_reads(engines: dict[bool, Any], tiny_model: Get) -> None:
    model = models.load(tiny_model(True))
    update(engines[True], model, 1)
    starts = [models.start(index, prompt=41) for index in range(101)]  # 101 x 41 = 4,141 tokens; a step reads 4,096
    found = generate(engines[True], starts, Sampling(1.0, 1.0, 2))
    assert largest_gap(model, found) < TOLERANCE


def test_nucleus_logprobs_are_those_of_the_truncated_distribution(engines: dict[bool, Any], tiny_model: Get) -> None:
    model = models.load(tiny_model(True))
    update(engines[True], model, 1)
    for one in generate(engines[True], [models.start(index) for index in range(4)], Sampling(1.0, 0.6, BUDGET)):
        with torch.no_grad():
            logits = model(torch.from_numpy(one.sequence_ids.astype(np.int64))[None]).logits[0]
        for position, (token, logprob) in enumerate(zip(one.tokens, one.logprobs, strict=True)):
            ordered, ids = torch.softmax(logits[len(one.start.context_ids) - 1 + position], -1).sort(descending=True)
            kept = ordered.cumsum(0) - ordered < 0.6  # the smallest set that holds 0.6 of the mass
            rank = int((ids == int(token)).nonzero())
            assert kept[rank]
            assert abs(float(torch.log(ordered[rank] / ordered[kept].sum())) - logprob) < TOLERANCE


def test_samples_in_flight_go_on_with_new_weights(engines: dict[bool, Any], tiny_model: Get, tmp_path: Path) -> None:
    engine, old = engines[True], models.load(tiny_model(True))
    new = models.load(models.build(tmp_path, True, seed=9))
    update(engine, old, 1)
    starts = [models.start(index, samples=4) for index in range(8)]
    ledger = Ledger()
    ledger.add(starts, RANDOM)
    result = ray.get(engine.generate.remote(ledger.take("engine", 32), 0.01, 0))
    assert result.unfinished > 0
    ledger.accept(result.finished)
    update(engine, new, 2)
    ledger.accept(ray.get(engine.generate.remote([], PATIENT, 0)).finished)
    found = [one for start in starts for one in ledger.collect(start.id)]
    mixed = [one for one in found if set(one.versions.tolist()) == {1, 2}]
    assert mixed
    for one in mixed:
        by = {version: models.logprobs(model, one.sequence_ids) for version, model in ((1, old), (2, new))}
        expected = [by[int(v)][-len(one.tokens) + i] for i, v in enumerate(one.versions)]
        np.testing.assert_allclose(one.logprobs, expected, atol=TOLERANCE)
    update(engine, old, 1)


def test_what_is_aborted_is_gone_and_may_come_again(engines: dict[bool, Any]) -> None:
    engine, starts = engines[True], [models.start(index, samples=4) for index in range(8)]
    expected = generate(engine, starts)
    jobs = [Job(start, RANDOM, (0, 1, 2, 3)) for start in starts]
    assert ray.get(engine.generate.remote(jobs, 0.01, 0)).unfinished > 0
    ray.get(engine.abort.remote())
    assert ray.get(engine.generate.remote([], PATIENT, 0)).unfinished == 0
    assert [one.tokens.tolist() for one in generate(engine, starts)] == [one.tokens.tolist() for one in expected]


def test_an_engine_sleeps_when_it_has_nothing_to_do_and_wakes_for_whatever_comes(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path
) -> None:
    """vLLM's own states of sleep: on CPU its scheduler stops and starts as on a GPU, only the memory stays where it
    is."""
    engine, old = engines[True], models.load(tiny_model(True))
    new = models.load(models.build(tmp_path, True, seed=12))
    update(engine, old, 1)
    starts = [models.start(index, samples=2) for index in range(4)]
    expected, weights = generate(engine, starts), models.weights(new, 2)
    jobs, asked = [Job(start, RANDOM, (0, 1)) for start in starts], [one.sequence_ids for one in expected]

    def naps(actor: Any) -> tuple[list[bool], list[Continuation], list[Any]]:
        engine: VllmEngine = actor._engine
        asleep = []

        def after(call: Callable[[], Any]) -> Any:
            answer = call()
            asleep.append(engine._engine.is_sleeping())
            return answer

        engine._sleeps = True
        engine.add(jobs)
        after(lambda: engine.run(PATIENT))
        after(engine.abort)  # it needs no memory
        after(lambda: engine.load_weights(weights))  # without the cache, which comes back with the next samples
        assert engine._asleep == {"kv_cache"}
        engine.add(jobs)
        after(lambda: engine.run(0.0))  # this leaves samples in flight
        batch = after(lambda: engine.run(PATIENT))
        scores = after(lambda: engine.sequence_logprobs(asked))
        after(lambda: engine.add(jobs))
        after(lambda: engine.run(PATIENT))
        engine._sleeps = False
        engine._wake(*SLEEPERS)
        return asleep, batch, scores

    asleep, batch, scores = ray.get(engine.__ray_call__.remote(naps), timeout=300)
    assert asleep == [True, True, True, False, True, True, False, True]
    ledger = Ledger()
    ledger.add(starts, RANDOM)
    ledger.take("engine", ledger.open)
    ledger.accept(batch)
    assert largest_gap(new, [one for start in starts for one in ledger.collect(start.id)]) < TOLERANCE
    for sequence, score in zip(asked, scores, strict=True):
        np.testing.assert_allclose(score, models.logprobs(new, sequence), atol=TOLERANCE)
    update(engine, old, 1)
    assert [one.tokens.tolist() for one in generate(engine, starts)] == [one.tokens.tolist() for one in expected]


def test_a_response_that_repeats_itself_is_cut_and_counts_as_truncated(engines: dict[bool, Any]) -> None:
    greedy = Sampling(0.0, 1.0, 48)
    starts = [models.start(index) for index in range(24)]
    whole = generate(engines[True], starts, greedy)

    def detect(actor: Any, on: bool) -> None:
        from actors.vllm_setup import sampling_extras

        given = {"repetition_detection": {"max_pattern_size": 4, "min_count": 3}} if on else {}
        actor._engine._extra = sampling_extras(given, 12, actor._engine._engine)

    ray.get(engines[True].__ray_call__.remote(detect, True), timeout=60)
    try:
        cut = generate(engines[True], starts, greedy)
    finally:
        ray.get(engines[True].__ray_call__.remote(detect, False), timeout=60)
    repeating = 0
    for long, short in zip(whole, cut, strict=True):
        text = long.tokens.tolist()
        ends = [n for n in range(1, len(text) + 1) if repeats(text[:n], 4, 3)]
        assert short.tokens.tolist() == (text[: ends[0]] if ends else text)
        assert (short.finish is Finish.REPETITION) == bool(ends and ends[0] < len(text))
        assert short.finish.truncated or short.tokens[-1] == models.EOS
        repeating += bool(ends)
    assert repeating  # a small random model falls into loops when it is greedy


def repeats(text: list[int], longest: int, times: int) -> bool:
    """Whether the last tokens are a pattern of at most `longest` tokens, `times` times in a row."""
    return any(
        size * times <= len(text) and text[-size * times :] == text[-size:] * times for size in range(1, longest + 1)
    )


def test_weights_that_lack_a_parameter_are_refused(engines: dict[bool, Any], tiny_model: Get) -> None:
    model = models.load(tiny_model(False))
    weights = pack([pair for pair in model.named_parameters() if "layers.1.mlp.down_proj" not in pair[0]], 5)
    with pytest.raises(WeightError, match=r"version 5 .*model\.layers\.1\.mlp\.down_proj"):
        ray.get(engines[False].load_weights.remote(weights))
    update(engines[False], models.load(tiny_model(False)), 6)  # and the engine still takes others


def test_a_checkpoint_without_end_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json .*eos_token_id"):
        stop_tokens(str(tmp_path))


def test_a_batch_shares_its_contexts_through_the_cache_and_leaves_nothing_in_it(
    engines: dict[bool, Any], tiny_model: Get
) -> None:
    """Of a context of 44 tokens the cache keeps one block of 32. A batch must not depend on earlier ones: a resumed run
    does not make the evaluation before its first batch."""
    engine, model = engines[True], models.load(tiny_model(True))
    starts = [models.start(index, prompt=44, samples=3) for index in range(2)]

    def cached(actor: Any) -> list[list[int]]:
        """[start][sample]: tokens of the context that were not read again."""
        inner, found = actor._engine._engine, {}
        step = inner.step

        def noting() -> Any:
            outputs = step()
            found.update({output.request_id: output.num_cached_tokens for output in outputs})
            return outputs

        inner.step = noting
        actor._engine.add([Job(start, RANDOM, (0, 1, 2)) for start in starts])
        actor._engine.run(PATIENT)
        inner.step = step
        return [[found[f"{sample}/{start.id}"] for sample in range(3)] for start in starts]

    for version in (1, 2):
        update(engine, model, version)
        for _ in range(2):
            assert ray.get(engine.__ray_call__.remote(cached), timeout=300) == [[0, 32, 32], [0, 32, 32]]


def test_a_cached_prefix_is_forgotten_with_its_weights(
    engines: dict[bool, Any], tiny_model: Get, tmp_path: Path
) -> None:
    """Contexts of more than one block of the cache (32 tokens), read by the old weights before the new ones arrive.
    Samples in flight keep the cache."""
    engine, old = engines[False], models.load(tiny_model(False))
    new = models.load(models.build(tmp_path, False, seed=11))
    starts = [models.start(index, prompt=44, samples=3) for index in range(4)]
    jobs = [Job(start, RANDOM, (0, 1, 2)) for start in starts]
    for version, model in ((1, old), (2, new), (3, old)):
        assert ray.get(engine.generate.remote(jobs, 0.0, 0)).unfinished > 0
        update(engine, model, version)
        ray.get(engine.abort.remote())
        assert largest_gap(model, generate(engine, starts)) < TOLERANCE


def test_an_unreadable_model_is_named(ray_cluster: None, tiny_model: Get, tmp_path: Path) -> None:
    """Of a small model, without weights."""
    shutil.copy(tiny_model(True) / "config.json", tmp_path)
    with pytest.raises(ModelError, match=r"model\.path = "):
        launch(tmp_path, actors=1)


def test_engines_stop_at_the_tokenizers_end_too(tmp_path: Path) -> None:
    """As with ChatML, where config.json may name another token."""
    models.save_tokenizer(tmp_path)  # its end is token 1
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "eos_token_id": 7}', encoding="utf-8")
    assert stop_tokens(str(tmp_path)) == [models.EOS, 7]


def test_the_tokenizers_end_counts_for_a_name_of_the_hub_too(tmp_path: Path) -> None:
    """The same files, in the cache of the hub, without a network."""
    cached = tmp_path / "models--own--model"
    folder = cached / "snapshots" / ("0" * 40)
    models.save_tokenizer(folder)
    (folder / "config.json").write_text('{"model_type": "qwen2", "eos_token_id": 7}', encoding="utf-8")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    code = "from actors.vllm_setup import stop_tokens; print(stop_tokens('own/model'))"
    offline = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=offline, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == str([models.EOS, 7])


def test_ends_that_are_no_tokens_are_named(tmp_path: Path) -> None:
    models.save_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2", "eos_token_id": 7}', encoding="utf-8")
    file = tmp_path / "generation_config.json"
    for text, told in (
        ('{"eos_token_id": "x"}', "eos_token_id 'x'"),
        ('{"eos_token_id": [1, 2.5]}', "2.5"),
        ("[", file.name),
    ):
        file.write_text(text)
        with pytest.raises(ModelError, match=told):
            stop_tokens(str(tmp_path))
