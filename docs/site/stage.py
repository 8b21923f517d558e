"""Collects what `make docs` builds the site from: the repository's Markdown and the files that it links to, in the same
places, so that a link works on the site as it does in the repository. The notebook becomes a page."""

import json
import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGES = ("*.md", "docs/*.md", "bench/**/*.md")
LINK = re.compile(r"\[((?:[^\]`]|`[^`]*`)*)\]\(([^)#:]+)(#[^)]*)?\)")


def stage(target: Path) -> None:
    """Write the pages, what they link to, and the configuration of the site."""
    shutil.rmtree(target, ignore_errors=True)
    pages = target / "pages"
    for source in (path for pattern in PAGES for path in ROOT.glob(pattern)):
        write_page(source, source.read_text(encoding="utf-8"), pages / source.relative_to(ROOT))
    for source in ROOT.glob("docs/*.ipynb"):
        write_page(source, notebook_page(source), pages / source.relative_to(ROOT).with_suffix(".md"))
    shutil.copy(HERE / "zensical.toml", target)
    for name in ("iframe-worker.js", "site.css"):
        shutil.copy(HERE / name, pages)


def write_page(source: Path, text: str, place: Path) -> None:
    """Write a page with the files that it links to. A folder has no page: its link becomes text."""

    def _link(match: re.Match[str]) -> str:
        title, path, anchor = match[1], match[2], match[3] or ""
        linked = (source.parent / path).resolve()
        if not linked.exists():
            raise SystemExit(f"docs: {source.relative_to(ROOT)} links to {path}, which does not exist")
        if linked.is_dir():
            return title
        if linked.suffix == ".ipynb":
            return f"[{title}]({path.removesuffix('.ipynb')}.md{anchor})"
        if linked.suffix != ".md" and linked.is_file():
            copy = place.parent / path
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(linked, copy)
        return match[0]

    place.parent.mkdir(parents=True, exist_ok=True)
    text = re.sub(r'^(```\w+) not-run=".*"$', r"\1", text, flags=re.MULTILINE)
    place.write_text(LINK.sub(_link, text), encoding="utf-8")


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: text, code, and its saved outputs."""
    text = ""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text += f"{source}\n\n"
            continue
        text += f"```python\n{source}\n```\n\n"
        for output in cell["outputs"]:
            data = output.get("data", {"text/plain": output.get("text", "")})
            if "image/png" in data:
                text += f"![plot](data:image/png;base64,{''.join(data['image/png'].split())})\n\n"
            else:
                text += f"```text\n{''.join(data['text/plain']).rstrip()}\n```\n\n"
    return text


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
