"""The documents: links lead somewhere, and the picture is well-formed."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from core.config import Config

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("bench/*.md")])


def anchors(document: Path) -> set[str]:
    """The ids of a page's headings."""
    text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in re.findall(r"^#+ (.*)", text, re.MULTILINE)]
    return {re.sub(r"\s", "-", title) for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]*)#?([^)]*)\)", document.read_text(encoding="utf-8"))
    local = [(path, anchor) for path, anchor in targets if not path.startswith(("http://", "https://"))]
    assert [path for path, _ in local if not (document.parent / path).exists()] == []
    named = [(document.parent / path if path else document, anchor) for path, anchor in local if anchor]
    assert [f"{path.name}#{anchor}" for path, anchor in named if anchor not in anchors(path)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_that_are_named_exist(document: Path) -> None:
    """`section.field` in backquotes and --section.field in commands are fields of the configuration. The changelog also
    names those that were removed, and the reference those without a field."""
    from core.config import Config

    sections = {name: field.annotation.model_fields for name, field in Config.model_fields.items() if field.annotation}  # type: ignore[attr-defined]
    text = document.read_text(encoding="utf-8")
    text = re.sub(r"(### Removed|Without a field:)\n.*?(?=\n#|\Z)", "", text, flags=re.DOTALL)
    names = "|".join(sections)
    named = re.findall(rf"`({names})\.([a-z_]+)`", text) + re.findall(rf"--({names})\.([a-z_]+)", text)
    fields = [(section, field) for section, field in named if (section, field) != ("cluster", "yaml")]
    unknown = [f"{section}.{field}" for section, field in fields if field not in sections[section]]
    assert unknown == []


def test_the_site_has_every_page() -> None:
    named = set(re.findall(r'"([\w./]+\.md)"', (ROOT / "docs" / "site" / "zensical.toml").read_text(encoding="utf-8")))
    pages = {f"docs/{path.stem}.md" for pattern in ("*.md", "*.ipynb") for path in ROOT.glob(f"docs/{pattern}")}
    assert pages <= named
    assert [name for name in named - {"docs/example.md"} if not (ROOT / name).exists()] == []


def test_the_notebook_is_saved_with_its_outputs() -> None:
    """tests/test_end_to_end.py runs it."""
    cells = json.loads((ROOT / "docs" / "example.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    outputs = [output for cell in code for output in cell["outputs"]]
    text = "".join(line for output in outputs for line in output.get("text", []))
    assert [cell["execution_count"] for cell in code] == [*range(1, len(code) + 1)]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert re.search(r"^success 0\.\d+ on 128 problems$", text, re.MULTILINE)
    assert re.findall(r"(?<![\w.:/])/\w+/.*", text) == []  # no folder of the machine that ran it


def test_recipes_that_are_named_exist() -> None:
    named = re.findall(
        r"^\| `([\w.]+\.yaml)` \|", (ROOT / "docs" / "training.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(named) == sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))


def recipes_of(page: str) -> "list[Config]":
    """The recipes of a page, each of them valid."""
    import yaml

    from core.load import parse_config

    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    return [parse_config(yaml.safe_load(block), page) for block in blocks]


def test_the_recipes_of_the_page_on_tasks_are_valid() -> None:
    from core.config import evaluation_sets

    gym, sets = recipes_of("docs/tasks.md")
    assert gym.task.parameters == {"max_animals": 4}
    assert [one.label for one in evaluation_sets(sets.task)] == ["math500", "aime", "legs"]
    assert [one.samples for one in sets.task.eval_sets] == [None, 32, None]


def test_the_recipes_of_the_page_on_data_are_valid() -> None:
    configs = recipes_of("docs/data.md")
    assert [len(config.task.sources) for config in configs] == [0, 0, 0, 0, 0, 2]
    assert [reward.title for reward in configs[3].task.own_rewards] == ["task", "format_reward_func", "model"]
    assert configs[4].task.examples[0].response == "2 + 3 = 5\n#### 5"


def test_the_references_of_configuration_and_commands_are_current() -> None:
    from core.load import FIELDS
    from tests.reference_pages import commands_page, configuration_page

    text = configuration_page()
    assert (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8") == text
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == commands_page()
    assert all(f"| `{name}` |" in text for name in FIELDS)


def test_every_ranking_is_explained() -> None:
    from core.sections.registry import names

    explained = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "architecture.md").read_text("utf-8"), re.MULTILINE))
    assert set(names("replay.ranking")) <= explained
    assert all(f"`{name}`" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") for name in names("replay.ranking"))


def test_every_estimator_and_policy_loss_is_explained() -> None:
    from core.sections.registry import names

    text = (ROOT / "docs" / "learner.md").read_text("utf-8")
    explained = re.findall(r"^\| `([\w+]+)` \|", text, re.MULTILINE)
    assert {*names("algorithm.estimator"), *names("algorithm.policy_loss")} <= set(explained)


def readme_blocks(language: str, page: str = "README.md") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def test_the_reward_of_the_readme_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from core.parts.judge import Case
    from tasks.judge_pool import JudgePool

    (example,) = readme_blocks("python")
    (tmp_path / "my_module.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # the folder that a user starts from
    pool = JudgePool("my_module:reward", workers=1, limit=60.0, memory_gib=0.0)
    right, wrong = pool.judge([Case("7", "3 + 4 = 7\n#### 7"), Case("7", "#### 8")])
    pool.close()
    assert (right.correct, wrong.correct) == (True, False)
    assert (right.reward, wrong.reward) == (1.0, 0.0)


def test_the_recipe_of_the_readme_reads_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from core.load import load_config
    from tasks.kinds import task_items

    (recipe,), (row,) = readme_blocks("yaml"), readme_blocks("json")
    (tmp_path / "my.yaml").write_text(recipe, encoding="utf-8")
    (tmp_path / "data").mkdir()
    rows = [row.replace("3 apples", f"{count} apples") for count in range(20)]
    (tmp_path / "data" / "train.jsonl").write_text("".join(rows), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    config = load_config("my.yaml")
    items = task_items(config.task, 0)
    assert (len(items.train), len(items.evaluation)) == (10, 10)
    assert "apples" in items.train[0].prompt
    assert items.train[0].reference == "7"


def test_errors_of_the_page_on_troubles_are_in_the_code() -> None:
    folders = ("actors", "core", "learner", "replay", "tasks", "trainer", "commands", "monitor")
    code = "\n".join(path.read_text("utf-8") for folder in folders for path in (ROOT / folder).rglob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # messages of several lines
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    said = [words for row in re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE) for words in re.findall("`(.*?)`", row)]
    assert len(said) > 12
    assert [words for words in said for part in words.split("...") if part.strip() not in code] == []


def test_the_picture_is_well_formed() -> None:
    root = ElementTree.parse(ROOT / "docs" / "dataflow.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    markers = {element.get("id") for element in root.iter("{http://www.w3.org/2000/svg}marker")}
    used = set(re.findall(r"url\(#([\w-]+)\)", (ROOT / "docs" / "dataflow.svg").read_text()))
    assert used == markers


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_pages_are_short() -> None:
    """Those written by hand; half of python.md is docstrings."""
    generated = {"configuration.md", "commands.md", "metrics.md", "python.md"}
    pages = [ROOT / "README.md", *(path for path in ROOT.glob("docs/*.md") if path.name not in generated)]
    words = {path.name: len(path.read_text(encoding="utf-8").split()) for path in pages}
    assert sum(words.values()) <= 15_000
    assert words["results.md"] <= 1200


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert text.rstrip().endswith("limitations under the License.")


def test_the_overview_of_benchmarks_is_that_of_their_results() -> None:
    from bench.report import RESULTS, overview

    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    assert text == overview()
    assert all(f"({name}.md)" in text for name in ("store", "learner", "rollout", "loop"))
