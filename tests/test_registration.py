"""transformers' Auto classes and pipelines know our models as soon as gnomon is imported, in a process of their own."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from samples import language_model

MODULES = sorted(path.stem for path in Path(find_spec("gnomon.models").origin).parent.glob("[a-z]*.py"))
LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
IMPORTS = {
    "gnomon first": """
import gnomon
unknown_before = "torch" not in sys.modules
import transformers
""",
    "transformers first": """
from transformers import AutoConfig
try:
    AutoConfig.from_pretrained(sys.argv[1])
except ValueError as error:
    unknown_before = "gnomon" in str(error)
import gnomon
""",
}
"""`unknown_before`: importing gnomon alone loads no torch; without it transformers does not know the folder's type."""

SCRIPT = """
import json, sys, warnings
warnings.filterwarnings("error", module="gnomon")
{imports}
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer, pipeline

folder = sys.argv[1]
text = pipeline("text-generation", model=folder)(
    "to be or not ", max_new_tokens=5, do_sample=False, return_full_text=False
)
model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
batch = tokenizer(["to be", "or not to be"], return_tensors="pt", padding=True, padding_side="left")
print(json.dumps({{
    "unknown_before": unknown_before,
    "config": type(AutoConfig.from_pretrained(folder)).__name__,
    "stack": type(AutoModel.from_pretrained(folder)).__name__,
    "head": type(model).__name__,
    "fresh": type(AutoModelForCausalLM.from_config(model.config)).__name__,
    "text": text[0]["generated_text"],
    "rows": len(model.generate(**batch, max_new_tokens=2)),
    "public": sorted(set(gnomon.__all__) - set(dir(gnomon))),
}}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A language model with a character tokenizer beside it."""
    path = tmp_path_factory.mktemp("model")
    vocabulary = {token: index for index, token in enumerate(["<pad>", *LETTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>").save_pretrained(path)
    language_model(vocab_size=len(vocabulary), pad_token_id=0).save_pretrained(path)
    return path


@pytest.mark.parametrize("order", IMPORTS)
def test_auto_classes_and_pipelines_find_our_models_in_either_import_order(order: str, folder: Path) -> None:
    """AutoConfig, AutoModel, AutoModelForCausalLM and the text-generation pipeline load the folder by themselves."""
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(imports=IMPORTS[order]), str(folder)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    text = found.pop("text")
    assert len(text) == 5
    assert set(text) <= set(LETTERS)
    assert found == {
        "unknown_before": True,
        "config": "GnomonConfig",
        "stack": "GnomonModel",
        "head": "GnomonForCausalLM",
        "fresh": "GnomonForCausalLM",
        "rows": 2,
        "public": [],
    }


@pytest.mark.parametrize("prompt", ["to be or not", "a"])
def test_the_pipeline_gives_the_text_of_generate(prompt: str, folder: Path) -> None:
    """In this process too: the pipeline's text is the tokenizer's reading of what generate returns."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([[1 + LETTERS.index(letter) for letter in prompt]])
    assert tokenizer(prompt)["input_ids"] == ids[0].tolist()
    expected = tokenizer.decode(model.generate(ids, max_new_tokens=6, do_sample=False)[0])
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
    assert generate(prompt, max_new_tokens=6, do_sample=False)[0]["generated_text"] == expected


@pytest.mark.parametrize("module", MODULES)
def test_any_module_of_models_may_be_imported_first(module: str) -> None:
    """Importing one alone meets no half-loaded other, and the Auto classes know every head afterwards."""
    code = (
        f"import gnomon.models.{module}\n"
        "from transformers import AutoModelForCausalLM, AutoModelForImageClassification\n"
        "import gnomon\n"
        "for auto, head in ((AutoModelForCausalLM, gnomon.GnomonForCausalLM),"
        " (AutoModelForImageClassification, gnomon.GnomonForImageClassification)):\n"
        "    assert auto._model_mapping[gnomon.GnomonConfig] is head\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
