"""Documents say what is so: examples run, and every Python block in a document stands in an example."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from regraft.compiler.options import list_options, list_templates

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_example_runs(example, tmp_path):
    environment = os.environ | {"REGRAFT_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, str(example)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_python_blocks_stand_in_examples(document):
    examples = "\n".join(file.read_text() for file in EXAMPLES)
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)
    assert not [block for block in blocks if block.strip() not in examples]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_links_lead_somewhere(document):
    links = re.findall(r"\]\(([^)#]+)\)", document.read_text())
    assert not [link for link in links if "://" not in link and not (document.parent / link).exists()]


def test_options_table_is_complete():
    table = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    assert {*list_options(), *list_templates()} - {"none", "freezing"} == set(table) - {"overrides", "freezing"}
