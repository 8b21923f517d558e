"""The task reasoning_gym: data sets that the package `reasoning-gym` generates, with its own graded scores.

`task.path` names a data set, `task.parameters` are its parameters. Invariants: the same seed gives the same problems in
every process; training and held-out problems have seeds from ranges that do not meet, and the held-out ones are the
same in every run. A reference holds the whole entry of the package, so that its problem is not made again to be judged.
"""

import base64
import difflib
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from core import ROOT
from core.config import Columns, TaskConfig
from core.errors import ConfigError, DataError, first_line
from core.records import Verdict
from core.seeds import derive
from tasks.kinds import GENERATED, TaskKind
from tasks.problems import Item, level_of, solution_of, text_of
from tasks.sources import Row

TRAINING_SEEDS = 2**30  # a data set makes its problem i with its seed + i, which NumPy bounds to 2^32
HELD_OUT_SEED = 3 * 2**29
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def reasoning_rows(config: TaskConfig, seed: int, held_out: bool) -> list[Row]:
    """The rows of a data set, with the columns `prompt`, `answer`, `metadata` and what `read_reasoning` needs. Raises
    ConfigError for an unknown data set or parameter, or without the package; DataError if it generates nothing."""
    name = (config.eval_path if held_out else "") or config.path
    count = config.eval_problems if held_out else config.problems or GENERATED
    if taken := {"seed", "size"} & config.parameters.keys():
        raise ConfigError(
            f"task.parameters has {min(taken)!r}, which follows from run.seed, task.problems and task.eval_problems; "
            "leave it out"
        )
    parameters = json.dumps(config.parameters)
    _data_set(name, parameters)
    first = HELD_OUT_SEED if held_out else derive(seed, "reasoning_gym", name) % TRAINING_SEEDS
    entries = _generated(name, parameters, first, count)
    return [row_of(name, parameters, first + index, entry) for index, entry in enumerate(entries)]


def row_of(name: str, parameters: str, seed: int, entry: Mapping[str, Any]) -> Row:
    """The row of an entry of the package."""
    return {
        "prompt": entry["question"],
        "answer": entry["answer"],
        "metadata": entry["metadata"],
        "made": {"data_set": name, "parameters": parameters, "seed": seed},
        "entry": base64.b64encode(pickle.dumps(entry)).decode(),
    }


def read_reasoning(row: Row, columns: Columns, where: str) -> Item:
    """The item of a row. Raises DataError."""
    reference = json.dumps({"answer": row["answer"], **row["made"], "entry": row["entry"]}, default=str)
    prompt = text_of(row, columns.prompt, "prompt", where)
    return Item(prompt, reference, level_of(row, columns), solution_of(row, columns, where))


def tagged_answer(response: str) -> str | None:
    """The last text between <answer> and </answer>; None without.

    >>> tagged_answer("<answer>5</answer>, no: <answer> 4 </answer>"), tagged_answer("4")
    ('4', None)
    """
    answers = _ANSWER.findall(response)
    return answers[-1].strip() if answers else None


def verify_reasoning(reference: str, response: str) -> Verdict:
    """The data set's score, from 0 to 1, of the tagged answer, or of the whole response without tags. Correct is a
    score of 1."""
    row = json.loads(reference)
    answer = tagged_answer(response)
    answer = response.strip() if answer is None else answer
    entry = pickle.loads(base64.b64decode(row["entry"]))  # what `reasoning_rows` wrote
    try:
        score = float(_data_set(row["data_set"], row["parameters"]).score_answer(answer, entry))
    except Exception as error:  # some data sets raise for an answer that they cannot read
        return Verdict(0.0, False, f"score 0: {answer[:40]!r} ({type(error).__name__}: {first_line(error)})")
    right = score >= 1.0
    why = "" if right else f"score {score:g}: {answer[:40]!r}"
    return Verdict(score, right, why, share=min(max(score, 0.0), 1.0))


def prepare_judge() -> None:
    """Import the package before the time of the first verdict begins."""
    _package()


def _package() -> Any:
    try:
        import reasoning_gym
    except ImportError as error:
        raise ConfigError(
            f"task reasoning_gym needs the package reasoning-gym ({first_line(error)}); run `pip install --no-deps -r "
            "requirements/reasoning.txt`"
        ) from None
    return reasoning_gym


@lru_cache(16)
def _data_set(name: str, parameters: str, seed: int = 0, size: int = 1) -> Any:
    """A data set of the package; problem i is `[i]`. Raises ConfigError."""
    data_sets: Mapping[str, Any] = _package().factory.DATASETS
    if name not in data_sets:
        near = difflib.get_close_matches(name, data_sets, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"task.path = {name!r} is no data set of Reasoning Gym; the nearest of its {len(data_sets)} is {near!r} "
            "(all: sorted(reasoning_gym.factory.DATASETS))"
        )
    try:
        return _package().create_dataset(name, **json.loads(parameters), seed=seed, size=size)
    except (AssertionError, TypeError, ValueError) as error:  # an unknown parameter, or a value out of its range
        raise ConfigError(f"task.parameters of {name}: {first_line(error)}; correct or leave it out") from None


@lru_cache(8)
def _generated(name: str, parameters: str, seed: int, count: int) -> list[dict[str, Any]]:
    """Entries, from a process with a fixed hash seed: some data sets visit sets of texts in the order of their hashes.
    Raises DataError."""
    places = os.pathsep.join(dict.fromkeys([str(ROOT), *(path for path in sys.path if path)]))
    command = [sys.executable, "-P", "-m", __name__, name, parameters, str(seed), str(count)]
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": places}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    if done.returncode:
        last = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no message"])[-1]
        raise DataError(f"task.path = {name}: Reasoning Gym made no {count} problems ({last}); name another data set")
    entries: list[dict[str, Any]] = pickle.loads(done.stdout)
    return entries


def _generate() -> None:
    """Write entries to the output, for `_generated`. What data sets print goes to the error stream."""
    name, parameters, seed, count = sys.argv[1:]
    with os.fdopen(os.dup(1), "wb") as output:
        os.dup2(2, 1)
        data = _data_set(name, parameters, int(seed), int(count))
        pickle.dump([data[index] for index in range(int(count))], output)


TASK = TaskKind(
    "tasks.synthetic.reasoning_gym:verify_reasoning", read=read_reasoning, rows=reasoning_rows, answer=tagged_answer
)

if __name__ == "__main__":
    _generate()
