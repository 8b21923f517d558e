"""`launch.py export`: into a folder, and to a server that speaks the hub's protocol."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
import yaml

import launch
from commands.export import model_card
from core.load import dump_config, load_config, override
from core.run_directory import RunDirectory
from tests.trainer.examples import iteration
from trainer.metrics import JsonlSink

ROOT = Path(__file__).parents[2]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two iterations, an evaluation, and a checkpoint whose policy is two small files."""
    made = RunDirectory.create(tmp_path, "mine", "demo")
    made.config.write_text(dump_config(load_config("configs/arithmetic.yaml")))
    sink = JsonlSink(made.metrics, last=0)
    for number in (1, 2):
        sink.write(iteration(number))
    sink.close()
    record = {"success": 0.29, "low": 0.25, "high": 0.33, "problems": 256, "pass": {}, "levels": [], "sources": []}
    made.evaluations.write_text(json.dumps({"iteration": 2, **record}) + "\n")
    policy = made.checkpoints / "000002" / "policy"
    policy.mkdir(parents=True)
    (policy.parent / "progress.json").write_text("{}")
    (policy / "config.json").write_text('{"model_type": "qwen2"}')
    (policy / "model.safetensors").write_bytes(b"weights")
    (made.checkpoints / "latest").write_text("000002")
    return made.path


def test_a_folder_gets_model_card_and_curves(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert launch.main(["export", str(run), "--to", str(folder)]) == 0
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    assert {path.name for path in folder.iterdir()} >= {"config.json", "config.yaml", "metrics.jsonl", "curves.png"}
    card = (folder / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["tags"][0] == "reinforcement-learning"
    assert "| 2 | 29.0 % | 25.0 to 33.0 % | 256 |" in card
    assert "replay share 0.5 (ranking `learnability`)" in card
    assert "trained from `starter`" in card
    assert "**Data.** generated, task `arithmetic`." in card


def test_the_card_names_base_model_data_recipe_and_the_results_on_evaluation_sets(run: Path) -> None:
    made = RunDirectory(run)
    fields = ["--model.path", "someone/base", "--task.name", "gsm8k", "--task.path", "openai/gsm8k:main"]
    fields += ["--learner.lora_rank", "8", "--learner.policy_lr", "1e-5", "--run.seed", "7"]
    fields += ["--task.eval_sets", '[{"label": "exam", "path": "some/exam.jsonl"}]']
    config = override(load_config("configs/arithmetic.yaml"), fields)
    record = {"problems": 4, "success": 0.5, "low": 0.25, "high": 0.75, "pass": {}}
    record |= {"truncated": 0.0, "left_out": 0, "judge_failures": 0, "levels": [], "sources": []}
    line = {"iteration": 2, **record, "sets": [{"set": "exam", **record, "sets": []}]}
    later = {**line, "iteration": 4, "success": 0.9}  # of a policy that is not the exported one
    made.evaluations.write_text("".join(json.dumps(one) + "\n" for one in (line, later)))
    card = model_card(config, made, 2)
    head = yaml.safe_load(card.split("---")[1])
    assert (head["base_model"], head["datasets"]) == ("someone/base", ["openai/gsm8k"])
    assert "LoRA of rank 8, alpha 16; the adapters are in `adapter`, learning rate 1e-05" in card
    assert "seed 7" in card
    assert "after iteration 2." in card
    assert "| 2 | 50.0 % |" in card
    assert "90.0 %" not in card
    assert "an update repeats up to 32 own successes" in card
    assert "by reinforcement learning with retrospective replay" in card
    plain = ["--replay.ratio", "0", "--replay.imitated", "0", "--algorithm.positive_coefficient", "0"]
    card = model_card(override(config, plain), made, 2)
    assert "no replay, no imitation, seed 7" in card
    assert "retrospective" not in card
    assert "exam         4  50.0 % (25.0 to 75.0)" in card
    assert "exam: some/exam.jsonl, task `gsm8k`" in card


def test_a_folder_with_files_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["export", str(run), "--to", str(run)]) == 2
    assert f"error: --to {run}: not an empty folder" in capsys.readouterr().err


class Hub(BaseHTTPRequestHandler):
    """What an upload of small files asks of a hub; keeps what is committed."""

    created: ClassVar[list[dict[str, object]]] = []
    files: ClassVar[dict[str, bytes]] = {}
    tokens: ClassVar[set[str]] = set()
    private: ClassVar[bool] = True

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.tokens.add(self.headers["Authorization"])
        url = f"http://{self.headers['Host']}/someone/model"
        if self.path == "/api/repos/create":
            self.created.append(json.loads(body))
            answer: dict[str, object] = {"url": url, "name": "someone/model"}
        elif self.path == "/api/models/someone/model/preupload/main":
            names = [file["path"] for file in json.loads(body)["files"]]
            answer = {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
        elif self.path == "/api/validate-yaml":  # of the model card
            answer = {"errors": [], "warnings": []}
        else:
            assert self.path == "/api/models/someone/model/commit/main"
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            answer = {"commitUrl": f"{url}/commit/1", "commitOid": "1", "success": True}
        self._answer(answer)

    def do_GET(self) -> None:
        if self.path == "/api/models/someone/model":
            self._answer({"id": "someone/model", "private": self.private, "tags": [], "siblings": []})
        else:
            self.send_error(404)

    def _answer(self, answer: dict[str, object]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def export_to(hub: str, run: Path, token: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "launch.py", "export", str(run), "--to", "hub:someone/model"],
        cwd=ROOT,
        env={**os.environ, "HF_ENDPOINT": hub, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_hub_gets_the_same_files_in_a_private_repository(run: Path, hub: str) -> None:
    done = export_to(hub, run, "hf_secret")
    assert done.returncode == 0, done.stderr
    assert Hub.created[0]["visibility"] == "private"
    assert Hub.files["model.safetensors"] == b"weights"
    assert set(Hub.files) >= {"README.md", "config.json", "config.yaml", "curves.png", "metrics.jsonl"}
    assert Hub.tokens == {"Bearer hf_secret"}
    assert "hf_secret" not in done.stdout + done.stderr


def test_a_public_repository_gets_nothing_unasked(run: Path, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub, "private", False)
    monkeypatch.setattr(Hub, "files", {})
    done = export_to(hub, run, "hf_secret")
    assert done.returncode == 2
    assert "error: --to hub:someone/model: this repository is public; add --public, or name another" in done.stderr
    assert Hub.files == {}


def test_a_hub_that_cannot_be_reached_is_one_line(run: Path) -> None:
    done = export_to("http://127.0.0.1:9", run, "hf_secret")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "--to hub:someone/model: upload failed" in line
    assert "hf_secret" not in done.stderr
