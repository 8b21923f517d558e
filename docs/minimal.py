"""The method in one file: PPO with a critic, rollouts that begin in the middle of earlier answers, and discoveries.

`python docs/minimal.py` trains a tiny model on sums, on a CPU in about a minute. The answer to `3+1+2=` is `4`, `6` and
`#6`, a line each, modulo 10; the reward reads only what follows `#`. Begin with `iterate`. tests/test_minimal.py gives
the rollouts of this file to the product and compares the numbers. A problem may be replayed again at once here."""

import copy
import math
import random
from itertools import accumulate, product
from typing import NamedTuple

import torch
from torch import Tensor, nn, where
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForTokenClassification

STARTS, SAMPLES, REPLAYED, IMITATED = 32, 4, 16, 16  # of an iteration; REPLAYED of the starts and IMITATED are the most
PASSES, LR, LAMBDA, CLIP, KL = 2, 1e-3, 0.95, 0.2, 0.01  # a pass over the batch is one optimizer step
END, ALPHABET = "$", "$0123456789+=#\n"  # a token is a character; END ends an answer, and pads
PROBLEMS = ["+".join(digits) + "=" for digits in product("123", repeat=8)]
State = tuple[str, str]  # a problem and a prefix, the beginning of an answer; it is empty at the problem's root


class Rollout(NamedTuple):
    """A state, and what the policy wrote from there on."""

    problem: str
    prefix: str
    text: str

    @property
    def right(self) -> bool:
        """Whether the reward is 1."""
        return (self.prefix + self.text).partition("#")[2] == solution(self.problem).partition("#")[2]


class Batch(NamedTuple):
    """B rows of T + 1 tokens: rollouts to learn from, then answers to imitate. Columns begin at the second token."""

    ids: Tensor  # [B, T + 1] problem, prefix, text, padding
    written: Tensor  # [B, T] bool: the policy wrote the token in this rollout; problem and prefix are context
    imitated: Tensor  # [B, T] bool: the token is of an answer to imitate
    proximal: Tensor  # [B, T] log-probabilities of the policy before the update
    reference: Tensor  # [B, T] the same before training
    rewards: Tensor  # [B, 1]
    advantages: Tensor  # [B, T]


class Run:
    """What an iteration reads and changes."""

    def __init__(self, policy: Qwen2ForCausalLM, problems: list[str]) -> None:
        self.policy, self.reference, self.problems = policy, copy.deepcopy(policy), problems
        self.critic = Qwen2ForTokenClassification(policy.config).eval()  # the policy's trunk with a scalar head, 0 now
        self.critic.model.load_state_dict(policy.model.state_dict())
        nn.init.zeros_(self.critic.score.weight)
        self.adam = torch.optim.AdamW([*policy.parameters(), *self.critic.parameters()], LR, weight_decay=0.0)
        self.states: dict[State, list[float]] = {}  # share of the answer left to decide, right and wrong continuations
        self.succeeds: set[str] = set()  # problems whose root had a success in its latest visit
        self.answers: dict[str, str] = {}  # of each other problem the newest right answer behind a state: a discovery


def iterate(run: Run) -> list[Rollout]:
    """One iteration. A problem is replayed in proportion to its best state: the first ones of a race are drawn."""
    worths = worth(run.states)
    race = sorted(worths, key=lambda problem: random.expovariate(max(worths[problem].values())))[:REPLAYED]
    starts = [(problem, random.choices([*worths[problem]], [*worths[problem].values()])[0]) for problem in race]
    starts += [(problem, "") for problem in random.sample(run.problems, STARTS - len(starts))]
    rollouts = generate(run.policy, [start for start in starts for _ in range(SAMPLES)])
    imitated = random.sample(sorted(run.answers.items()), min(IMITATED, len(run.answers)))
    batch = score(run, rollouts + [Rollout(problem, "", text) for problem, text in imitated], len(rollouts))
    observe(run, rollouts, batch)
    update(run, batch)
    return rollouts


def worth(states: dict[State, list[float]]) -> dict[str, dict[str, float]]:
    """Problem -> prefix -> 4 p (1 - p), the variance of the reward, p the chance of success. Problems that the root
    solves are left out, and states that nearly always succeed or fail: they teach little."""
    found: dict[str, dict[str, float]] = {}
    for (problem, prefix), (left, wins, losses) in states.items():
        _, root_wins, root_losses = states[problem, ""]
        p = (4 / (1 + math.exp(5 * left - 2)) + wins) / (4 + wins + losses)  # the prior counts as four continuations
        if prefix and root_wins <= root_losses and 0.05 <= p <= 0.95 and (losses or not wins):
            found.setdefault(problem, {})[prefix] = 4 * p * (1 - p)
    return found


@torch.no_grad()
def generate(policy: Qwen2ForCausalLM, starts: list[State]) -> list[Rollout]:
    """A continuation of each start, at temperature 1."""
    ids = tokens([((problem + prefix)[::-1], "") for problem, prefix in starts])[0].flip(1)  # padded on the left
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": 20, "eos_token_id": 0, "pad_token_id": 0}
    found = policy.generate(ids, attention_mask=(ids != 0).long(), **options)[:, ids.shape[1] :]
    texts = ["".join(ALPHABET[token] for token in row) for row in found.tolist()]
    return [Rollout(*start, text[: (text + END).index(END) + 1]) for start, text in zip(starts, texts, strict=True)]


