"""Configurations without `auto`, for tests that have neither model nor data."""

from typing import Any

from core.config import Config, ResolvedConfig
from core.sections.base import AUTO

NUMBERS: dict[str, dict[str, Any]] = {
    "rollout": {
        **{"max_prompt_tokens": 64, "max_response_tokens": 64, "max_running": 64},
        **{"gpu_memory_share": 0.5, "sleep": False},
    },
    "learner": {"micro_batch_tokens": 4096, "policy_lr": 1e-5, "value_lr": 1e-5},
}


def without_auto(config: Config) -> ResolvedConfig:
    """The configuration with `NUMBERS` in the place of `auto`."""
    data = config.model_dump()
    for section, numbers in NUMBERS.items():
        data[section] |= {name: value for name, value in numbers.items() if data[section][name] == AUTO}
    return ResolvedConfig.model_validate(data)
