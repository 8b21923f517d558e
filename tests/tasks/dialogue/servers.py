"""A local server that speaks the OpenAI protocol, for tests of the language model as judge."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Served:
    """What a server was asked."""

    url: str = ""
    questions: list[str] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    running: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serving(answer: Callable[[str, int], tuple[int, str]], seconds: float = 0.0) -> Iterator[Served]:
    """A server on a free port. `answer`: from a question and how often it came before to status and text; takes
    `seconds`."""
    served = Served()

    class _Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            question = body["messages"][-1]["content"]
            with served.lock:
                before = served.questions.count(question)
                served.questions.append(question)
                served.keys.add(self.headers["Authorization"])
                served.running += 1
                served.most_at_once = max(served.most_at_once, served.running)
            time.sleep(seconds)
            status, text = answer(question, before)
            with served.lock:
                served.running -= 1
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
            reply = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
            data = json.dumps(reply if status == 200 else {"error": {"message": text}}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
