"""The Grafana dashboard of the run's gauges. Open-source Ray has no hook for panels of one's own, so it is shipped as JSON.

`python -m monitor.grafana > docs/grafana.json`; a user imports the file, see docs/cluster.md. Invariant: it names only metrics
of `trainer.metrics.describe`, so a panel cannot be empty because of a renamed number.
"""

import json
from dataclasses import dataclass
from typing import Literal, TypeAlias

from trainer.metrics import PHASES, describe

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None
Unit = Literal["percentunit", "short", "s", "bytes", "none"]  # Grafana's names

GAUGE = "ray_retrospect_"  # Ray puts `ray_` before the gauge's own name
WIDTH, HEIGHT, PER_ROW = 8, 8, 3  # of a panel, on Grafana's 24-column grid


@dataclass(frozen=True, slots=True)
class Panel:
    """One picture: the metrics that are drawn into it."""

    title: str
    unit: Unit
    metrics: tuple[str, ...]
    stacked: bool = False


PANELS = (
    Panel(
        "Success",
        "percentunit",
        ("root_success", "replay_success", "evaluation_success", "evaluation_pass", "evaluation_majority"),
    ),
    Panel("Reward", "none", ("reward",)),
    Panel("Starts", "percentunit", ("replay_share", "erroneous_share", "truncated_share")),
    Panel("Entropy (nats/token)", "none", ("entropy",)),
    Panel("KL (nats/token)", "none", ("kl", "first_kl", "reference_kl")),
    Panel("Explained variance of the critic", "none", ("explained_variance",)),
    Panel("AUC of the critic", "percentunit", ("value_auc", "value_auc_within")),
    Panel("Brier score of the critic", "none", ("value_brier",)),
    Panel("Losses", "none", ("policy_loss", "value_loss")),
    Panel("Gradient norms", "none", ("policy_grad_norm", "value_grad_norm")),
    Panel("Clipped and padding tokens", "percentunit", ("clip_fraction", "importance_truncated", "padding_share")),
    Panel("Learning rates", "none", ("policy_lr", "value_lr")),
    Panel("Weights: importance (mean), KL coefficient", "none", ("importance_mean", "kl_coefficient")),
    Panel(
        "Disagreement of learner and engines (nats)", "none", ("logprob_gap", "behaviour_gap_mean", "behaviour_gap_max")
    ),
    Panel("Staleness (versions)", "none", ("mean_staleness", "max_staleness")),
    Panel("Idle, stale tokens", "percentunit", ("actor_idle", "learner_idle", "stale_tokens")),
    Panel("Queues", "short", ("waiting_samples", "running_samples", "finished_starts")),
    Panel("Seconds by phase", "s", tuple(f"{phase}_seconds" for phase in (*PHASES, "other")), stacked=True),
    Panel("Generated tokens per second", "short", ("tokens_per_second",)),
    Panel(
        "States in the replay store", "short", ("store_states", "store_replayable", "store_evictions", "lost_outcomes")
    ),
    Panel("Replay store: hit rate, mean value", "percentunit", ("store_hit_rate", "store_mean_value")),
    Panel(
        "Replay store: age of values (mean, oldest; versions), mean depth (tokens)",
        "short",
        ("store_mean_age", "store_max_age", "store_mean_depth"),
    ),
    Panel("Memory of the replay store", "bytes", ("store_bytes",)),
    Panel("Rollout actors", "short", ("rollout_actors",)),
    Panel(
        "Trouble: restarts, quarantined starts, skipped steps, failed judges",
        "short",
        ("restarts", "quarantined", "skipped_steps", "judge_failures"),
    ),
)


def dashboard() -> dict[str, Json]:
    """The dashboard as Grafana's JSON model, with variables for the Prometheus data source and the runs to show."""
    meanings = {info.name: info.meaning for info in describe()}
    return {
        "uid": "retrospect",
        "title": "Retrospect",
        "tags": ["retrospect", "ray"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_datasource(), _runs()]},
        "panels": [_panel(position, panel, meanings) for position, panel in enumerate(PANELS)],
    }


def _datasource() -> Json:
    return {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}


def _runs() -> Json:
    query = f"label_values({GAUGE}iteration, run)"
    return {
        "name": "run",
        "type": "query",
        "label": "Run",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": "runs"},
        "definition": query,
        "refresh": 2,  # whenever the time range changes: new runs appear
        "sort": 2,  # newest (by name) first
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(position: int, panel: Panel, meanings: dict[str, str]) -> Json:
    row, column = divmod(position, PER_ROW)
    custom: dict[str, Json] = {"lineWidth": 2, "fillOpacity": 60 if panel.stacked else 0, "spanNulls": True}
    custom |= {"stacking": {"mode": "normal"}} if panel.stacked else {}
    return {
        "id": position + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": "\n".join(f"{name}: {meanings[name]}" for name in panel.metrics),
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": f"m{index}", "expr": f'{GAUGE}{name}{{run=~"$run"}}', "legendFormat": f"{name} {{{{run}}}}"}
            for index, name in enumerate(panel.metrics)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
