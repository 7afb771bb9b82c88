"""One process's conditions: no network, one thread, its own caches, and shapes that are checked."""

import os
import shutil
import tempfile

_CACHE = tempfile.mkdtemp(prefix="gnomon-tests-")
_SHAPE_CHECKS = os.environ.get("GNOMON_SHAPE_CHECKS", "1") != "0"

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    HF_HOME=f"{_CACHE}/huggingface",
    GNOMON_DATA=f"{_CACHE}/data",
    MPLBACKEND="Agg",
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    TOKENIZERS_PARALLELISM="false",
    NO_COLOR="1",
    COLUMNS="110",
)

if _SHAPE_CHECKS:
    from jaxtyping import install_import_hook

    # Before any import of gnomon.nn; torch.compile(fullgraph=True) cannot see through the checks.
    install_import_hook("gnomon.nn", "beartype.beartype")

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# The same examples every time, and no limit by the clock: a busy machine must not fail a test.
settings.register_profile("gnomon", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gnomon")

collect_ignore = ["peer"]  # needs transformers' source distribution: `make peer-test` fetches it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the compile tests to a session without shape checks."""
    if not _SHAPE_CHECKS:
        return
    left_out = [item for item in items if item.get_closest_marker("compile")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not item.get_closest_marker("compile")]


def pytest_unconfigure() -> None:
    """Remove this process's caches."""
    shutil.rmtree(_CACHE, ignore_errors=True)
