"""The documents' examples run, and what the documents point to exists."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gnomon.training.recipe import check_recipe
from gnomon.training.text import parse_yaml

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted(ROOT.glob("*.md"))

SMALLER = {"hidden_size": 32, "num_hidden_layers": 1, "num_feed_forward_tokens": 32}
SHORTER = {
    "max_steps=300": " -o ".join(
        ["max_steps=2", "stages.0.training.warmup_steps=1", *(f"model.{key}={n}" for key, n in SMALLER.items())]
    )
}
SHORTER_PYTHON = {
    '"max_steps": 300': '"max_steps": 2',
    '"warmup_steps": 20': '"warmup_steps": 1',
    '"preset": "tokenformer-tiny"': f'"preset": "tokenformer-tiny", **{SMALLER}',
}
"""What a test changes in an example, so that it takes seconds."""


def blocks(language: str) -> list[str]:
    """The README's code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def shorten(code: str, changes: dict[str, str]) -> str:
    """Make an example short; each change must find its place."""
    for found, replacement in changes.items():
        assert found in code
        code = code.replace(found, replacement)
    return code


def test_the_quickstart_on_the_command_line_runs(tmp_path: Path) -> None:
    """Every line of the shell example exits with 0, from copying a recipe to generating text."""
    (example,) = blocks("sh")
    (tmp_path / "gnomon").symlink_to(Path(sys.executable).parent / "gnomon")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = "set -e\n" + shorten(example, SHORTER)
    result = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "bits per byte" in result.stdout
    assert "ROMEO:" in result.stdout


def test_the_quickstart_in_python_runs(tmp_path: Path) -> None:
    """The Python example trains, and transformers' pipeline continues the prompt with the model it saved."""
    example, _ = blocks("python")
    code = shorten(example, SHORTER_PYTHON)
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout.splitlines()[0]) > 0
    assert "ROMEO:" in result.stdout


def test_the_example_of_an_encoder_decoder_runs(tmp_path: Path) -> None:
    """Both growths of the second Python example are exact, and the pair writes."""
    _, example = blocks("python")
    result = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == "True True"


def test_the_recipe_of_the_readme_is_one() -> None:
    """The YAML example loads, and its second stage continues the first one's schedule."""
    (example,) = blocks("yaml")
    recipe = check_recipe(parse_yaml(example, "README.md"))
    assert recipe.stages[1].growth.num_feed_forward_tokens == 1024
    assert recipe.stages[1].training.continue_schedule


def test_the_map_names_every_room_and_no_other() -> None:
    """The README's table has one line for each folder of the package, and every folder it names exists."""
    named = {Path(path) for path in re.findall(r"^\| `([^`]+)/` \|", README, flags=re.MULTILINE)}
    rooms = {folder.parent.relative_to(ROOT) for folder in (ROOT / "src" / "gnomon").glob("*/__init__.py")}
    assert {path for path in named if path.parts[0] == "src"} == rooms
    assert all((ROOT / path).is_dir() for path in named)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    """Every relative link of a document is a file of the repository."""
    links = re.findall(r"\]\(([^)#]+)", document.read_text(encoding="utf-8"))
    for link in links:
        assert "://" in link or (document.parent / link).exists(), link


def test_every_command_of_the_makefile_is_explained_by_its_help() -> None:
    """`make help` lists each target that a user may call."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, flags=re.MULTILINE)
    command = ["make", "--no-print-directory", "help"]  # make tells its folder when another make has called it
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in shown.splitlines()} == set(shlex.split(phony))


def test_the_page_of_the_peers_tests_has_every_class_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row for each class in each form, none with a failure, and the README gives their sum."""
    monkeypatch.syspath_prepend(ROOT / "tests" / "peer")
    from models import FORMS, MODELS, case_name, left_out

    page = (ROOT / "docs" / "peer-tests.md").read_text(encoding="utf-8")
    rows = {
        case: tuple(map(int, counts))
        for case, *counts in re.findall(r"^\| (.+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.M)
    }
    total = rows.pop("all")
    assert set(rows) == {case_name(name, form) for name in MODELS for form in FORMS}
    assert total == tuple(map(sum, zip(*rows.values(), strict=True)))
    assert total[2] == 0
    assert f"{total[0]} pass, none fails" in README
    assert not left_out()
