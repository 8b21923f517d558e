"""The Grafana dashboard of the run's gauges. It is shipped as JSON, because open-source Ray has no hook for custom panels.

`python -m monitor.grafana > docs/grafana.json` writes it; a user imports the file, see docs/cluster.md. Invariant: it names only
metrics of `trainer.metrics.describe`, so no panel is empty because of a renamed metric.
"""

import json
from typing import TypeAlias

from trainer.metrics import PHASES, describe

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

GAUGE = "ray_retrospect_"  # Ray puts `ray_` before the gauge's own name
WIDTH, HEIGHT, PER_ROW = 8, 8, 3  # size of a panel on Grafana's 24-column grid, panels per row
UNITS = {"share": "percentunit", "s": "s", "bytes": "bytes", "1": "none", "nats": "none", "nats/token": "none"}
"""Grafana's name of a metric's unit; the others are counts ("short")."""
PANELS = (
    ("Success", "root_success replay_success evaluation_success evaluation_pass evaluation_majority"),
    ("Reward", "reward"),
    ("Starts", "replay_share erroneous_share truncated_share"),
    ("Entropy (nats/token)", "entropy"),
    ("KL (nats/token)", "kl first_kl reference_kl"),
    ("Explained variance of the critic", "explained_variance"),
    ("AUC of the critic", "value_auc value_auc_within"),
    ("Brier score of the critic", "value_brier"),
    ("Losses", "policy_loss value_loss"),
    ("Gradient norms", "policy_grad_norm value_grad_norm"),
    ("Clipped and padding tokens", "clip_fraction importance_truncated padding_share"),
    ("Learning rates", "policy_lr value_lr"),
    ("Weights: importance (mean), KL coefficient", "importance_mean kl_coefficient"),
    ("Disagreement of learner and engines (nats)", "logprob_gap behaviour_gap_mean behaviour_gap_max"),
    ("Staleness (versions)", "mean_staleness max_staleness"),
    ("Idle, stale tokens", "actor_idle learner_idle stale_tokens"),
    ("Queues", "waiting_samples running_samples finished_starts"),
    ("Seconds by phase", " ".join(f"{phase}_seconds" for phase in (*PHASES, "other"))),
    ("Generated tokens per second", "tokens_per_second"),
    ("States in the replay store", "store_states store_replayable store_evictions lost_outcomes"),
    ("Replay store: hit rate, mean value", "store_hit_rate store_mean_value"),
    ("Replay store: age of values (versions), depth (tokens)", "store_mean_age store_max_age store_mean_depth"),
    ("Memory of the replay store", "store_bytes"),
    ("Rollout actors", "rollout_actors"),
    ("Failures: actors, starts, steps, judges", "restarts quarantined skipped_steps judge_failures"),
)
"""Title and metrics of each panel; seconds are stacked."""


def dashboard() -> dict[str, Json]:
    """The dashboard as Grafana's JSON model, with variables for the Prometheus data source and the runs to show."""
    datasource: Json = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    return {
        "uid": "retrospect",
        "title": "Retrospect",
        "tags": ["retrospect", "ray"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [datasource, _runs()]},
        "panels": [_panel(position, title, names.split()) for position, (title, names) in enumerate(PANELS)],
    }


def _runs() -> Json:
    query = f"label_values({GAUGE}iteration, run)"
    return {
        "name": "run",
        "type": "query",
        "label": "Run",
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": "runs"},
        "definition": query,
        "refresh": 2,  # update the list of runs when the time range changes
        "sort": 2,  # descending by name
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(position: int, title: str, names: list[str]) -> Json:
    about = {info.name: info for info in describe()}
    row, column = divmod(position, PER_ROW)
    unit = UNITS.get(about[names[0]].unit, "short")
    custom: dict[str, Json] = {"lineWidth": 2, "fillOpacity": 60 if unit == "s" else 0, "spanNulls": True}
    custom |= {"stacking": {"mode": "normal"}} if unit == "s" else {}
    return {
        "id": position + 1,
        "type": "timeseries",
        "title": title,
        "description": "\n".join(f"{name}: {about[name].meaning}" for name in names),
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"x": column * WIDTH, "y": row * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": f"m{index}", "expr": f'{GAUGE}{name}{{run=~"$run"}}', "legendFormat": f"{name} {{{{run}}}}"}
            for index, name in enumerate(names)
        ],
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
