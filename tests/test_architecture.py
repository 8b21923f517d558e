"""The rules of the house that a machine can keep: import direction, light imports, size of files and functions."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("actors", "learner", "replay", "tasks")
ALLOWED = {
    "core": set(),
    "actors": {"core"},
    "learner": {"core"},
    "replay": {"core"},
    "tasks": {"core"},
    "trainer": {"core", *PARTS},
    "monitor": {"core", *PARTS, "trainer"},
    "commands": {"core", *PARTS, "trainer", "monitor"},
}
HEAVY = {"ray", "vllm", "deepspeed"}
"""Only these files may import an engine at their top; everything else must start in a second."""
ADAPTERS = {
    "core/startup.py",
    "actors/actor.py",
    "actors/handle.py",
    "actors/pool.py",
    "actors/transfer.py",
    "actors/vllm_engine.py",
    "actors/vllm_setup.py",
    "learner/distributed/engine.py",
    "learner/group.py",
    "learner/distributed/ranks.py",
    "learner/distributed/worker.py",
    "replay/store/store.py",
    "tasks/dialogue/reward_actor.py",
    "trainer/cluster.py",
    "monitor/ray_metrics.py",
    "launch.py",
}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imported(nodes: list[ast.stmt] | ast.Module, deep: bool) -> set[str]:
    """Top-level package names imported by the module; with `deep` also inside functions."""
    tree = nodes if isinstance(nodes, ast.Module) else ast.Module(nodes, [])
    found: set[str] = set()
    for node in ast.walk(tree) if deep else tree.body:
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def functions(text: str) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part: str) -> None:
    for path in sources(part):
        ours = imported(ast.parse(path.read_text()), deep=True) & (
            set(ALLOWED) | {"launch", "retrospect", "bench", "tests"}
        )
        assert ours <= ALLOWED[part] | {part}, (
            f"{path.relative_to(ROOT)} imports {sorted(ours - ALLOWED[part] - {part})}"
        )


def test_engines_are_imported_only_in_adapters() -> None:
    for path in sources(*ALLOWED):
        name = str(path.relative_to(ROOT))
        used = imported(ast.parse(path.read_text()), deep=True) & HEAVY
        assert not used or name in ADAPTERS, f"{name} imports {sorted(used)}"


def test_pure_modules_start_without_engines() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sources(*ALLOWED)
        if str(path.relative_to(ROOT)) not in ADAPTERS
    ]
    code = f"import sys\nfor name in {names!r}: __import__(name)\nprint(sorted({HEAVY!r} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_functions_fit_a_screen_and_files_a_sitting() -> None:
    wrong = []
    for path in [*sources(*ALLOWED, "bench", "tests"), ROOT / "launch.py", ROOT / "retrospect.py"]:
        text = path.read_text()
        wrong += [f"{path} has more than 400 lines"] if text.count("\n") > 400 else []
        for node in functions(text):
            size = (node.end_lineno or 0) - node.lineno + 1
            wrong += [f"{path}:{node.lineno} {node.name} has {size} lines"] if size > 60 else []
    assert wrong == []


CROWDED = 15
"""Python files of one folder: more is a hall without rooms."""


def module_of(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def dependencies() -> dict[str, set[str]]:
    """Module -> the modules of the project that it imports anywhere, for type checking and inside functions too."""
    paths = [*sources(*ALLOWED, "bench"), ROOT / "launch.py", ROOT / "retrospect.py"]
    modules = {module_of(path): path for path in paths}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        names = set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                below = {f"{node.module}.{name.name}" for name in node.names} & modules.keys()
                names |= below or {node.module}
        found[module] = names & modules.keys() - {module}
    return found


def test_no_file_imports_itself_through_others() -> None:
    left = dependencies()
    while free := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in free:
            del left[module]
    assert not left, f"these import each other in a circle: {sorted(left)}"


def test_no_folder_is_crowded() -> None:
    for folder in {path.parent for path in sources(*ALLOWED, "bench")}:
        files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        assert len(files) <= CROWDED, f"{folder.relative_to(ROOT)} holds {len(files)} files: group them"


def test_public_functions_have_a_docstring_and_a_return_type() -> None:
    wrong = [
        f"{path}:{node.lineno} {node.name}"
        for path in sources(*ALLOWED, "bench")
        for node in functions(path.read_text())
        if not (node.name.startswith("_") or (ast.get_docstring(node) and node.returns is not None))
    ]
    assert wrong == []
