"""Every engine sees the GPU of its learner rank and no other pair's, on one node and on two."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 3), (2, 2)])
def test_engine_and_rank_of_a_pair_are_on_one_gpu(nodes: int, gpus: int) -> None:
    command = [sys.executable, "-m", "tests.trainer.pairs", str(nodes), str(gpus)]
    environment = {
        name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"
    }  # of other tests
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    pairs = json.loads(done.stdout.splitlines()[-1])
    places = [(node, gpu) for node, gpu, _, _ in pairs]
    assert [(node, gpu) for _, _, node, gpu in pairs] == places
    assert len(set(places)) == nodes * gpus
    assert {gpu for _, gpu in places} == {str(number) for number in range(gpus)}
