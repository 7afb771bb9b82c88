"""The command line where no model is needed: help, usage, information, recipes, data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gnomon.cli import errors
from gnomon.cli.sweep import read_grid

COMMANDS = (
    "demo",
    "train",
    "sweep",
    "evaluate",
    "generate",
    "grow",
    "shrink",
    "report",
    "info",
    "convert",
    "recipes",
    "data",
)

# Runs the command line in this very process and reports, at its end, whether anything heavy was imported.
LIGHT = (
    "import sys, atexit;"
    "heavy = {'torch', 'transformers', 'datasets', 'matplotlib'};"
    "atexit.register(lambda: print('heavy:', *sorted(heavy & set(sys.modules)), file=sys.stderr));"
    "from gnomon.cli.main import main; main()"
)


def gnomon(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """Run the command line in a process of its own."""
    command = [sys.executable, "-c", LIGHT, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)


def heavy_imports(result: subprocess.CompletedProcess) -> str:
    """What the process had imported at its end."""
    return result.stderr.rsplit("heavy:", 1)[1].strip()


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_nothing_heavy_and_shows_an_example(command: str) -> None:
    """The help of every command comes without torch, transformers, datasets and matplotlib."""
    result = gnomon(*command.split(), "--help")
    assert result.returncode == 0, result.stderr
    assert heavy_imports(result) == ""
    assert "gnomon demo" in result.stdout if not command else f"gnomon {command}" in result.stdout
    if command not in ("", "recipes", "data"):
        assert "Example" in result.stdout


def test_information_on_a_preset_needs_no_torch() -> None:
    """`gnomon info` counts by formula alone, for a program as for a reader."""
    result = gnomon("info", "tokenformer-150m", "--sequence-length", "1024", "--json")
    assert result.returncode == 0, result.stderr
    assert heavy_imports(result) == ""
    answer = json.loads(result.stdout)
    assert answer["parameters"]["total"] == 151_881_216
    assert answer["flops"]["training_per_token"] == 3 * answer["flops"]["forward_per_token"]
    assert answer["memory_bytes"]["weights"] == 4 * 151_881_216
    shown = gnomon("info", "tokenformer-150m")
    assert "151,881,216" in shown.stdout
    assert heavy_imports(shown) == ""


def test_packaged_recipes_and_data_are_listed_without_torch() -> None:
    """Names, summaries and licenses are there for a program as for a reader."""
    recipes = gnomon("recipes", "list", "--json")
    assert recipes.returncode == 0, recipes.stderr
    assert "torch" not in heavy_imports(recipes)
    assert {"name", "summary"} == set(json.loads(recipes.stdout)[0])
    assert "demo" in gnomon("recipes").stdout
    data = gnomon("data", "list", "--json")
    assert data.returncode == 0, data.stderr
    assert "torch" not in heavy_imports(data)
    embedded = next(row for row in json.loads(data.stdout) if row["name"] == "shakespeare")
    assert embedded["available"]
    assert embedded["license"] == "public domain"
    assert "shakespeare" in gnomon("data").stdout


def test_a_recipe_is_copied_once_and_never_over_a_file(tmp_path: Path) -> None:
    """The copy is the packaged file to the last byte, and a second copy is refused."""
    from gnomon.training.recipe import recipe_path

    assert gnomon("recipes", "copy", "demo", "mine.yaml", cwd=tmp_path).returncode == 0
    assert (tmp_path / "mine.yaml").read_bytes() == recipe_path("demo").read_bytes()
    (tmp_path / "mine.yaml").write_text("mine")
    again = gnomon("recipes", "copy", "demo", "mine.yaml", cwd=tmp_path)
    assert again.returncode == 2
    assert "mine.yaml exists" in again.stderr
    assert (tmp_path / "mine.yaml").read_text() == "mine"


def test_the_schema_is_json_that_knows_the_recipes_keys() -> None:
    """An editor can complete and check recipes by the printed schema."""
    schema = json.loads(gnomon("recipes", "schema").stdout)
    assert {"model", "tokenizer", "data", "seed", "stages"} <= set(schema["properties"])


def test_fetching_embedded_data_says_that_nothing_is_downloaded() -> None:
    """The words go to standard error and the folder to standard output."""
    result = gnomon("data", "fetch", "shakespeare")
    assert result.returncode == 0
    assert "Nothing to download" in result.stderr
    assert (Path(result.stdout.strip()) / "hamlet.txt").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "No such command 'nonsense'"),
        (["info"], "Missing argument"),
        (["info", "tokenformer-tiny", "--no-such-option"], "No such option"),
        (["info", "tokenformer-tiny", "--sequence-length", "0"], "--sequence-length"),
        (["info", "tokenformer-tiny", "--dtype", "int8"], "float32, bfloat16, float16"),
        (["info", "tokenformer-150"], "did you mean tokenformer-150m?"),
        (["recipes", "copy", "demoo"], "did you mean 'demo'?"),
        (["data", "fetch", "shakespear"], "did you mean 'shakespeare'?"),
        (["convert", "tokenformer", "only-two"], "not 2 arguments"),
        (["convert", "gguf", "a", "b"], "the format must be one of tokenformer, "),
        (["train", "missing.yaml"], "'missing.yaml'"),
        (["train", "demo", "-o", "stages.0.training.max_stepz=3"], "did you mean 'max_steps'?"),
        (["train", "demo", "-o", "stages.0.training.max_steps=many"], "must be a whole number"),
        (["train", "demo", "-o", "model.hiden_size=3"], "did you mean 'hidden_size'?"),
        (["sweep", "demo", "--grid", "seed"], "KEY=V1,V2"),
        (["evaluate", "some-checkpoint"], "--data NAME, --source FILE and --tasks NAME,NAME"),
        (["generate", "no-such-folder", "-p", "A"], "no-such-folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gets_one_sentence_and_exit_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    """What cannot be done is said in one line on standard error, and nothing is written."""
    result = gnomon(*arguments, cwd=tmp_path)
    message = result.stderr.rsplit("heavy:", 1)[0].strip()
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert message.startswith("error: ")
    assert len(message.splitlines()) == 1
    assert words in message
    assert not list(tmp_path.iterdir())


def test_the_version_is_the_packages() -> None:
    """`gnomon --version` prints what the package's metadata say."""
    from importlib.metadata import version

    assert gnomon("--version").stdout.strip() == f"gnomon {version('gnomon')}"


