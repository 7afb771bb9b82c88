"""The wheel, installed where neither the source tree nor its editable install can be seen."""

import json
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command and return what it printed."""
    result = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run(*pip, "--wheel-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path) -> Path:
    """The bin folder of a new environment with the wheel, and with the dependencies of this one in view."""
    root = wheel.parent / "environment"
    venv.create(root, with_pip=False, symlinks=True)
    python = root / "bin" / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=root,
    )
    # A folder named in a .pth file is searched, but its own .pth files are not read: of what is installed here,
    # everything is seen but the editable gnomon.
    installed = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=root).strip()
    (Path(installed) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    where = run(python, "-c", "import gnomon; print(gnomon.__file__)", cwd=root).strip()
    assert Path(where).is_relative_to(installed)
    return root / "bin"


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    """Modules, recipes and the embedded text are all in it, and nothing else but metadata."""
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert packed == expected
    assert "gnomon/recipes/demo.yaml" in packed
    assert "gnomon/data/shakespeare/hamlet.txt" in packed


def test_the_installed_command_finds_its_recipes_and_its_data(environment: Path, tmp_path: Path) -> None:
    """Outside the source tree the command lists recipes, counts a preset and reads the embedded plays."""
    assert "Train Transformers" in run(environment / "gnomon", "--help", cwd=tmp_path)
    assert "demo" in run(environment / "gnomon", "recipes", "list", cwd=tmp_path)
    counted = json.loads(run(environment / "gnomon", "info", "tokenformer-150m", "--json", cwd=tmp_path))
    assert counted["parameters"]["total"] == 151_881_216
    code = "from gnomon.data.text import load_text; print(load_text(name='shakespeare').num_train_characters)"
    assert int(run(environment / "python", "-c", code, cwd=tmp_path)) > 800_000


def test_the_installed_demo_runs_to_its_end(environment: Path, tmp_path: Path) -> None:
    """From the wheel the demo trains, prints the n-grams' losses, draws the curve and writes a passage."""
    settings = ["max_steps=2", "warmup_steps=1", "evaluation_sequences=2"]
    overrides = [part for setting in settings for part in ("-o", f"stages.0.training.{setting}")]
    overrides += ["-o", "model.num_hidden_layers=1", "-o", "model.num_feed_forward_tokens=32"]
    shown = run(environment / "gnomon", "demo", *overrides, cwd=tmp_path)
    losses = {name: float(re.search(rf"^{name} +([0-9.]+)", shown, re.MULTILINE)[1]) for name in ("bigram", "5-gram")}
    assert 1.0 < losses["5-gram"] < losses["bigram"] < 3.0
    assert re.search(r"^this model, [0-9,]+ parameters +[0-9.]+ *$", shown, re.MULTILINE)
    curve = tmp_path / re.search(r"runs/demo/\S+\.png", shown)[0]
    assert curve.is_file()
    assert curve.with_suffix(".svg").is_file()
    assert "\nROMEO:\n" in shown
    assert (tmp_path / "runs" / "demo" / "model" / "model.safetensors").is_file()
