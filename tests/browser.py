"""A headless Chromium for tests, driven by its DevTools protocol: opens a page, evaluates scripts, keeps what its
console says."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from websockets.sync.client import ClientConnection, connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 120.0  # seconds: the machine may be busy


class Tab:
    """A page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._number = socket, 0
        self.complaints: list[str] = []  # errors and warnings of the console, and exceptions

    def ask(self, method: str, **parameters: object) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=PATIENCE))
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(answer["params"]))
            elif answer.get("method") == "Runtime.consoleAPICalled" and answer["params"]["type"] in (
                "error",
                "warning",
            ):
                self.complaints.append(json.dumps(answer["params"]["args"]))

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        result = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.run(script):
            assert time.monotonic() < deadline, script
            time.sleep(0.05)

    def press(self, *keys: str) -> None:
        """Press keys one after the other."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {}
            self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)


@contextmanager
def open_tab(url: str, profile: Path) -> Iterator[Tab]:
    """A new browser with its own `profile` folder, at `url`."""
    assert CHROMIUM is not None
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    command = [CHROMIUM, *options, "--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=1360,900"]
    process = subprocess.Popen([*command, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port, deadline = profile / "DevToolsActivePort", time.monotonic() + PATIENCE
        while not port.exists() or not port.read_text().strip():
            assert time.monotonic() < deadline, "Chromium did not start"
            time.sleep(0.05)
        with urlopen(f"http://127.0.0.1:{port.read_text().split()[0]}/json/list", timeout=PATIENCE) as answer:
            (page,) = [one for one in json.load(answer) if one["type"] == "page"]
        with connect(page["webSocketDebuggerUrl"], max_size=None, open_timeout=PATIENCE) as socket:
            tab = Tab(socket)
            for domain in ("Runtime", "Log", "Page"):
                tab.ask(f"{domain}.enable")
            tab.ask("Page.navigate", url=url)
            tab.wait("document.readyState == 'complete'")
            yield tab
    finally:
        process.kill()
        process.wait()
