"""The documents: links lead somewhere, and the picture is well-formed."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text(encoding="utf-8"))
    local = [target for target in targets if not target.startswith(("http://", "https://"))]
    assert [target for target in local if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_options_that_are_named_exist(document: Path) -> None:
    """`section.field` in backquotes and --section.field in commands are fields of the configuration."""
    from core.config import Config

    sections = {name: field.annotation.model_fields for name, field in Config.model_fields.items() if field.annotation}  # type: ignore[attr-defined]
    text = document.read_text(encoding="utf-8")
    names = "|".join(sections)
    named = re.findall(rf"`({names})\.([a-z_]+)`", text) + re.findall(rf"--({names})\.([a-z_]+)", text)
    fields = [(section, field) for section, field in named if (section, field) != ("cluster", "yaml")]
    unknown = [f"{section}.{field}" for section, field in fields if field not in sections[section]]
    assert unknown == []


def test_recipes_that_are_named_exist() -> None:
    named = re.findall(r"^\| `([\w.]+\.yaml)` \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in (ROOT / "configs").glob("*.yaml"))


def test_the_recipes_of_the_page_on_data_are_valid() -> None:
    import yaml

    from core.load import parse_config
    from core.plan import batch_plan

    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "data.md").read_text(encoding="utf-8"), re.DOTALL)
    configs = [parse_config(yaml.safe_load(block), "docs/data.md") for block in blocks]
    assert all(batch_plan(config) for config in configs)
    assert [len(config.task.sources) for config in configs] == [0, 0, 0, 0, 2]
    assert configs[3].task.examples[0].response == "2 + 3 = 5\n#### 5"


def test_every_ranking_is_explained() -> None:
    from typing import get_args

    from core.config import ReplayConfig

    rankings = set(get_args(ReplayConfig.model_fields["ranking"].annotation))
    explained = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "architecture.md").read_text("utf-8"), re.MULTILINE))
    assert len(rankings) == 7
    assert rankings <= explained
    assert all(f"`{name}`" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8") for name in rankings)


def test_every_estimator_and_policy_loss_is_explained() -> None:
    from core.sections.algorithm import ESTIMATORS, POLICY_LOSSES

    text = (ROOT / "docs" / "learner.md").read_text("utf-8")
    explained = re.findall(r"^\| `([\w+]+)` \|", text, re.MULTILINE)
    assert explained[: len(ESTIMATORS)] == list(ESTIMATORS)
    assert set(POLICY_LOSSES) <= set(explained)


def test_the_estimator_of_the_documents_passes_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from learner.methods import check_estimator

    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "learner.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "my_estimators.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    check_estimator("my_estimators:centred")


def test_the_reward_of_the_readme_judges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tasks.judge import JudgePool

    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "my_module.py").write_text(example, encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # the folder that a user starts from
    pool = JudgePool("my_module:reward", workers=1, limit=60.0, memory_gib=0.0)
    right, wrong = pool.judge([("7", "3 + 4 = 7\n#### 7"), ("7", "#### 8")])
    pool.close()
    assert (right.correct, wrong.correct) == (True, False)
    assert right.reward == pytest.approx(1 - 0.007)  # 7 words
    assert wrong.reward == pytest.approx(-0.002)  # 2 words


def test_the_picture_is_well_formed() -> None:
    root = ElementTree.parse(ROOT / "docs" / "dataflow.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    markers = {element.get("id") for element in root.iter("{http://www.w3.org/2000/svg}marker")}
    used = set(re.findall(r"url\(#([\w-]+)\)", (ROOT / "docs" / "dataflow.svg").read_text()))
    assert used == markers


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
