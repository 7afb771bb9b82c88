"""torch.compile with fullgraph: forward, training step, any length, and decoding, all equal to eager.

These tests run in a pytest session without shape checks, which the compiler cannot look through (see the Makefile).
"""

import pytest
import torch
from transformers import StaticCache

from contract import SAME, gap
from gnomon.nn import Pattention
from gnomon.nn.functional import SCORES
from samples import language_model, random_ids

pytestmark = [
    pytest.mark.compile,
    # the compiler's own imports, on every Python
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
VARIANTS = ("l2_norm_gelu", "learned score scale", "linear with biases", "gated")


@pytest.fixture(autouse=True)
def fresh_compiler():
    """No graph of another test, and no silent fall-back to eager after too many recompilations."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Graphs:
    """The compiler without its last stage, which turns graphs into C++ and costs most of the time; counts graphs."""

    def __init__(self) -> None:
        self.count = 0
        self.compile = torch._dynamo.lookup_backend("aot_eager")

    def __call__(self, graph, inputs, **options):
        self.count += 1
        return self.compile(graph, inputs, **options)


def assert_compiled_step_equals_eager(model, backend) -> None:
    ids = random_ids(3, 12)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, "use_cache": False}
    batch["attention_mask"][1, 9:] = 0
    results = []
    for forward in (model, torch.compile(model, fullgraph=True, backend=backend)):
        model.zero_grad()
        output = forward(**batch)
        output.loss.backward()
        results.append((output.loss, output.logits, [p.grad.clone() for p in model.parameters()]))
    (loss, logits, gradients), (compiled_loss, compiled_logits, compiled_gradients) = results
    torch.testing.assert_close(compiled_loss, loss, rtol=1e-5, atol=1e-6)
    assert gap(compiled_logits, logits) < SAME
    for found, expected in zip(compiled_gradients, gradients, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_training_step_is_one_graph_that_equals_eager(variant: str) -> None:
    """With padding and labels: the loss, the logits and every gradient agree with eager to rounding."""
    assert_compiled_step_equals_eager(language_model(variant).train(), Graphs())


def test_a_training_step_compiled_to_machine_code_equals_eager() -> None:
    """The whole compiler, on one layer: the loss, the logits and every gradient agree with eager to rounding."""
    assert_compiled_step_equals_eager(language_model(num_hidden_layers=1).train(), "inductor")


@torch.no_grad()
def test_one_dynamic_graph_serves_every_length() -> None:
    """Three more lengths and batch sizes need no graph but the first one's."""
    model, backend, counts = language_model(), Graphs(), []
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    for rows, length in ((3, 12), (3, 7), (2, 30), (5, 19)):
        ids = random_ids(rows, length)
        assert gap(compiled(input_ids=ids, use_cache=False).logits, model(input_ids=ids).logits) < SAME
        counts.append(backend.count)
    assert counts == counts[:1] * 4  # the first call may trace twice, to learn which numbers are constants


@torch.no_grad()
def test_a_compiled_step_decodes_with_a_static_cache() -> None:
    """One graph of one token after a prefill gives the full pass's logits at every step, without recompiling."""
    model, ids, backend = language_model(), random_ids(2, 12), Graphs()
    full = model(input_ids=ids).logits
    cache = StaticCache(config=model.config, max_cache_len=16)
    model(input_ids=ids[:, :5], cache=cache)
    step = torch.compile(model, fullgraph=True, backend=backend)
    for t in range(5, 12):
        logits = step(input_ids=ids[:, t : t + 1], cache=cache).logits[:, 0]
        assert gap(logits, full[:, t]) < SAME
    assert backend.count == 1


@pytest.mark.parametrize("score", SCORES)
def test_a_compiled_pattention_equals_the_eager_kernel(score: str) -> None:
    """The compiler is given the equations, eager the hand-written gradient: outputs and gradients agree."""
    torch.manual_seed(0)
    layer = Pattention(24, 17, 33, score=score, key_std=1.0, value_std=1.0, learn_score_scale=score != "gelu")
    x = torch.randn(5, 24, requires_grad=True)
    leaves = (x, *layer.parameters())
    eager, compiled = layer(x), torch.compile(layer, fullgraph=True, backend=Graphs())(x)
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-4)
    for found, expected in zip(
        torch.autograd.grad(compiled.sum(), leaves), torch.autograd.grad(eager.sum(), leaves), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)


def test_exporting_keeps_length_and_batch_free() -> None:
    """torch.export with dynamic axes gives a program that runs at lengths it was not traced with."""
    model = language_model()

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids):
            return self.model(input_ids=input_ids, use_cache=False).logits

    axes = {"input_ids": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(Logits().eval(), (random_ids(3, 12),), dynamic_shapes=axes).module()
    for rows, length in ((3, 12), (2, 7), (4, 30)):
        ids = random_ids(rows, length)
        with torch.no_grad():
            assert gap(program(ids), model(input_ids=ids).logits) < SAME
