"""Every block of code in the README and the pages is run or read: Python is executed, recipes, rows and commands are
parsed, and `check` is run where it needs no model. A block that is not says why in its first line:
```sh not-run="needs a GPU". Blocks of `text` show output."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from commands.options import COMMANDS, read_options
from core.load import load_config, parse_config
from tests.test_launch import here

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md")), ROOT / "bench" / "README.md"]


class Block(NamedTuple):
    """A fenced block of a page."""

    name: str
    language: str
    reason: str  # why it is not run; empty: it is
    text: str


def blocks() -> Iterator[Block]:
    for page in PAGES:
        fences = re.finditer(r"^```(.*)\n((?s:.*?))^```$", page.read_text("utf-8"), re.MULTILINE)
        for number, fence in enumerate(fences, 1):
            head = re.fullmatch(r"(\w+)(?: not-run=\"([^\"]{5,})\")?", fence[1])
            language, reason = head.groups() if head else (fence[1], "")
            yield Block(f"{page.relative_to(ROOT)}-{number}", language, reason or "", fence[2])


BLOCKS = list(blocks())


def of(language: str) -> pytest.MarkDecorator:
    """All blocks of a language that are to be run."""
    chosen = [block for block in BLOCKS if block.language == language and not block.reason]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: block.name)


def test_blocks_are_of_languages_that_are_run() -> None:
    known = ("python", "yaml", "json", "sh", "text", "bibtex")
    assert [(block.name, block.language) for block in BLOCKS if block.language not in known] == []
    assert {block.language for block in BLOCKS if block.reason} == {"sh"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a user has it: the recipes, and the README's my.yaml."""
    for name in ("configs", "bench"):
        (tmp_path / name).symlink_to(ROOT / name)
    (recipe,) = (block.text for block in BLOCKS if block.language == "yaml" and block.name.startswith("README"))
    (tmp_path / "my.yaml").write_text(recipe, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@of("yaml")
def test_recipes_are_valid(block: Block) -> None:
    assert parse_config(yaml.safe_load(block.text), block.name)


@of("json")
def test_rows_are_json(block: Block) -> None:
    assert all(isinstance(json.loads(line), dict) for line in block.text.splitlines())


@of("python")
def test_python_runs(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training itself is replaced (tests/test_end_to_end.py runs the notebook). tests/test_extending.py uses the blocks
    of extending.md."""
    import retrospect

    calls: list[tuple[Any, ...]] = []

    def record(*given: Any, **objects: Any) -> Path:
        calls.append(given)
        return folder

    monkeypatch.setattr(retrospect, "train", record)
    monkeypatch.setattr(retrospect, "evaluate", record)
    exec(compile(block.text, block.name, "exec"), {"__name__": "my_module"})
    if "import retrospect" in block.text:
        (config, *watch), (same, run) = calls
        assert isinstance(config, retrospect.Config)
        assert (config.run.iterations, same, run, all(map(callable, watch))) == (100, config, folder, True)


def commands(block: Block) -> list[list[str]]:
    """The words of each command, without comments and the activation; a backslash continues a line."""
    lines = block.text.replace("\\\n", " ").splitlines()
    found = (shlex.split(line, comments=True) for line in lines)
    return [words for words in found if words and words != ["source", ".venv/bin/activate"]]


@of("sh")
def test_commands_exist_and_take_their_options(block: Block, folder: Path) -> None:
    assert commands(block)
    for python, launch, name, *options in commands(block):
        assert (python, launch, name in COMMANDS) == ("python", "launch.py", True)
        read_options(name, options)


@of("sh")
def test_checks_that_need_no_model_pass(block: Block, folder: Path) -> None:
    for _, _, name, *options in commands(block):
        if name == "check":
            given = read_options(name, options)
            if given.offline or load_config(*given.config).model.path == "starter":
                done = here(name, *options)
                assert done.returncode == 0, done.stderr


def test_rows_of_the_page_on_data_are_read_by_the_recipe_below_them(tmp_path: Path) -> None:
    from tasks.kinds import task_items

    page = (ROOT / "docs" / "data.md").read_text("utf-8")
    pairs = re.findall(r"```json\n([^`]*)```\s+```yaml\n([^`]*)```", page)
    assert len(pairs) == 4  # GSM8K, MATH, dialogues, SVAMP
    for number, (rows, recipe) in enumerate(pairs):
        path = tmp_path / f"{number}.jsonl"
        first, *_ = rows.splitlines()
        others = [first.replace("?", f" {copy}?") for copy in range(2)]  # some to hold out
        path.write_text("\n".join([*rows.splitlines(), *others]) + "\n", encoding="utf-8")
        task = yaml.safe_load(recipe)["task"] | {"path": str(path), "eval_problems": 1}
        items = task_items(parse_config({"task": task}, recipe).task, 0)
        assert len([*items.train, *items.evaluation]) == len(rows.splitlines()) + 2


@pytest.mark.parametrize("recipe", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_algorithms_to_copy_go_into_every_recipe(recipe: Path, tmp_path: Path) -> None:
    from trainer.build import check_methods

    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    (part,) = re.findall(r"^## Algorithms to copy\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    algorithms = re.findall(r"```yaml\n(.*?)```", part, re.DOTALL)
    assert len(algorithms) == part.count("\n### ")
    adapts = load_config(recipe).algorithm.kl_target is not None
    for algorithm in algorithms:
        if adapts and "kl_coefficient: 0" in algorithm:
            continue  # an adapted KL is not 0, as the error says
        added = tmp_path / "added.yaml"
        added.write_text(algorithm, encoding="utf-8")
        check_methods(load_config(recipe, added))
