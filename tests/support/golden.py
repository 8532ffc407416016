"""Texts that a test compares with a file beside it; ``pytest --update-golden`` writes the file anew."""

from importlib.metadata import version
from pathlib import Path

import pytest

with_pinned_torch = pytest.mark.skipif(
    not version("torch").startswith("2.13."), reason="other versions of torch trace other operators: texts are 2.13's"
)


class Golden:
    """The texts of one file, each under a name."""

    def __init__(self, file: Path, update: bool) -> None:
        self._file, self._update = file, update
        parts = file.read_text().split("\n== ")[1:] if file.exists() else []
        self._texts = {name.strip(): text for name, _, text in (part.partition("\n") for part in parts)}

    def check(self, texts: dict[str, str]) -> None:
        """All texts of the file, by name."""
        made = {name: f"{text.rstrip()}\n" for name, text in texts.items()}
        if self._update:
            self._file.parent.mkdir(exist_ok=True)
            head = "Written by pytest --update-golden.\n"
            self._file.write_text(head + "".join(f"\n== {name}\n{text}" for name, text in made.items()))
            return
        assert list(made) == list(self._texts), f"{self._file.name} has other names: run pytest --update-golden"
        for name, text in made.items():
            assert text == self._texts[name], f"{name} changed: run pytest --update-golden if it should have"


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """The file ``golden/<module>.txt`` beside the test's module."""
    module = request.path
    return Golden(
        module.parent / "golden" / f"{module.stem.removeprefix('test_')}.txt",
        request.config.getoption("--update-golden"),
    )
