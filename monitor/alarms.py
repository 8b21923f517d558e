"""Lines that warn a person about a run that has stopped learning, from the iterations so far, once per spell."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.metrics import IterationMetrics

SPELL = 10  # iterations without any reward, or with useless replay, after which a person is told
NEAR = 0.02  # distance of a success from 1 at which 4 p (1 - p) is under 0.08: such starts teach next to nothing
RARE = 0.05  # success below which rewards are rare: with 8 samples, two starts in three have none
MOST_REPLAYED, LEAST_ROOT = 0.8, 0.1  # success of lost roots in generated tasks: runs that learn hardly ever have both
LEARNT, HARDLY = 0.2, 0.002  # replayed success of chains being learnt, root success of at most one in 512 rollouts
HOLDS = 0.2  # weight of the KL to the reference that held the root in `bench.learning` while it hardly succeeded
MOST_KL = 0.01  # KL of an update in nats per token that may be damage, if the root succeeds less than before
SPIKE, SPIKES = 0.05, 3  # a KL too large at any success, and in how many updates in a row: single ones are usual
CUT = 0.2  # share of truncated responses after the first iteration that is told: their rewards say nothing
GROWN, LEAST_GAP = 4.0, 1e-3  # growth of the gap between engines and learner that is told, and what is small anyway
GONE = 0.02  # entropy in nats per token, and share of its first value, below which a policy explores nothing


@dataclass(frozen=True, slots=True)
class Alarm:
    """A condition on the iterations so far, and what a person is told about it."""

    holds: Callable[[Sequence[IterationMetrics]], bool]
    text: str

    @property
    def name(self) -> str:
        """That of the condition."""
        return self.holds.__name__


def alarms(shown: Sequence[IterationMetrics]) -> list[Alarm]:
    """Those that hold in the newest iteration and did not in the one before."""
    return [alarm for alarm in ALARMS if alarm.holds(shown) and not alarm.holds(shown[:-1])]


def no_reward(shown: Sequence[IterationMetrics]) -> bool:
    """Whether every reward of the last iterations was 0."""
    return len(shown) >= SPELL and all(metrics.reward == 0 for metrics in shown[-SPELL:])


def replay_fails(shown: Sequence[IterationMetrics]) -> bool:
    """Whether hardly any replayed start of the last iterations succeeded, though something did."""
    recent = shown[-SPELL:]
    return len(recent) == SPELL and all(metrics.replay_success < RARE for metrics in recent) and not no_reward(shown)


def replay_mastered(shown: Sequence[IterationMetrics]) -> bool:
    """Whether nearly all replayed starts of the last iterations succeeded."""
    return len(shown) >= SPELL and all(metrics.replay_success > 1.0 - NEAR for metrics in shown[-SPELL:])


def many_cut(shown: Sequence[IterationMetrics]) -> bool:
    """Whether many responses of the first iteration used up the budget."""
    return bool(shown) and shown[0].iteration == 1 and shown[0].truncated_share > CUT


def gap_grew(shown: Sequence[IterationMetrics]) -> bool:
    """Whether engines and learner differ on generated tokens by far more than in the first iteration."""
    return bool(shown) and shown[-1].behaviour_gap_mean > max(LEAST_GAP, GROWN * shown[0].behaviour_gap_mean)


def root_lost(shown: Sequence[IterationMetrics]) -> bool:
    """Whether replayed starts succeeded in all of the last iterations, and the root hardly ever (docs/method.md,
    "The root is guarded"). With a KL to the reference near `HOLDS` (it may fade), runs came back from that."""
    recent = shown[-SPELL:]
    lost = all(metrics.replay_success > MOST_REPLAYED and metrics.root_success < LEAST_ROOT for metrics in recent)
    losing = all(metrics.replay_success > LEARNT and metrics.root_success < HARDLY for metrics in recent)
    return len(recent) == SPELL and (lost or (losing and recent[-1].kl_coefficient < HOLDS / 2))


def replay_halved(shown: Sequence[IterationMetrics]) -> bool:
    """Whether the share of replay is halved (`Coverage.replay_costs`)."""
    return bool(shown) and shown[-1].replay_halved > 0


def step_too_large(shown: Sequence[IterationMetrics]) -> bool:
    """Whether the last update moved the policy far, while rewards are rare and half as frequent as before."""
    before, recent = (
        sum(metrics.root_success for metrics in window) for window in (shown[-2 * SPELL : -SPELL], shown[-SPELL:])
    )
    rare = len(shown) >= 2 * SPELL and recent < RARE * SPELL and recent < before / 2
    return rare and shown[-1].kl > MOST_KL


def kl_spike(shown: Sequence[IterationMetrics]) -> bool:
    """Whether the last updates moved the policy too far, and `step_too_large` does not say so."""
    recent = shown[-SPIKES:]
    return len(recent) == SPIKES and all(metrics.kl > SPIKE for metrics in recent) and not step_too_large(shown)


def entropy_gone(shown: Sequence[IterationMetrics]) -> bool:
    """Whether the policy has lost nearly all entropy, though something is left to find. NaN (warm-up) is skipped."""
    measured = [metrics.entropy for metrics in shown if metrics.entropy == metrics.entropy]
    gone = bool(measured) and measured[-1] < GONE and measured[-1] < GONE * measured[0]
    recent = [metrics.root_success for metrics in shown[-SPELL:]]
    return gone and not sum(recent) > (1.0 - NEAR) * len(recent)


ALARMS = (
    Alarm(
        many_cut,
        f"more than {CUT:.0%} of the first responses used up rollout.max_response_tokens and were cut: raise "
        "it, train on solutions first (launch.py sft), or give cut responses no loss (algorithm.overlong mask)",
    ),
    Alarm(
        gap_grew,
        f"engines and learner differ on generated tokens by more than {GROWN:g} times what they did in the "
        "first iteration: look at effective_samples and importance_truncated; if they fall, set "
        "algorithm.importance mask, or start a new run with model.dtype float32",
    ),
    Alarm(
        no_reward,
        f"no reward in {SPELL} iterations: look at samples/; the problems may be too hard, or the answers "
        "lack their form; neither PPO nor replay learns from that: take easier problems, train on solutions first "
        "(launch.py sft), reward parts of an answer, or replay the ends of solutions (replay.ratio 0.5, "
        "replay.canonical true)",
    ),
    Alarm(
        replay_fails,
        f"hardly any replayed start succeeded in {SPELL} iterations: their prefixes are wrong or too hard to "
        "finish; set replay.ranking learnability, set replay.canonical if there are solutions, or lower replay.ratio",
    ),
    Alarm(
        replay_mastered,
        f"nearly all replayed starts succeeded in {SPELL} iterations: they teach nothing; set "
        "replay.ranking learnability or replay.schedule unsolved, or lower replay.ratio",
    ),
    Alarm(
        step_too_large,
        f"rollouts from the root succeed half as often as {SPELL} iterations ago, and the last update had "
        f"a KL above {MOST_KL}: the policy may lose what it can; lower learner.policy_lr, raise "
        "learner.adam_epsilon, or keep the KL to the reference (algorithm.kl_schedule constant)",
    ),
    Alarm(
        root_lost,
        f"replayed starts succeeded in {SPELL} iterations, rollouts from the root in under {LEAST_ROOT:.0%}: "
        f"a few chains are learnt and the rest may be lost; hold the root by algorithm.kl_coefficient {HOLDS} with "
        "algorithm.kl_schedule constant, set replay.fill false, or lower replay.ratio or learner.policy_lr",
    ),
    Alarm(
        replay_halved,
        "prompts, of training or held out, succeed less often than at first, while replayed starts succeed: half as "
        "many starts are replayed until they recover; lower replay.ratio if they do not",
    ),
    Alarm(
        kl_spike,
        f"a KL above {SPIKE} in {SPIKES} updates in a row: they are too large; lower learner.policy_lr or "
        "learner.epochs",
    ),
    Alarm(
        entropy_gone,
        "the policy's entropy is gone: it no longer explores; lower learner.policy_lr, or set "
        "algorithm.entropy_coefficient",
    ),
)
