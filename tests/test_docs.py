"""Documents say what is so: examples run, and every Python block in a document stands in an example."""

import functools
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support import cheap_run
from support.fresh import run_fresh
from support.thorough import THOROUGH, in_thorough_runs

import regraft
from regraft.compiler.options import list_options, list_templates

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# The first example runs in a Python that has imported nothing (`test_debugging.py`).
EXAMPLES = sorted({*(ROOT / "docs" / "examples").glob("*.py")} - {ROOT / "docs" / "examples" / "quickstart.py"})


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_example_runs(example, tmp_path):
    run(example, tmp_path)


def run(file, folder):
    script = [file] if THOROUGH else [cheap_run.__file__, file]
    own_cache = {"REGRAFT_CACHE_DIR": str(folder / "cache")}
    (done,) = run_fresh([script], cwd=folder, environment=own_cache, code_of_all_runs=True)
    assert done.code == 0, done.output + done.errors


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_python_blocks_stand_in_examples(document):
    examples = "\n".join(file.read_text() for file in (ROOT / "docs" / "examples").rglob("*.py"))
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)
    assert not [block for block in blocks if block.strip() not in examples]


FOLLOWED = ("cookbook", "tutorial", "ahead-of-time", "coming-from", "writing-a-pattern", "kernel-report")


@in_thorough_runs  # the blocks stand in examples, which run
@pytest.mark.parametrize("page", FOLLOWED)
def test_the_blocks_of_a_page_make_a_program(page, tmp_path):
    """A newcomer copies them, one after the other, into a file; the tutorial's last ones need its package installed."""
    text = (ROOT / "docs" / f"{page}.md").read_text().partition("## Ship it")[0]
    blocks = [block.strip() for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)]
    file = tmp_path / f"{page}.py"
    file.write_text("\n\n".join(blocks))
    run(file, tmp_path)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)]+)\)", document.read_text())
    for path, _, anchor in (link.partition("#") for link in links if "://" not in link):
        target = document.parent / path if path else document
        assert target.exists(), path
        assert not anchor or anchor in headings(target), anchor


def headings(document: Path) -> set[str]:
    """The anchors that a page has: its headings in lower case, words joined by hyphens."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_sites_navigation():
    named = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), flags=re.MULTILINE))
    assert named == {file.name for file in (ROOT / "docs").glob("*.md")}


def test_generated_pages_are_what_the_code_says():
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    for page in ("reference", "normal_form"):
        file = ROOT / "docs" / f"{page.replace('_', '-')}.md"
        assert file.read_text() == made[page](), f"{file.name} is old: run python docs/generate.py"


def test_every_public_name_is_in_the_reference():
    text = (ROOT / "docs" / "reference.md").read_text()
    assert not [name for name in regraft.__all__ if name != "__version__" and f"\n### {name}\n" not in text]


def test_the_tutorials_package_installs_and_offers_its_rule(tmp_path):
    plugin = shutil.copytree(ROOT / "docs" / "examples" / "plugin", tmp_path / "plugin")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*command, tmp_path / "site", plugin], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = "from regraft.rewrites.ruleset import plugin_rules; print(plugin_rules('residual'))"
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    shown = subprocess.run([sys.executable, "-c", told], env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert shown.stdout.strip() == "RuleSet(add_norm)", shown.stderr


@functools.cache
def _plugin():
    return runpy.run_path(str(ROOT / "docs" / "examples" / "plugin" / "residual_rules.py"))


@pytest.mark.parametrize("sizes", [(4,), (0,), (2, 0), (0, 4), (2, 3, 4)], ids=str)
def test_the_tutorials_operator_has_the_gradients_of_what_it_replaces(sizes):
    """Of rows and vectors, also without elements: `regraft check residual` draws them all."""
    operands = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in (sizes, sizes, sizes[-1:])]

    def plain(x, y, weight):
        total = x + y
        return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, total

    def fused(x, y, weight):
        return _plugin()["fused"](x, y, weight, 1e-6)

    wanted, found = (
        torch.autograd.grad(sum((r * (r + 1)).sum() for r in program(*operands)), operands)
        for program in (plain, fused)
    )
    torch.testing.assert_close(found, wanted)


def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs", reason="pip install 'regraft[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", ROOT / "mkdocs.yml", "-d", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_site_follows_the_systems_colours():
    """Until a reader chooses: light and dark alone would keep what the first visit found."""
    palette = (ROOT / "mkdocs.yml").read_text().partition("palette:")[2].partition("plugins:")[0]
    medias = re.findall(r'media: "\(prefers-color-scheme(.*?)\)"', palette)
    assert medias == ["", ": light", ": dark"]


def test_options_table_is_complete():
    table = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert {*list_options(), *list_templates()} - {"none", "freezing"} == set(table) - {"overrides", "freezing"}
