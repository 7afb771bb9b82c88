"""ONNX: one file, run by onnxruntime at batch sizes and lengths that it was not exported with."""

from pathlib import Path

import pytest
import torch

from contract import SAME, gap
from samples import language_model, random_ids

pytestmark = [
    # the exporter traces, and so needs a session without the shape checks
    pytest.mark.compile,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Logits(torch.nn.Module):
    """The part of a language model that an inference server runs."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


def padded(rows: int, length: int) -> dict[str, torch.Tensor]:
    """Ids, and a mask that hides the first places of the first row."""
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, :3] = 0
    return {"input_ids": random_ids(rows, length), "attention_mask": mask}


@torch.no_grad()
def test_an_onnx_file_serves_every_batch_size_and_length(tmp_path: Path) -> None:
    """Exported at 3 rows of 12 tokens, it gives our logits at 2 of 7 and 5 of 30 as well, padding included."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model, free = language_model(num_hidden_layers=1), torch.export.Dim.DYNAMIC
    axes = {name: {0: free, 1: free} for name in ("input_ids", "attention_mask")}
    batch = padded(3, 12)
    program = torch.onnx.export(
        Logits(model).eval(), tuple(batch.values()), dynamo=True, dynamic_shapes=axes, verbose=False
    )
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for rows, length in ((3, 12), (2, 7), (5, 30)):
        batch = padded(rows, length)
        (found,) = session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
        real = batch["attention_mask"].bool()
        assert gap(torch.from_numpy(found)[real], model(**batch).logits[real]) < SAME
