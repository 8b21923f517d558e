"""Estimates of an evaluation, one model against another, and what is written down: numbers by hand."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow.parquet
import pytest

from commands import evaluate as evaluation
from commands.evaluate import check_rival, check_unseen, compare
from core.config import Config, PartConfig, TaskConfig
from core.errors import ActorError, ConfigError
from core.load import dump_config
from core.parts.sources import roots
from core.records import Finish, Problem, Rollout, Sampling, Start, Verdict
from core.run_directory import RunDirectory, keep_lines
from core.sections.registry import names
from tasks.kinds import find_kind
from tasks.task import EvaluationSet, Task
from tests.trainer.model.test_files import save_model, save_tokenizer
from trainer import build
from trainer.evaluation.files import (
    append_evaluation,
    check_responses_path,
    evaluation_record,
    response_rows,
    write_responses,
)
from trainer.evaluation.scores import (
    Evaluation,
    EvaluationPlan,
    describe_evaluation,
    evaluate_policy,
    powers,
    score_responses,
)

PROBLEMS = [
    Problem("a", np.array([1], np.int32), "3", level="easy", question="1 + 2?"),
    Problem("b", np.array([2], np.int32), "4", level="hard", question="2 + 2?"),
]


def plan(samples: int) -> EvaluationPlan:
    greedy = Sampling(0.0, 1.0, 8)
    return EvaluationPlan(greedy, greedy, samples, seed=0)


def judged(rewards: list[list[float]]) -> list[Rollout]:
    """Responses with these rewards, a list per problem; correct when 1."""
    found = []
    for start, row in zip(roots(PROBLEMS, 1, 0), rewards, strict=True):
        for sample, reward in enumerate(row):
            zeros = np.zeros(1, np.int32)
            log_p = zeros.astype(np.float32)
            verdict = Verdict(reward, reward == 1)
            found.append(Rollout(start, sample, zeros + 9, log_p, zeros, Finish.STOP, verdict=verdict))
    return found


@pytest.fixture
def result() -> Evaluation:
    # easy: greedy right, 1 of 4 samples right; hard: greedy wrong, 2 of 4 samples right
    sampled = judged([[1, 0, 0, 0], [1, 1, 0, 0]])
    answers: dict[str, list[str | None]] = {"a": ["3", "5", "5", "6"], "b": ["4", "4", "7", None]}
    return score_responses(PROBLEMS, judged([[1], [0]]), sampled, answers, seed=0)


def test_greedy_success_pass_at_k_and_majority(result: Evaluation) -> None:
    assert result.success == 0.5
    # Wilson with n = 2, m = 1/2, z^2 = 3.8415: 1/2 +- sqrt(3.8415 (1/8 + 3.8415/16)) / (1 + 3.8415/2) = 1/2 +- 0.4055
    assert (result.overall.success.low, result.overall.success.high) == pytest.approx((0.0945, 0.9055), abs=1e-4)
    # pass@1: (1/4 + 2/4) / 2. pass@2: 1 - C(3,2)/C(4,2) = 1/2 and 1 - C(2,2)/C(4,2) = 5/6. pass@4: both are solved.
    assert [(k, estimate.mean) for k, estimate in result.overall.passes.items()] == [
        (1, 0.375),
        (2, pytest.approx((1 / 2 + 5 / 6) / 2)),
        (4, 1.0),
    ]
    assert result.overall.majority is not None
    assert result.overall.majority.mean == 0.5  # easy: 5 has two votes and is wrong; hard: 4 has two and is right
    assert {level: scores.success.mean for level, scores in result.levels.items()} == {"easy": 1.0, "hard": 0.0}
    assert describe_evaluation(result).startswith(
        "success 50.0 % (95 % interval 9.5 to 90.5) on 2 held-out problems, pass@1 37.5 %"
    )
    assert describe_evaluation(result).endswith("maj@4 50.0 %")


def test_without_samples_there_is_greedy_accuracy_alone() -> None:
    result = score_responses(PROBLEMS, judged([[1], [0]]), [], {}, seed=0)
    assert (result.samples, result.overall.passes, result.overall.majority) == (0, {}, None)
    assert score_responses(PROBLEMS, judged([[1], [0]]), judged([[1], [1]]), {}, seed=0).overall.majority is None
    assert [powers(n) for n in (0, 1, 3, 8)] == [[], [1], [1, 2, 3], [1, 2, 4, 8]]


def test_a_win_is_a_higher_reward_and_a_tie_half_of_one() -> None:
    first = score_responses(PROBLEMS, judged([[1.0], [0.5]]), [], {}, seed=0)
    second = score_responses(PROBLEMS, judged([[0.25], [0.5]]), [], {}, seed=0)
    found = compare(first, second, seed=0)
    assert (found.win_rate.mean, found.ties) == (0.75, 0.5)  # (1 + 1/2) / 2
    assert found.success.mean == 0.5  # one of two problems more
    assert compare(second, first, seed=0).win_rate.mean == 0.25


def test_a_win_counts_the_rewards_of_earlier_turns() -> None:
    """What the printed mean counts, too."""
    first, second = (score_responses(PROBLEMS, judged([[1.0], [0.5]]), [], {}, seed=0) for _ in range(2))
    marked = [replace(one, step_rewards=np.full(one.tokens.size, 5.0, np.float32)) for one in first.greedy]
    assert compare(replace(first, greedy=marked), second, seed=0).win_rate.mean == 1.0


class Engines:
    """Answers all problems but those it is told to leave out, as a pool does that quarantines them."""

    def close(self) -> None:
        pass

    def __init__(self, *left_out: str) -> None:
        self._left_out = left_out

    def generate(self, starts: Sequence[Start], _sampling: Sampling) -> list[Rollout]:
        zeros = np.zeros(1, np.int32)
        return [
            Rollout(start, sample, zeros + 9, zeros.astype(np.float32), zeros, Finish.STOP)
            for start in starts
            if start.problem_id not in self._left_out
            for sample in range(start.samples)
        ]


def task_of(rewards: dict[str, float]) -> Task:
    """Judges a response by its problem alone."""

    def judge(trajectories: Sequence[Rollout]) -> list[Rollout]:
        found = [(item, rewards[item.start.problem_id]) for item in trajectories]
        return [replace(item, verdict=Verdict(reward, reward == 1)) for item, reward in found]

    known = {"evaluation": PROBLEMS, "evaluated": PROBLEMS, "sets": {}}
    return cast(Task, SimpleNamespace(judge=judge, votes=lambda _: {}, decode=str, **known))


def test_a_problem_that_lacks_a_sample_is_left_out() -> None:
    """An environment dropped one of its episodes; the others have all."""
    engines = cast(Any, Engines(""))
    whole = engines.generate
    engines.generate = lambda starts, how: [
        one for one in whole(starts, how) if (one.start.problem_id, one.sample) != ("b", 2)
    ]
    result = evaluate_policy(engines, task_of({"a": 1.0, "b": 0.0}), plan(3))
    assert (result.left_out, len(result.sampled), result.success) == (1, 3, 1.0)


def test_what_was_left_out_and_what_no_judge_could_judge_is_counted() -> None:
    task = cast(Any, task_of({"a": 1.0}))
    failed = Verdict(0.0, False, "judge timed out", judge_failed=True)
    task.judge = lambda items: [replace(item, verdict=failed if item.sample else Verdict(1.0, True)) for item in items]
    result = evaluate_policy(cast(Any, Engines("b")), task, plan(3))
    assert (result.left_out, result.judge_failures, result.success) == (1, 2, 1.0)  # samples 1 and 2 of problem a
    assert describe_evaluation(result).endswith(
        "1 problems left out: no engine could generate them, 2 verdicts counted as wrong: the judge failed"
    )
    kept = evaluation_record(result)
    assert (kept["problems"], kept["left_out"], kept["judge_failures"]) == (1, 1, 2)
    assert [row["judge_failed"] for row in response_rows(result, task, "m")] == [False, False, True, True]


def test_each_evaluation_set_is_evaluated_with_its_own_number_of_samples() -> None:
    task = cast(Any, task_of({"a": 1.0, "b": 0.5}))
    task.sets = {"exam": EvaluationSet(PROBLEMS[:1], None), "aime": EvaluationSet(PROBLEMS[1:], 4)}
    seeds: list[int] = []

    class Watched(Engines):
        def generate(self, starts: Sequence[Start], _sampling: Sampling) -> list[Rollout]:
            seeds.extend(start.seed for start in starts)
            return super().generate(starts, _sampling)

    result = evaluate_policy(cast(Any, Watched()), task, plan(2))
    assert (result.success, result.samples) == (0.5, 2)  # of the held-out problems alone
    assert [(label, one.success, one.samples) for label, one in result.sets.items()] == [
        ("exam", 1.0, 2),  # as many as for the held-out problems
        ("aime", 0.0, 4),
    ]
    assert len(set(seeds)) == len(seeds) == 8  # 2 + 1 + 1 problems, greedy and sampled
    record = evaluation_record(result)
    assert [(one["set"], one["problems"], list(one["pass"])) for one in cast(Any, record["sets"])] == [
        ("exam", 1, ["1", "2"]),
        ("aime", 1, ["1", "2", "4"]),
    ]
    rows = list(response_rows(result, task, "m"))
    assert [row["problem"] for row in rows if row["kind"] == "greedy"] == ["a", "b", "a", "b"]


def test_a_response_that_was_cut_for_repeating_itself_is_truncated_in_its_row() -> None:
    task = cast(Any, task_of({"a": 1.0}))
    judge = task.judge
    task.judge = lambda items: judge([replace(item, finish=Finish.REPETITION) for item in items])
    result = evaluate_policy(cast(Any, Engines("b")), task, plan(0))
    assert [row["truncated"] for row in response_rows(result, task, "m")] == [True] * len(result.greedy)


@pytest.mark.parametrize("place", ["file/r.jsonl", "folder.jsonl"])
def test_a_place_that_cannot_be_written_is_found_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.jsonl").mkdir()
    monkeypatch.setattr(build, "open_model_and_task", None)  # nothing is read or started
    with pytest.raises(ConfigError, match=rf"--responses .*{place}"):
        evaluation.evaluate_models(Config(), "", "", tmp_path / place)
    check_responses_path(tmp_path / "deep" / "r.jsonl")
    assert not (tmp_path / "deep").exists()


def answered(*left_out: str, samples: int = 0, **rewards: float) -> Evaluation:
    return evaluate_policy(cast(Any, Engines(*left_out)), task_of(rewards), plan(samples))


def test_models_are_compared_on_the_problems_that_both_answered() -> None:
    both, hard = answered(a=1.0, b=0.25), answered("a", a=0.0, b=0.5)
    found = compare(both, hard, seed=0)
    assert (found.win_rate.mean, found.ties, found.win_rate.problems) == (0.0, 0.0, 1)  # b alone: 0.25 against 0.5
    easy = answered("b", a=1.0, b=0.0)
    assert compare(both, easy, seed=0).ties == 1.0  # a alone, by name and not by place: 1 against 1
    with pytest.raises(ActorError, match="both models"):
        compare(easy, hard, seed=0)


def test_an_evaluation_without_any_answer_is_an_error_of_the_engines() -> None:
    for samples in (0, 2):
        with pytest.raises(ActorError, match="2 problems"):
            answered("a", "b", samples=samples, a=0.0, b=0.0)
    left = answered("b", samples=2, a=1.0, b=0.0)
    assert (left.success, left.samples, len(left.sampled)) == (1.0, 2, 2)


@pytest.mark.parametrize(
    "left_out", [("a", "b"), ("b",)]
)  # no engine of the other model answers; none what the first did
def test_responses_are_written_before_models_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: tuple[str, ...]
) -> None:
    """The command with stand-ins for engines and models: only what it does when one of them fails is looked at."""
    task = task_of({"a": 1.0, "b": 0.0})
    engines = {"first": Engines("a"), "other": Engines(*left_out)}
    monkeypatch.setattr(
        build,
        "open_model_and_task",
        lambda config, **_: nullcontext(SimpleNamespace(task=task, model="first", config=config)),
    )
    monkeypatch.setattr(build, "connected", lambda *_: nullcontext("cpu"))
    monkeypatch.setattr(evaluation, "check_rival", lambda *_: None)
    monkeypatch.setattr(evaluation, "model_of", lambda path: path.name)
    monkeypatch.setattr(build, "engine_pool", lambda _config, model, *_: engines[model])
    file = tmp_path / "r.jsonl"
    with pytest.raises(ActorError):
        evaluation.evaluate_models(Config(), "first", "other", file)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    expected = [("first", "b")] + ([("other", "a")] if left_out == ("b",) else [])
    assert [(row["model"], row["problem"]) for row in rows] == expected


def test_answers_are_compared_by_value() -> None:
    voted = {name: answer for name in names("task.name") if (answer := find_kind(name).answer)}
    assert {name: answer("+5=12\n#12") for name, answer in voted.items() if name == "arithmetic"} == {
        "arithmetic": "#12"
    }
    assert voted["gsm8k"]("#### 1,080.0") == voted["gsm8k"](r"\boxed{1080}") == "1080"
    assert voted["math"](r"\boxed{\frac{1}{2}}") == voted["math"](r"\boxed{0.5}") == "1/2"
    assert voted["math"](r"\boxed{x+1}") == "x+1"
    assert [answer("nothing") for answer in voted.values()] == [None] * len(voted)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_every_response_is_written_down(tmp_path: Path, result: Evaluation, suffix: str) -> None:
    task = cast(Task, SimpleNamespace(evaluated=PROBLEMS, decode=lambda ids: " ".join(map(str, ids.tolist()))))
    path = tmp_path / f"deep/r{suffix}"
    write_responses(path, list(response_rows(result, task, "m")))
    rows: list[dict[str, Any]] = (
        pyarrow.parquet.read_table(path).to_pylist()
        if suffix == ".parquet"
        else [json.loads(line) for line in path.read_text().splitlines()]
    )
    assert [row["kind"] for row in rows] == ["greedy"] * 2 + ["sampled"] * 8
    assert [row["reward"] for row in rows] == [1, 0, 1, 0, 0, 0, 1, 1, 0, 0]
    assert (rows[1]["problem"], rows[1]["prompt"], rows[1]["response"], rows[1]["reference"]) == (
        "b",
        "2 + 2?",
        "9",
        "4",
    )
    write_responses(path, [{"response": "\ud800é"}])  # half a character has no UTF-8
    read = pyarrow.parquet.read_table(path).to_pylist() if suffix == ".parquet" else [json.loads(path.read_text())]
    assert read == [{"response": "\\ud800é" if suffix == ".parquet" else "\ud800é"}]
    with pytest.raises(ConfigError, match=r"--responses x\.csv.*\.jsonl.*\.parquet"):
        check_responses_path(Path("x.csv"))


def test_the_record_of_an_iteration(tmp_path: Path, result: Evaluation) -> None:
    path = tmp_path / "evaluations.jsonl"
    append_evaluation(path, 3, result)
    line = json.loads(path.read_text())
    assert line == json.loads(json.dumps({"iteration": 3, **evaluation_record(result)}))
    assert (line["success"], line["problems"]) == (0.5, 2)
    assert (line["low"], line["high"]) == (result.overall.success.low, result.overall.success.high)
    assert line["pass"]["4"]["mean"] == 1.0
    assert [level["level"] for level in line["levels"]] == ["easy", "hard"]


def test_a_resumed_run_drops_the_evaluations_that_it_repeats(tmp_path: Path) -> None:
    path = tmp_path / "evaluations.jsonl"
    keep_lines(path, "iteration", 2)
    assert not path.exists()
    lines = [f'{{"iteration": {number}}}\n' for number in (0, 2, 4)]
    path.write_text("".join(lines) + '{"iterat')  # the kill tore the last line
    keep_lines(path, "iteration", 2)
    assert path.read_text() == "".join(lines[:2])


def test_models_of_different_vocabularies_are_not_compared(tmp_path: Path) -> None:
    first, second, same = (
        str(save_tokenizer(save_model(tmp_path / name, vocabulary=16), tokens=tokens))
        for name, tokens in (("a", 8), ("b", 9), ("c", 8))
    )
    check_rival(first, same)
    with pytest.raises(ConfigError, match=r"--against .*b: .*vocabulary"):
        check_rival(first, second)


def test_a_run_is_evaluated_with_the_date_of_its_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, day = RunDirectory.create(tmp_path, "run", "test"), date(2026, 11, 2)
    run.config.write_text(dump_config(Config.model_validate({"model": {"template_date": day}})))
    run.policy.mkdir()
    asked: list[Config] = []

    def checked(config: Config) -> None:
        asked.append(config)
        raise ConfigError("far enough")

    monkeypatch.setattr(evaluation, "check_configuration", checked)
    for config in (Config(), Config.model_validate({"model": {"template_date": date(2026, 1, 1)}})):
        with pytest.raises(ConfigError, match="far enough"):
            evaluation.evaluate_models(config, str(run.path))
    assert [config.model.template_date for config in asked] == [day, date(2026, 1, 1)]


def test_problems_that_a_run_was_trained_on_are_not_evaluated(tmp_path: Path) -> None:
    def run(name: str, **task: Any) -> str:
        made = RunDirectory.create(tmp_path, name, "test")
        made.config.write_text(dump_config(Config(task=TaskConfig(name="gsm8k", path="rows.jsonl", **task))))
        return str(made.path)

    held, other = run("held", eval_problems=8), run("other", eval_path="more.jsonl", eval_problems=8)
    asked = TaskConfig(name="gsm8k", path="rows.jsonl", eval_problems=9)
    with pytest.raises(ConfigError, match=r"task\.eval_problems = 9\b.* 8 "):
        evaluation.evaluate_models(Config(task=asked), held)
    with pytest.raises(ConfigError, match=r"task\.eval_path.*task\.path"):
        evaluation.evaluate_models(Config(task=asked), "", other)
    for harmless in ({"eval_problems": 8}, {"eval_path": "more.jsonl"}, {"path": "elsewhere.jsonl"}):
        check_unseen(asked.model_copy(update=harmless), held)
    check_unseen(TaskConfig(eval_problems=4000), held)
    exam = PartConfig(label="exam", path="rows.jsonl", split="train")
    with pytest.raises(ConfigError, match=r"task\.eval_sets: .*exam"):
        evaluation.evaluate_models(Config(task=TaskConfig(name="gsm8k", path="x", eval_sets=(exam,))), held)
    check_unseen(asked, str(tmp_path))
