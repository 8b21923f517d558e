"""The replay inspector: a page on loopback that shows a run's store while it trains, and the JSON for that page.
Invariants: it only reads the run's files; it answers requests to its own loopback address only; a request never waits
for the files, because a thread of its own reads them again when they have changed."""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import numpy.typing as npt

from core.errors import ConfigError, RetrospectError, first_line
from core.run_directory import RunDirectory
from monitor.store_table import store_summary, with_prefixes
from monitor.store_view import StoreView, open_store
from replay.coverage import Life
from replay.store.stats import combine, shard_stats

PAGE = Path(__file__).with_name("inspector.html")
SHOWN = 100  # problems per answer
REST = 10.0  # the thread that reads the files rests for so many times as long as reading takes, and at least a second
Query = Mapping[str, str]


class Store:
    """What the page asks about one moment of the store. Everything that a search touches is computed once."""

    def __init__(self, run: str, view: StoreView, stamp: str) -> None:
        self._view, self.stamp = view, stamp
        names = view.table["problem"].combine_chunks().dictionary_encode()
        self._problem = names.indices.to_numpy()  # [S]
        self._names: list[str] = names.dictionary.to_pylist()
        stored = set(self._names)
        others = [name for name in view.lives if name not in stored]  # started, but no state of theirs is stored
        self._names += others
        self._column = {name: view.table[name].to_numpy() for name in view.table.column_names if name != "problem"}
        count = len(self._names)
        first = np.unique(self._problem, return_index=True)[1]
        roots = np.array([_root_outcomes(view.lives[name]) for name in others], int).reshape(-1, 2)
        self._of_problem: dict[str, npt.NDArray[Any]] = {
            "states": np.bincount(self._problem, minlength=count),
            "drawable": np.bincount(self._problem[np.isfinite(self._column["priority"])], minlength=count),
            "tried": np.bincount(self._problem, self._column["tried"], minlength=count).astype(int),
            "solved": np.bincount(self._problem, self._column["solved"], minlength=count).astype(int),
            "root_tried": np.append(self._column["root_tried"][first], roots[:, 0]),
            "root_solved": np.append(self._column["root_solved"][first], roots[:, 1]),
            # the table is sorted by it
            "priority": np.append(self._column["priority"][first], np.full(len(others), -np.inf)),
        }
        rate = (self._of_problem["root_solved"] + 1) / (self._of_problem["root_tried"] + 2)
        self._orders = {
            "hardest": np.argsort(rate, kind="stable"),
            "easiest": np.argsort(-rate, kind="stable"),
            "priority": np.argsort(-self._of_problem["priority"], kind="stable"),
            "states": np.argsort(-self._of_problem["states"], kind="stable"),
        }
        self._texts = [view.problems.get(name, ("", "")) for name in self._names]
        self._searched = [
            f"{name} {prompt} {level}".lower() for name, (prompt, level) in zip(self._names, self._texts, strict=True)
        ]
        self._kinds = {kind: self._with(self._column["provenance"] == kind) for kind in set(self._column["provenance"])}
        self._overview = {
            "run": run,
            "stamp": stamp,
            "ranking": view.config.ranking,
            "states": len(self._problem),
            "problems": count,
            "summary": store_summary(combine([shard_stats(shard) for shard in view.shards])),
            "kinds": sorted(self._kinds),
            "levels": sorted({level for _, level in self._texts if level}),
            "depth": self._binned(self._column["depth"] / np.maximum(self._column["response_tokens"], 1)),
            "calibration": self._binned(self._column["value"]),
        }

    def _with(self, rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """[P] whether a problem has one of the rows [S]."""
        return np.asarray(np.bincount(self._problem, rows, minlength=len(self._names)) > 0)

    def _binned(self, by: npt.NDArray[Any]) -> list[dict[str, float]]:
        """Value and success of the tried states, in ten bins of `by` from 0 to 1, the end bins open."""
        at = np.clip((np.nan_to_num(by) * 10).astype(int), 0, 9)
        tried, solved = (np.bincount(at, self._column[name], minlength=10) for name in ("tried", "solved"))
        value = np.bincount(at, np.nan_to_num(self._column["value"]) * self._column["tried"], minlength=10)
        return [
            {"from": n / 10, "tried": int(tried[n]), "success": solved[n] / tried[n], "value": value[n] / tried[n]}
            for n in np.flatnonzero(tried).tolist()
        ]

    def overview(self, query: Query) -> dict[str, Any]:
        """The whole store in numbers; of the stamp alone if the page has this one already."""
        return {"stamp": self.stamp} if query.get("have") == self.stamp else self._overview

    def problems(self, query: Query) -> dict[str, Any]:
        """A page of the problems that match, in an order; a state's key finds its problem."""
        words, matching = query.get("search", "").lower().split(), np.ones(len(self._names), np.bool_)
        if len(words) == 1 and (rows := self._rows_of_key(words[0])).any():
            matching, words = self._with(rows), []
        if words:
            matching = np.array([all(word in text for word in words) for text in self._searched], np.bool_)
        if kind := query.get("kind"):
            matching &= self._kinds.get(kind, np.zeros(len(matching), np.bool_))
        if level := query.get("level"):
            matching &= np.array([difficulty == level for _, difficulty in self._texts], np.bool_)
        if query.get("drawable"):
            matching &= self._of_problem["drawable"] > 0
        order = self._orders[query.get("sort", "hardest")]
        order = order[matching[order]]
        start = int(query.get("from", 0))
        return {"count": len(order), "rows": [self._problem_row(at) for at in order[start : start + SHOWN].tolist()]}

    def _rows_of_key(self, text: str) -> npt.NDArray[np.bool_]:
        try:
            return np.asarray(self._column["key"] == np.uint64(int(text, 16)))
        except (ValueError, OverflowError):
            return np.zeros(len(self._problem), np.bool_)

    def _problem_row(self, at: int) -> dict[str, Any]:
        prompt, level = self._texts[at]
        numbers = {name: _plain(column[at]) for name, column in self._of_problem.items()}
        return {"id": self._names[at], "prompt": prompt[:200], "level": level, **numbers}

    def problem(self, query: Query) -> dict[str, Any]:
        """One problem with all its states, the text that each adds to its parent, and its life so far."""
        if query.get("id") not in self._names:
            raise KeyError("no such problem")
        at = self._names.index(query["id"])
        rows = np.flatnonzero(self._problem == at)
        states = with_prefixes(self._view.table.take(rows), self._view.shards, self._view.decode).to_pylist()
        text = {state["key"]: state["prefix"] for state in states}
        for state in states:
            above = text.get(state["parent"], "")
            state["adds"] = state["prefix"][len(above) :] if state["prefix"].startswith(above) else state["prefix"]
            state["parent"] = f"{state['parent']:016x}" if state["parent"] in text else ""
        shown = [{name: _plain(value) for name, value in state.items()} for state in states]
        for state in shown:
            state["key"] = f"{state['key']:016x}"
        life = self._view.lives.get(self._names[at])
        nodes = sorted(shown, key=lambda state: state["depth"])
        return {
            **self._problem_row(at),
            "prompt": self._texts[at][0],
            "life": None if life is None else asdict(life),
            "nodes": nodes,
        }


def _root_outcomes(life: Life) -> tuple[int, int]:
    """Recent continuations of the root, and how many of them are right."""
    recent = [(count, right) for _, depth, right, count in life.recent if not depth]
    return sum(count for count, _ in recent), sum(right for _, right in recent)


def _plain(value: Any) -> Any:
    """A number that JSON has: NaN and infinities become null."""
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not np.isfinite(value) else value


class Inspector:
    """Serves the page of one run until `close`. `url` is its address."""

    def __init__(self, run: RunDirectory, port: int = 0) -> None:
        """Read the store and listen on loopback; `port` 0: any free one. Raises StoreError, OSError,
        and ConfigError when the port is taken."""
        self._run, self._closed = run, threading.Event()
        self.store = self._read()
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        except OSError as error:
            raise ConfigError(f"--port {port}: {error.strerror or error}; name another, or leave it out") from None
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/"
        self._threads = [threading.Thread(target=work) for work in (self._server.serve_forever, self._follow)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop listening and reading."""
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()
        for thread in self._threads:
            thread.join()

    def _read(self) -> Store:
        stamp = self._stamp()
        return Store(self._run.name, open_store(self._run), stamp)

    def _stamp(self) -> str:
        """Changes when the files of the store change."""
        files = [*self._run.replay.glob("*.journal"), self._run.checkpoints / "latest"]
        stats = [file.stat() for file in files if file.exists()]
        return "-".join(f"{info.st_mtime_ns}.{info.st_size}" for info in stats)

    def _follow(self) -> None:
        pause = 1.0
        while not self._closed.wait(pause):
            if self._stamp() == self.store.stamp:
                continue
            begun = time.monotonic()
            try:
                self.store = self._read()
            except (RetrospectError, OSError) as error:  # a run that begins again has no store for a moment
                print(f"inspect: {first_line(error)}; trying again", flush=True)
            pause = max(1.0, REST * (time.monotonic() - begun))


def _handler(inspector: Inspector) -> type[BaseHTTPRequestHandler]:

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # (the name that http.server asks for)
            """Answer with the page, or with JSON."""
            port = inspector.port
            if self.headers.get("Host") not in (f"127.0.0.1:{port}", f"localhost:{port}"):
                return self.send_error(HTTPStatus.FORBIDDEN, "only for this machine")  # a foreign name leads here
            url, store = urlsplit(self.path), inspector.store
            answers = {"/overview": store.overview, "/problems": store.problems, "/problem": store.problem}
            try:
                if url.path == "/":
                    return self._send("text/html", PAGE.read_bytes())
                answer = answers[url.path](dict(parse_qsl(url.query)))
            except (KeyError, ValueError):
                return self.send_error(HTTPStatus.NOT_FOUND)
            return self._send("application/json", json.dumps(answer).encode())

        def _send(self, kind: str, body: bytes) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'; img-src data:")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Keep requests off the terminal."""

    return Handler
