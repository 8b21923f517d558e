"""Questions to a language model behind an OpenAI-compatible endpoint: a provider's, or `vllm serve MODEL` on a machine of one's own.

Used by `tasks/dialogue/language_judge.py`. Invariants: a question that was answered once is never sent again (`Answers`, a file); every
request has a time limit and a bounded number of tries; a question without an answer is None, not an error, unless none is answered.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Lock
from typing import Any

from core.config import LanguageJudgeConfig
from core.errors import ActorError, ConfigError, first_line


class Answers:
    """The answers so far, in an SQLite file that several runs may share."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError when the file cannot be written or is no such file."""
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._table = sqlite3.connect(file, timeout=60.0, check_same_thread=False, isolation_level=None)
            self._table.execute("CREATE TABLE IF NOT EXISTS answers (question TEXT PRIMARY KEY, answer TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"reward_model.judge.cache = {file}: {first_line(error)}; name a file that can be written"
            ) from None
        self._lock = Lock()

    def get(self, question: str) -> str | None:
        """The answer to a question (a key of `_Endpoint`); None if it has not been asked."""
        with self._lock:
            row = self._table.execute("SELECT answer FROM answers WHERE question = ?", (question,)).fetchone()
        return None if row is None else str(row[0])

    def put(self, question: str, answer: str) -> None:
        """Keep an answer."""
        with self._lock:
            self._table.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (question, answer))

    def close(self) -> None:
        """Close the file."""
        self._table.close()


class Endpoint:
    """Asks questions, several at a time. `asked` counts the requests so far, without tries and cached answers."""

    def __init__(self, config: LanguageJudgeConfig) -> None:
        """Raises ConfigError when the settings name no model."""
        import openai  # imported late, because it takes a second

        if not config.model:
            raise ConfigError("reward_model.judge.model is empty: name the model that the endpoint serves")
        self._config = config
        self._client: Any = openai.OpenAI(
            base_url=config.url,
            api_key=os.environ.get(config.key_variable) or "none",
            timeout=config.timeout,
            max_retries=config.retries,
        )
        self._answers = Answers(config.cache)
        self._lock = Lock()
        self.asked = 0

    def check(self) -> None:
        """Ask once, also if the answer is known. Raises ConfigError when no answer comes."""
        answer, failure = self._ask("Answer with the word yes.", known=False)
        if answer is None:
            raise ConfigError(
                f"reward_model.judge.url = {self._config.url}: no answer of model {self._config.model!r} ({failure}); start the server, or "
                f"correct url, model or the key in ${self._config.key_variable}"
            )

    def ask(self, questions: Sequence[str]) -> list[str | None]:
        """The answers, in order; None where all tries failed.

        Raises ActorError when all questions fail, and when `max_requests` are used up.
        """
        if not questions:
            return []
        with ThreadPoolExecutor(self._config.concurrency) as threads:
            found = list(threads.map(self._ask, questions))
        if all(answer is None for answer, _ in found):
            raise ActorError(
                f"reward_model.judge.url = {self._config.url}: none of {len(found)} questions was answered, the first because of "
                f"{found[0][1]}; see the server, then resume from the last checkpoint"
            )
        return [answer for answer, _ in found]

    def _ask(self, question: str, known: bool = True) -> tuple[str | None, str]:
        """The answer, or why there is none. `known`: whether an earlier answer will do."""
        import openai

        config = self._config
        parts = [config.model, str(config.max_tokens), question]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        earlier = self._answers.get(key) if known else None
        if earlier is not None:
            return earlier, ""
        with self._lock:
            if config.max_requests and self.asked >= config.max_requests:
                raise ActorError(
                    f"reward_model.judge.max_requests = {config.max_requests} are used up; raise it and resume from the last checkpoint"
                )
            self.asked += 1
        try:
            reply = self._client.chat.completions.create(
                model=config.model,
                messages=[{"role": "user", "content": question}],
                max_tokens=config.max_tokens,
                temperature=0.0,
            )
            answer = reply.choices[0].message.content if reply.choices else None
        except (openai.OpenAIError, ValueError) as error:
            return None, first_line(error)
        if not answer:
            return None, "an empty answer"
        self._answers.put(key, answer)
        return str(answer), ""

    def close(self) -> None:
        """Close the connections and the file of answers."""
        self._client.close()
        self._answers.close()


def check_endpoint(config: LanguageJudgeConfig) -> None:
    """Ask once. Raises ConfigError when no answer comes."""
    with closing(Endpoint(config)) as endpoint:
        endpoint.check()