@torch.no_grad()
def score(run: Run, rows: list[Rollout], count: int) -> Batch:
    """The batch of an update. Behind the first `count` rows come answers to imitate."""
    ids, text = tokens([(one.problem + one.prefix, one.text) for one in rows])
    written = text & (torch.arange(len(rows)) < count)[:, None]
    values, rewards = run.critic(ids).logits[:, :-1, 0], torch.tensor([[float(one.right)] for one in rows])
    raw, advantages = gae(rewards[:, 0], values, written), torch.zeros_like(values)
    replayed = torch.tensor([[one.prefix != ""] for one in rows])
    for chosen in (written & replayed, written & ~replayed):  # whitened apart; where all rewards are equal, 0
        if len(rewards[chosen.any(dim=1)].unique()) > 1:
            centred = raw[chosen] - raw[chosen].mean()
            advantages[chosen] = centred * (centred.square().mean() + 1e-8).rsqrt()
    logs = logprobs(run.policy, ids), logprobs(run.reference, ids)
    return Batch(ids, written, text & ~written, *logs, rewards, advantages)


def gae(rewards: Tensor, values: Tensor, written: Tensor) -> Tensor:
    """[B, T] generalised advantage estimates (1506.02438). The reward follows the last token, without discount."""
    advantages, following, carry = torch.zeros_like(values), rewards, torch.zeros_like(rewards)
    for t in reversed(range(values.shape[1])):
        carry = where(written[:, t], following - values[:, t] + LAMBDA * carry, carry)
        following = where(written[:, t], values[:, t], following)
        advantages[:, t] = carry
    return advantages


def observe(run: Run, rollouts: list[Rollout], batch: Batch) -> None:
    """Count outcomes. Keep the states of right answers: one behind each line, unless the policy would surely repeat the
    rest. A token decides as much as it surprises. Keep what succeeds behind a state, whole, until the root succeeds."""
    for row, one in enumerate(rollouts):
        logs = batch.proximal[row][batch.written[row]].double()
        run.states.setdefault((one.problem, one.prefix), [1.0, 0, 0])[2 - one.right] += 1
        for at in range(1, len(one.text) * one.right):
            if one.text[at - 1] == "\n" and logs[at:].sum() <= math.log(0.95):
                left = (0.02 - logs[at:]).sum() / (0.02 - logs).sum() * len(one.text) / len(one.prefix + one.text)
                run.states.setdefault((one.problem, one.prefix + one.text[:at]), [float(left), 0, 0])
    roots = [one for one in rollouts if not one.prefix]
    run.succeeds = run.succeeds - {one.problem for one in roots} | {one.problem for one in roots if one.right}
    run.answers |= {one.problem: one.prefix + one.text for one in rollouts if one.right and one.prefix}
    run.answers = {problem: text for problem, text in run.answers.items() if problem not in run.succeeds}


def update(run: Run, batch: Batch) -> None:
    """Train the policy by PPO's loss, a KL and the likelihood of imitated answers, the critic by its squared error."""
    written, advantages = batch.written, batch.advantages
    for _ in range(PASSES):
        run.adam.zero_grad()
        if advantages.any() or batch.imitated.any():
            logs = logprobs(run.policy, batch.ids)
            ratio = (logs - batch.proximal).exp()
            loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP))
            loss = loss + KL * (logs - batch.reference).square() / 2
            likelihood = ratio.clamp(max=1 + CLIP)[batch.imitated].sum() / (written | batch.imitated).sum()
            (loss[written].mean() - likelihood).backward()
        ((run.critic(batch.ids).logits[:, :-1, 0] - batch.rewards)[written].square().mean() / 2).backward()
        for model in (run.policy, run.critic):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        run.adam.step()


def logprobs(policy: Qwen2ForCausalLM, ids: Tensor) -> Tensor:
    """[B, T] the log-probabilities of all tokens [B, T + 1] but the first."""
    return torch.gather(policy(ids).logits[:, :-1].log_softmax(dim=-1), -1, ids[:, 1:, None])[..., 0]


def tokens(rows: list[tuple[str, str]]) -> tuple[Tensor, Tensor]:
    """Contexts and texts as tokens [B, T + 1], and which of them but the first are text [B, T]."""
    width = max(len(context + text) for context, text in rows)
    text = [[len(context) <= at < len(context + text) for at in range(1, width)] for context, text in rows]
    ids = [[ALPHABET.index(one) for one in (context + text).ljust(width, END)] for context, text in rows]
    return torch.tensor(ids), torch.tensor(text)


def solution(problem: str) -> str:
    """The right answer."""
    totals = [total % 10 for total in accumulate(map(int, problem[::2]))]
    return "".join(f"{total}\n" for total in totals[1:]) + f"#{totals[-1]}{END}"


def new_policy(steps: int = 80) -> Qwen2ForCausalLM:
    """A small model that was shown answers. Most of them lacked their last line, the only one with a reward."""
    size = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "initializer_range": 0.06}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_labels": 1, "tie_word_embeddings": True}
    policy = Qwen2ForCausalLM(Qwen2Config(vocab_size=len(ALPHABET), **size, **heads))
    adam = torch.optim.AdamW(policy.parameters(), 3e-3, betas=(0.9, 0.98))
    for _ in range(steps):
        whole = [(problem, solution(problem)) for problem in random.sample(PROBLEMS, 64)]
        ids, text = tokens([(problem, one if random.random() < 0.3 else one[:-3] + END) for problem, one in whole])
        adam.zero_grad()
        (-logprobs(policy, ids)[text].mean()).backward()
        adam.step()
    return policy


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    run = Run(new_policy(), random.sample(PROBLEMS, 256))
    for at in range(1, 41):
        root = [one.right for one in iterate(run) if not one.prefix]
        print(f"iteration {at}: {sum(root) / len(root):.0%} of the rollouts from the root succeed")
