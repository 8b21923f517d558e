"""TRL's GRPO trainer, one iteration per line on its input: what `bench.loop` compares with. Never used by the project itself.

    PYTHON -m bench.trl_loop FOLDER      PYTHON: an environment with requirements/bench.txt

FOLDER holds `job.json` (see `Job`). For every line read, one iteration runs (generation, reward, all optimizer steps), and one
line of JSON comes out (see `Lap`). It generates with transformers, TRL's way on a machine without GPU: its
vLLM modes need one. With WORLD_SIZE = N it is one of N data-parallel processes, of which RANK 0 reads and answers.
"""

import json
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple


class Lap(NamedTuple):
    """One iteration."""

    tokens: int  # generated, by all processes
    seconds: float
    generation: float  # of these: until the reward is asked for

    @property
    def training(self) -> float:
        """Seconds from the reward to the end of the last optimizer step."""
        return self.seconds - self.generation


@dataclass(frozen=True, slots=True)
class Job:
    """The same work as our loop's."""

    model: str
    prompts: list[str]
    references: list[str]
    starts: int  # prompts per iteration
    samples: int
    max_response_tokens: int
    minibatches: int  # optimizer steps per iteration
    policy_lr: float
    iterations: int


def settings(job: Job, folder: Path, processes: int) -> Any:
    """TRL's settings for this work."""
    from trl import GRPOConfig

    size = job.starts * job.samples
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=size // job.minibatches // processes,
        steps_per_generation=job.minibatches,
        num_generations=job.samples,
        max_completion_length=job.max_response_tokens,
        max_steps=job.iterations * job.minibatches,
        learning_rate=job.policy_lr,
        temperature=1.0,
        beta=0.0,
        use_cpu=True,
        ddp_backend="gloo" if processes > 1 else None,
        ddp_find_unused_parameters=False,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_num_workers=0,
        save_strategy="no",
        report_to="none",
        logging_steps=10**6,
        disable_tqdm=True,
    )


def paced(job: Job, answers: Any) -> tuple[Any, Any]:
    """A reward and a callback that run an iteration for every line that rank 0 reads, and answer with its `Lap`."""
    import torch
    from transformers import TrainerCallback

    from tasks.synthetic.arithmetic import verify_arithmetic

    tokens, asked = [0], [0.0]
    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    def reward(completions: list[str], completion_ids: list[list[int]], reference: list[str], **_: Any) -> list[float]:
        asked[0] = time.perf_counter()
        tokens[0] += sum(map(len, completion_ids))
        return [verify_arithmetic(gold, text).reward for gold, text in zip(reference, completions, strict=True)]

    class Paced(TrainerCallback):  # type: ignore[misc]
        """Waits for a line before each iteration and answers after it."""

        begun = 0.0

        def on_step_begin(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            """Before the first optimizer step of an iteration: all processes begin at once."""
            if state.global_step % job.minibatches == 0:
                if rank == 0 and not sys.stdin.readline():
                    sys.exit(0)
                if processes > 1:
                    torch.distributed.barrier()  # else the others would generate already
                self.begun, tokens[0] = time.perf_counter(), 0

        def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
            """After the last one: tokens of all processes and the time."""
            if state.global_step % job.minibatches == 0:
                seconds, count = time.perf_counter() - self.begun, torch.tensor(tokens[0])
                if processes > 1:
                    torch.distributed.all_reduce(count)
                if rank == 0:
                    answers.write(json.dumps(Lap(int(count), seconds, asked[0] - self.begun)) + "\n")
                    answers.flush()

    return reward, Paced()


def trainer(job: Job, folder: Path, answers: Any) -> Any:
    """A GRPO trainer of these numbers, on CPU in float32, with nothing logged or saved."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOTrainer

    reward, pace = paced(job, answers)
    arguments = settings(job, folder, int(os.environ.get("WORLD_SIZE", "1")))
    tokenizer = AutoTokenizer.from_pretrained(job.model)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    rows = Dataset.from_dict({"prompt": job.prompts, "reference": job.references})
    model = AutoModelForCausalLM.from_pretrained(job.model)
    return GRPOTrainer(model, reward, arguments, rows, processing_class=tokenizer, callbacks=[pace])


def main(folder: Path) -> None:
    """Train as far as lines come in."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the trainer prints must not reach the answers
    job = Job(**json.loads((folder / "job.json").read_text()))
    trainer(job, folder, answers).train()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
