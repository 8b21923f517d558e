"""requirements/install.sh, with programs in the place of Python, pip and uv that write down how they are called."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "sh", "cat", "chmod", "cp", "dirname", "grep", "mkdir", "nproc", "sort", "xargs")
LOCKS = {"cpu": "ray==1\ntorch==2.13.0+cpu\n", "dev": "uv==3\n", "sinks": "wandb==4\n"}
PYTHON = r"""#!/bin/sh
case "$*" in
    *version_info*) exit {fits} ;;
    *importlib.metadata*) exit 1 ;;
    "-m venv "*) echo "$0 $*" >> {root}/calls; mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    "-m pip "*) echo "pip $*" >> {root}/calls
        case "$*" in
            *index-url*|*check\ torch==*) exit {torch} ;;
            *check\ uv==*) cp {root}/uv venv/bin/uv ;;
        esac ;;
esac
"""
UV = """#!/bin/sh
echo "uv $*" >> {root}/calls
exit {torch}
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A folder with `bin` (the system's tools but no Python), short locks, and a uv that finds torch."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "requirements").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    write(tmp_path / "bin" / "ldconfig", "#!/bin/sh\necho libnuma.so.1\n")
    write(tmp_path / "bin" / "bwrap", "#!/bin/sh\n")
    write(tmp_path / "bin" / "id", "#!/bin/sh\necho 1000\n")
    write(tmp_path / "uv", UV.format(root=tmp_path, torch=0))
    shutil.copy(ROOT / "requirements" / "install.sh", tmp_path / "requirements")
    for name, lines in LOCKS.items():
        (tmp_path / "requirements" / f"{name}.txt").write_text(lines)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.unlink(missing_ok=True)  # never through a link into the system
    path.write_text(text)
    path.chmod(0o755)


def python(machine: Path, name: str, *, fits: bool = True, torch: bool = True) -> None:
    """Put a Python there. `fits`: its version is one of ours; `torch`: its pip finds the CPU build."""
    write(machine / "bin" / name, PYTHON.format(root=machine, fits=int(not fits), torch=int(not torch)))


def install(machine: Path, python: str = "", *more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "requirements/install.sh", python, "venv", *more],
        cwd=machine,
        env={"PATH": str(machine / "bin")},
        capture_output=True,
        text=True,
        check=False,
    )


def calls(machine: Path) -> list[str]:
    """How the programs were called, without the options that every call of pip has."""
    options = " -m pip install --no-deps --progress-bar off --quiet --disable-pip-version-check"
    return [line.replace(options, "") for line in (machine / "calls").read_text().splitlines()]


def test_uv_gets_the_torch_that_pip_does_not_find(machine: Path) -> None:
    python(machine, "python3.11", torch=False)
    done = install(machine)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == [
        "setup: installing torch==2.13.0+cpu",
        "setup: pip does not find the CPU build of torch; getting it with uv, which knows the place",
    ]
    assert calls(machine)[1:4] == [
        "pip torch==2.13.0+cpu",
        "pip uv==3",
        "uv pip install --quiet --python venv/bin/python --no-deps --torch-backend cpu torch==2.13.0+cpu",
    ]


def test_uv_is_not_asked_when_pip_finds_torch(machine: Path) -> None:
    python(machine, "python3.11")
    assert install(machine).returncode == 0
    assert [line for line in calls(machine) if line.startswith("uv")] == []


def test_a_named_index_is_the_only_place(machine: Path) -> None:
    python(machine, "python3.11", torch=False)
    done = install(machine, "", "file:///wheels")
    assert done.returncode == 1
    assert calls(machine)[1:] == ["pip --index-url file:///wheels torch==2.13.0+cpu"]
    assert "TORCH_INDEX=file:///wheels" in done.stderr


def test_the_last_line_says_what_to_do_when_uv_finds_none_either(machine: Path) -> None:
    python(machine, "python3.11", torch=False)
    write(machine / "uv", UV.format(root=machine, torch=1))
    done = install(machine)
    assert done.returncode == 1
    assert done.stderr.endswith("make setup TORCH_INDEX=URL\n")


def test_the_first_python_that_fits_is_used(machine: Path) -> None:
    for name, fits in {"python3.11": False, "python3.13": True, "python3.12": True, "python3": True}.items():
        python(machine, name, fits=fits)
    assert install(machine).returncode == 0
    assert calls(machine)[0] == f"{machine}/bin/python3.12 -m venv venv"


@pytest.mark.parametrize("named", ["python3", "/no/python3"])
def test_a_named_python_must_fit(machine: Path, named: str) -> None:
    python(machine, "python3.11")
    python(machine, "python3", fits=False)
    done = install(machine, named)
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        [f"setup: {named} is not Python 3.11, 3.12 or 3.13; name one: make setup PYTHON=/path/to/python3"],
    )


def test_apt_brings_the_first_python_that_it_has(machine: Path) -> None:
    """As on Debian 13, whose Python is 3.13. apt puts it into place."""
    python(machine, "python3.13")
    (machine / "bin" / "python3.13").rename(machine / "python3.13")
    write(machine / "bin" / "apt-cache", '#!/bin/sh\n[ "$2" = python3.13-venv ]\n')
    body = f'case "$*" in *install*) echo "apt-get $*" >> calls; cp {machine}/python3.13 {machine}/bin ;; esac'
    write(machine / "bin" / "apt-get", f"#!/bin/sh\n{body}\n")
    write(machine / "bin" / "id", "#!/bin/sh\necho 0\n")
    done = install(machine)
    assert done.stdout.splitlines()[0] == "setup: installing the system packages python3.13 python3.13-venv"
    assert done.returncode == 0, done.stderr
    assert calls(machine)[0] == "apt-get install -y -qq --no-install-recommends python3.13 python3.13-venv"


def test_without_root_the_first_line_names_what_is_missing(machine: Path) -> None:
    done = install(machine)
    assert done.returncode == 1
    first = "setup: please install the system packages python3 (3.11, 3.12 or 3.13) python3-venv"
    assert done.stderr.startswith(first)