def test_completion_knows_the_commands() -> None:
    """The shell's completion offers the commands that begin with what was typed."""
    environment = {**os.environ, "_GNOMON_COMPLETE": "complete_bash", "COMP_WORDS": "gnomon ge", "COMP_CWORD": "1"}
    code = "import sys; sys.argv[0] = 'gnomon'; from gnomon.cli.main import main; main()"
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.stdout.split() == ["generate"]


def test_a_reader_who_leaves_early_causes_no_complaint() -> None:
    """Output into a closed pipe ends the command without a traceback."""
    code = "from gnomon.cli.main import main; main()"
    command = f'"{sys.executable}" -c "{code}" recipes schema | head -c 10'
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert len(result.stdout) == 10
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("[1]", "must hold a JSON object, but holds a list"),
        ('{"model_type": "gnomon", "hidden_size": -16}', "hidden_size must be a whole number of at least 1, got -16"),
        ('{"model_type": "gnomon", "vocab_size": "many"}', "vocab_size must be a whole number of at least 1"),
    ],
)
def test_a_spoilt_configuration_is_named_with_its_file(tmp_path: Path, text: str, words: str) -> None:
    """`gnomon info` computes nothing from a file that describes no model."""
    (tmp_path / "config.json").write_text(text)
    result = gnomon("info", str(tmp_path), cwd=tmp_path)
    assert result.returncode == 2
    assert words in result.stderr
    assert "config.json" in result.stderr
    assert result.stdout == ""


def test_faults_of_our_own_are_told_from_bad_input() -> None:
    """A broken file exits with 2 and its own words; an error nobody foresaw exits with 1 and says how to see more."""
    from safetensors import SafetensorError

    assert errors.describe(SafetensorError("header too large")) == ("header too large", 2)
    assert errors.describe(FileNotFoundError(2, "No such file or directory", "x")) == (
        "No such file or directory: x",
        2,
    )
    assert errors.describe(ValueError("two\n  lines")) == ("two lines", 2)
    assert errors.describe(ValueError("big\nException raised from f at x.cpp:1\nframe #0")) == ("big", 2)
    sentence, code = errors.describe(RuntimeError("DefaultCPUAllocator: can't allocate memory: 6 bytes"))
    assert (sentence[:31], code) == ("there is not enough memory: tak", 2)
    sentence, code = errors.describe(RuntimeError("boom"))
    assert code == 1
    assert "boom" in sentence
    assert "GNOMON_DEBUG=1" in sentence
    assert errors.describe(KeyError("q"))[1] == 1


def test_debugging_shows_where_an_error_was_raised() -> None:
    """With GNOMON_DEBUG=1 the traceback precedes the sentence, and the exit code stays."""
    code = "from gnomon.cli.main import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "info", "no-such-preset"],
        env={**os.environ, "GNOMON_DEBUG": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "Traceback" in result.stderr
    assert result.stderr.strip().splitlines()[-1].startswith("error: 'no-such-preset'")


def test_grid_values_are_yaml() -> None:
    """Numbers, words, lists and mappings can stand in a grid, and a key stands in it once."""
    assert read_grid(["a.b=1,2.5,x", "c=[1, 2],{query: 3}", "d=3e-4"]) == {
        "a.b": [1, 2.5, "x"],
        "c": [[1, 2], {"query": 3}],
        "d": [3e-4],
    }
    with pytest.raises(ValueError, match="names a twice"):
        read_grid(["a=1", "a=2"])
