"""TRL's GRPO trainer, one iteration per line on its input.

    python -m bench.loop.trl FOLDER

FOLDER contains `job.json` (see `Job`). For each line that it reads, it runs one iteration (generation, reward, all
optimizer steps) and writes one line of JSON (see `TrlLap`). On CPU TRL generates with transformers, because its vLLM
modes need a GPU; on a GPU with vLLM, colocated. It runs as WORLD_SIZE data-parallel processes; RANK 0 reads and
answers.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import TrainerCallback

from tasks.synthetic.arithmetic import verify_arithmetic


class TrlLap(NamedTuple):
    """One iteration."""

    tokens: int  # generated, by all processes
    seconds: float


@dataclass(frozen=True, slots=True)
class Job:
    """The work of our loop, for TRL."""

    model: str
    prompts: list[str]
    references: list[str]
    starts: int  # prompts per iteration
    samples: int
    max_response_tokens: int
    minibatches: int  # optimizer steps per iteration
    policy_lr: float
    iterations: int
    device: str = "cpu"
    eager: bool = False  # on a GPU: vLLM without CUDA graphs and compilation


GPU_ROWS = 32  # responses of one pass on a GPU: TRL keeps the logits of all their tokens
ON_CPU: dict[str, Any] = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False}
COLOCATED: dict[str, Any] = {
    "bf16": True,
    "gradient_checkpointing": True,
    "use_vllm": True,
    "vllm_mode": "colocate",
    "vllm_gpu_memory_utilization": 0.3,
    "vllm_enable_sleep_mode": True,
}
"""On a GPU: weights in fp32, passes in bf16, generation by vLLM on the same GPU, which sleeps during the update."""


def settings(job: Job, folder: Path, processes: int) -> Any:
    """TRL's settings for this work."""
    from trl import GRPOConfig

    minibatch = job.starts * job.samples // job.minibatches // processes
    passes = 1 if job.device == "cpu" else max(1, minibatch // GPU_ROWS)  # of an optimizer step
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=minibatch // passes,
        gradient_accumulation_steps=passes,
        steps_per_generation=job.minibatches * passes,
        num_generations=job.samples,
        max_completion_length=job.max_response_tokens,
        max_steps=job.iterations * job.minibatches,
        learning_rate=job.policy_lr,
        temperature=1.0,
        beta=0.0,
        **(ON_CPU if job.device == "cpu" else COLOCATED),
        ddp_backend="gloo" if processes > 1 else None,
        ddp_find_unused_parameters=False,
        dataloader_num_workers=0,
        save_strategy="no",
        report_to="none",
        logging_steps=10**6,
        disable_tqdm=True,
    )


class Pace(TrainerCallback):  # type: ignore[misc]
    """Runs an iteration for each line that rank 0 reads, and answers with its `TrlLap`."""

    def __init__(self, job: Job, answers: Any) -> None:
        self._minibatches, self._answers = job.minibatches, answers
        self._rank, self._processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._tokens, self._begun = 0, 0.0

    def reward(
        self, completions: list[str], completion_ids: list[list[int]], reference: list[str], **_: Any
    ) -> list[float]:
        """Judge the responses of one process, and count their tokens."""
        self._tokens += sum(map(len, completion_ids))
        return [verify_arithmetic(gold, text).reward for gold, text in zip(reference, completions, strict=True)]

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Before an iteration's first optimizer step: wait for a line, then start all processes together."""
        if state.global_step % self._minibatches:
            return
        if self._rank == 0 and not sys.stdin.readline():
            sys.exit(0)
        if self._processes > 1:
            torch.distributed.barrier()  # without it the other processes would already generate
        self._begun, self._tokens = time.perf_counter(), 0

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """After an iteration's last optimizer step: write the tokens of all processes and the seconds."""
        if state.global_step % self._minibatches:
            return
        seconds, count = time.perf_counter() - self._begun, torch.tensor(self._tokens)
        if self._processes > 1:
            torch.distributed.all_reduce(count)
        if self._rank == 0:
            self._answers.write(json.dumps(TrlLap(int(count), seconds)) + "\n")
            self._answers.flush()


def trainer(job: Job, folder: Path, answers: Any) -> Any:
    """A GRPO trainer for this job, with weights in float32, which logs and saves nothing."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    pace, arguments = Pace(job, answers), settings(job, folder, int(os.environ["WORLD_SIZE"]))
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    rows = Dataset.from_dict({"prompt": job.prompts, "reference": job.references})
    model = AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32)
    if job.eager:
        from trl.generation import vllm_generation

        vllm_generation.LLM = partial(vllm_generation.LLM, enforce_eager=True)
    return GRPOTrainer(model, pace.reward, arguments, rows, processing_class=tokenizer, callbacks=[pace])


def main(folder: Path) -> None:
    """Train until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the trainer's prints must not mix with the answers
    job = Job(**json.loads((folder / "job.json").read_text()))
    trainer(job, folder, answers).train()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
