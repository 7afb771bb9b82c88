"""Models of sound: padding, subsampling, positions, CTC's short rows, saving, growing, and what is refused."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModelForAudioClassification, AutoModelForCTC, AutoModelForSpeechSeq2Seq

import gnomon
from contract import DIFFERENT, SAME, gap
from gnomon import GnomonConfig, GnomonForAudioClassification, GnomonForCTC, GnomonForSpeechSeq2Seq, GnomonModel
from gnomon.models.audio_fields import subsampled_length
from gnomon.models.audio_inputs import FilterbankEmbedding
from gnomon.models.ctc import ctc_loss
from gnomon.nn.convolutions import Convolution
from samples import VARIANTS
from sounds import FIELDS, FRAMES, PAIR, SOUND, call, labels_for, listener, sound

every_head = pytest.mark.parametrize("cls", FIELDS, ids=lambda cls: cls.__name__)
every_variant = pytest.mark.parametrize("variant", ["l2_norm_gelu", "sub, linear"])


def padded_batch(lengths: tuple[int, ...], fill: float):
    """Rows of these lengths, filled with some number, and the mask."""
    features, mask = sound(len(lengths)), torch.zeros(len(lengths), FRAMES, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
        features[row, length:] = fill
    return features, mask


@every_head
@every_variant
@pytest.mark.parametrize("lengths", [(37, 22, 9), (36, 35, 33)])
@torch.no_grad()
def test_padding_leaves_the_real_frames_alone(cls: type, variant: str, lengths: tuple[int, ...]) -> None:
    """A row says what it says alone, whatever its padding holds, at each remainder of 4; without a mask it differs."""
    model = listener(cls, variant)
    features, mask = padded_batch(lengths, fill=50.0)
    masked, blind = call(cls, model, features, mask), call(cls, model, features)
    for row, length in enumerate(lengths):
        alone = call(cls, model, features[row : row + 1, :length])[0]
        real = subsampled_length(length, 4) if cls is GnomonForCTC else len(alone)
        assert gap(masked[row, :real], alone) < SAME
        if length < FRAMES:
            assert gap(blind[row, :real], alone) > DIFFERENT


@torch.no_grad()
def test_a_mask_for_the_attention_alone_lets_padding_leak_into_the_last_frames() -> None:
    """Convolutions look past the end of a row: masked positions without masked frames differ at its end."""
    model = listener(GnomonForCTC)
    features, mask = padded_batch((37, 22, 9), fill=50.0)
    embed = model.model.embed_features
    leaking, _ = embed(features)
    whole, positions = embed(features, mask)
    for row, length in ((1, 22), (2, 9)):
        real = int(positions[row].sum())
        assert real == subsampled_length(length, 4)
        assert gap(leaking[row, :real], whole[row, :real]) > DIFFERENT


@pytest.mark.parametrize("factor", [1, 2, 4, 8])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@torch.no_grad()
def test_every_length_has_the_formulas_number_of_positions(factor: int, kernel: int) -> None:
    """ceil(frames / factor) of them, by outputs, by mask and by formula, at every length up to 19."""
    config = GnomonConfig(
        **{**VARIANTS["linear"], **SOUND, "subsampling_factor": factor, "subsampling_conv_kernel_size": kernel}
    )
    embed = FilterbankEmbedding(config)
    for frames in range(1, 20):
        mask = torch.ones(2, frames, dtype=torch.long)
        mask[1, (frames + 1) // 2 :] = 0
        embeds, positions = embed(sound(2, frames), mask)
        expected = [subsampled_length(frames, factor), subsampled_length((frames + 1) // 2, factor)]
        assert embeds.shape[1] == expected[0] == embed.output_length(frames) == -(-frames // factor)
        assert positions.sum(dim=1).tolist() == expected
        assert torch.equal(embed.shorten(mask), positions)


@pytest.mark.parametrize(("stride", "groups", "kernel"), [(1, 1, 3), (2, 1, 3), (2, 2, 4), (1, 4, 5)])
def test_a_convolution_equals_its_sum(stride: int, groups: int, kernel: int) -> None:
    """Outputs and gradients equal those of the written sum over neighbors, padding left out."""
    torch.manual_seed(0)
    layer = Convolution(4, 8, kernel, stride=stride, groups=groups, bias=True, std=0.5)
    x = torch.randn(2, 9, 4, requires_grad=True)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    rows = []
    for place in range(0, 9, stride):
        total = layer.bias.expand(2, -1)
        for j in range(kernel):
            source = place + j - (kernel - 1) // 2
            if 0 <= source < 9:
                seen = torch.where(mask[:, source, None], x[:, source], torch.zeros(()))
                parts = zip(seen.chunk(groups, 1), layer.weight[:, :, j].chunk(groups, 0), strict=True)
                total = total + torch.cat([part @ weight.T for part, weight in parts], dim=1)
        rows.append(total)
    naive, found = torch.stack(rows, dim=1), layer(x, mask)
    torch.testing.assert_close(found, naive)
    torch.testing.assert_close(
        *(torch.autograd.grad(y.square().sum(), (x, layer.weight, layer.bias)) for y in (found, naive))
    )


@torch.no_grad()
def test_convolutional_positions_tell_the_order_of_frames() -> None:
    """Without any other positions, four equal stretches in another order give another mean; without them the same."""
    stretches = sound(1, 16, seed=3).view(1, 4, 4, -1)
    shuffled = stretches[:, [2, 0, 3, 1]].reshape(1, 16, -1)
    for kernel, differs in ((4, True), (None, False)):
        changes = {"positions": "none", "num_conv_pos_embeddings": kernel, "subsampling_conv_kernel_size": 1}
        model = listener(GnomonForAudioClassification, **changes)
        difference = gap(model(shuffled).logits, model(stretches.reshape(1, 16, -1)).logits)
        assert difference > DIFFERENT if differs else difference < SAME


def test_a_row_too_short_for_its_labels_is_skipped_and_counted() -> None:
    """Three positions for `abcab`: the loss is finite, skipped is 1, and the gradients are those without the row."""
    a, b, c = 3, 4, 5
    labels = torch.tensor([[6, 7, 6, -100, -100], [a, b, c, a, b], [8, -100, -100, -100, -100]])
    found = []
    for rows in ([0, 1, 2], [0, 2]):
        model = listener(GnomonForCTC)
        outputs = model(input_features=sound(3, 12)[rows], labels=labels[rows])
        outputs.loss.backward()
        assert outputs.loss.isfinite()
        assert int(outputs.skipped) == len(rows) - 2
        found.append((outputs.loss, [parameter.grad for parameter in model.parameters()]))
    torch.testing.assert_close(found[0][0], found[1][0])
    for with_row, without in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(with_row, without, rtol=1e-5, atol=1e-7)


def test_equal_neighbors_need_a_frame_between_them() -> None:
    """`aab` takes four positions: it is skipped at three and counts at four; `aba` counts at three."""
    logits = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0))
    for labels, positions, skipped in (([1, 1, 2], 3, 1), ([1, 1, 2], 4, 0), ([1, 2, 1], 3, 0)):
        loss, count = ctc_loss(logits[:, :positions], torch.tensor([labels]), None, blank=0)
        assert int(count) == skipped
        assert bool(loss > 0) == (not skipped)


@pytest.mark.parametrize("blank", [0, 5])
def test_the_loss_is_the_sum_over_all_alignments(blank: int) -> None:
    """Equal to enumerating every path, for the first and the last id as blank, divided as asked."""
    logits = torch.randn(1, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    shares = logits[0].softmax(-1)
    total = 0.0
    for path in np.ndindex(6, 6, 6, 6):
        joined = [token for place, token in enumerate(path) if place == 0 or token != path[place - 1]]
        if [token for token in joined if token != blank] == [3, 2]:
            total += float(torch.stack([shares[place, token] for place, token in enumerate(path)]).prod())
    labels = torch.tensor([[3, 2, -100, blank]])
    loss, _ = ctc_loss(logits, labels, None, blank=blank)
    assert float(loss) == pytest.approx(-np.log(total) / 2, rel=1e-5)
    assert float(ctc_loss(logits, labels, None, blank=blank, num_items=10)[0]) == pytest.approx(-np.log(total) / 10)


def test_rows_of_nothing_but_padding_or_without_labels_are_finite() -> None:
    """Every head but the decoder's gives finite losses and gradients; a batch of skipped rows alone as well."""
    mask = torch.ones(3, FRAMES, dtype=torch.long)
    mask[1] = 0
    for cls in (GnomonForCTC, GnomonForAudioClassification):
        model = listener(cls)
        outputs = model(input_features=sound(), attention_mask=mask, labels=labels_for(cls))
        outputs.loss.backward()
        assert outputs.loss.isfinite()
        assert outputs.logits.isfinite().all()
        assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    model = listener(GnomonForCTC)
    outputs = model(input_features=sound(2, 4), labels=torch.tensor([[3, 4, 5], [3, 3, 3]]))
    outputs.loss.backward()
    assert (outputs.loss.item(), int(outputs.skipped)) == (0.0, 2)
    silent = model(input_features=sound(2), labels=torch.full((2, 3), -100))
    assert silent.loss.isfinite()
    assert int(silent.skipped) == 0


@torch.no_grad()
def test_positions_of_padding_say_blank() -> None:
    """The likeliest token there is the blank, pad_token_id or else the last id, so that decoding reads nothing."""
    features, mask = padded_batch((37, 22, 9), fill=3.0)
    for pad in (None, 0, 7):
        model = listener(GnomonForCTC, pad_token_id=pad)
        logits = model(features, mask).logits
        assert model.blank == (19 if pad is None else pad)
        assert (logits[2, 3:].argmax(-1) == model.blank).all()


@every_head
@every_variant
def test_the_backward_pass_reaches_every_parameter_and_checkpointing_changes_nothing(cls: type, variant: str) -> None:
    """No parameter is without a gradient, convolutions included; eager, sdpa and recomputed gradients are equal."""
    is_biased = variant == "sub, linear" and cls is not GnomonForSpeechSeq2Seq  # a bias of cross-attention keys is idle
    model, found = listener(cls, variant, use_bias=is_biased).train(), []
    features, mask = padded_batch((37, 30, 33), fill=0.0)
    for implementation, recompute in (("sdpa", False), ("eager", False), ("sdpa", True)):
        model.set_attn_implementation(implementation)
        if recompute:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(input_features=features, attention_mask=mask, labels=labels_for(cls)).loss.backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert not [name for name, gradient in found[0].items() if not gradient.any()]
    for name, gradient in found[0].items():
        for other in found[1:]:
            torch.testing.assert_close(other[name], gradient, rtol=1e-4, atol=1e-5 * gradient.abs().max().item())


@every_head
@torch.no_grad()
def test_models_of_sound_come_back_from_disk_through_the_auto_classes(cls: type, tmp_path) -> None:
    """With equal outputs, no table of tokens but the decoder's, and blocks under the names that every model has."""
    auto = {
        GnomonForCTC: AutoModelForCTC,
        GnomonForAudioClassification: AutoModelForAudioClassification,
        GnomonForSpeechSeq2Seq: AutoModelForSpeechSeq2Seq,
    }[cls]
    model = listener(cls, use_bias=True)
    model.save_pretrained(tmp_path)
    loaded, report = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is cls
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    features, mask = padded_batch((37, 22, 9), fill=1.0)
    assert torch.equal(call(cls, loaded, features, mask), call(cls, model, features, mask))
    tables = [name for name in model.state_dict() if "embed_tokens" in name]
    assert tables == (["model.decoder.embed_tokens.weight"] if cls is GnomonForSpeechSeq2Seq else [])
    assert any("layers.0.attention.query.weight" in name for name in model.state_dict())


@torch.no_grad()
def test_a_classifier_begins_from_a_transcribers_encoder(tmp_path) -> None:
    """The front end and every block are loaded; the head alone is new."""
    listener(GnomonForCTC).save_pretrained(tmp_path)
    tuned, report = GnomonForAudioClassification.from_pretrained(tmp_path, num_labels=3, output_loading_info=True)
    assert sorted(report["missing_keys"]) == ["classifier.bias", "classifier.weight"]
    base = GnomonModel.from_pretrained(tmp_path)
    assert torch.equal(base(input_features=sound()).last_hidden_state.shape[1] * torch.ones(1), torch.tensor([10.0]))
    assert tuned.config.num_mel_bins == 8


@every_head
@pytest.mark.parametrize(
    ("variant", "sizes", "options"),
    [
        ("l2_norm_gelu", {"num_attention_tokens": 20, "num_feed_forward_tokens": 60}, {}),
        ("sub, tokens", {"num_feed_forward_tokens": 60}, {}),
        ("sub, linear", {"intermediate_size": 160}, {}),
        ("sub, linear", {"hidden_size": 64, "num_attention_heads": 8}, {}),
        ("rms norm", {"hidden_size": 40}, {}),
        ("linear", {"hidden_size": 64}, {"init": "hypercloning"}),
    ],
)
def test_models_of_sound_grow_exactly_and_train_on(cls: type, variant: str, sizes, options, tmp_path) -> None:
    """Tokens and widths: unchanged within rounding, trained on with the optimizer, and equal when loaded again."""
    model = listener(cls, variant, use_bias="linear" in variant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(input_features=sound(), labels=labels_for(cls)).loss.backward()
        optimizer.step()

    step()
    report = gnomon.grow(model, optimizer=optimizer, seed=0, **options, **sizes)
    assert report.exact, report.summary()
    assert report.gap_relative < 1e-5
    step()
    model.eval()
    model.save_pretrained(tmp_path)
    again = cls.from_pretrained(tmp_path)
    assert torch.equal(call(cls, again, sound()), call(cls, model, sound()))


@every_head
def test_new_layers_of_a_model_of_sound_are_the_identity(cls: type) -> None:
    """More layers, of the encoder where there are two sides, move the outputs by nothing."""
    model = listener(cls, "l2_norm_gelu")
    sizes = {"encoder_layers": 3} if cls is GnomonForSpeechSeq2Seq else {"num_hidden_layers": 3}
    report = gnomon.grow(model, **sizes)
    assert report.exact
    assert report.gap_max == 0.0


def test_a_decoder_writes_what_its_own_loop_would_from_padded_sound() -> None:
    """Greedy generation equals the full pass, padding and cache included; three beams find no less likely text."""
    model = listener(GnomonForSpeechSeq2Seq).eval()
    features, mask = padded_batch((37, 22, 9), fill=20.0)
    options = {"attention_mask": mask, "max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    greedy = model.generate(features, **options)
    written = torch.full((3, 1), 1)
    with torch.no_grad():
        for _ in range(5):
            logits = model(features, mask, decoder_input_ids=written).logits[:, -1]
            logits[:, 2] = -torch.inf
            written = torch.cat((written, logits.argmax(-1, keepdim=True)), dim=1)
        assert torch.equal(greedy, written)

        def likelihood(ids):
            logits = model(features, mask, decoder_input_ids=ids[:, :-1]).logits
            return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).sum((1, 2))

        assert (likelihood(model.generate(features, num_beams=3, **options)) >= likelihood(greedy) - 1e-4).all()


@torch.no_grad()
def test_the_tables_of_a_writer_of_sound_grow_together() -> None:
    """Resizing reaches the decoder's table and the head, tied or not, and leaves the encoder alone."""
    for tie in (True, False):
        model = listener(GnomonForSpeechSeq2Seq, tie_word_embeddings=tie)
        model.resize_token_embeddings(26, mean_resizing=False)
        assert model.lm_head.weight.shape[0] == model.model.decoder.embed_tokens.num_embeddings == 26
        assert (model.lm_head.weight is model.model.decoder.embed_tokens.weight) == tie
        assert call(GnomonForSpeechSeq2Seq, model, sound()).shape[-1] == 26


def test_the_loss_of_a_classifier_and_of_a_writer_is_cross_entropy() -> None:
    """Over rows and over the targets that count."""
    model = listener(GnomonForAudioClassification)
    outputs = model(input_features=sound(), labels=torch.tensor([1, -100, 2]))
    torch.testing.assert_close(outputs.loss, F.cross_entropy(outputs.logits[[0, 2]], torch.tensor([1, 2])))
    writer, labels = listener(GnomonForSpeechSeq2Seq), labels_for(GnomonForSpeechSeq2Seq)
    outputs = writer(input_features=sound(), labels=labels)
    torch.testing.assert_close(outputs.loss, F.cross_entropy(outputs.logits.flatten(0, 1), labels.flatten()))


@pytest.mark.parametrize(
    ("attempt", "message"),
    [
        (lambda: GnomonConfig(subsampling_factor=4), "subsampling_factor needs num_mel_bins"),
        (lambda: GnomonConfig(num_mel_bins=80, subsampling_factor=3), "power of 2, each a convolution; got 3"),
        (lambda: GnomonConfig(num_mel_bins=0), "num_mel_bins must be at least 1; got 0"),
        (lambda: GnomonConfig(num_mel_bins=80, is_decoder=True), "looks both ways"),
        (lambda: GnomonConfig(num_mel_bins=80, num_conv_pos_embedding_groups=4), "needs num_conv_pos_embeddings"),
        (
            lambda: GnomonConfig(num_mel_bins=80, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=5),
            r"must divide hidden_size \(768\); got 5",
        ),
        (lambda: GnomonConfig(num_mel_bins=80, scale_embedding=True), "scale_embedding is for token embeddings"),
        (lambda: GnomonForCTC(GnomonConfig(**VARIANTS["linear"])), "needs num_mel_bins in its config"),
        (lambda: listener(GnomonForCTC, vocab_size=None), "needs vocab_size in its config"),
        (lambda: listener(GnomonForCTC, **PAIR), "GnomonForSpeechSeq2Seq has a decoder"),
        (
            lambda: GnomonForSpeechSeq2Seq(GnomonConfig(**VARIANTS["linear"] | SOUND)),
            "needs encoder_layers and decoder_",
        ),
        (lambda: listener(GnomonForCTC)(), "input_features are missing"),
        (lambda: listener(GnomonForCTC)(sound()[..., :7]), r"8 mel bins\); got \(3, 37, 7\)"),
        (lambda: listener(GnomonForCTC)(sound()[:, :0]), "at least 1 frame"),
        (lambda: listener(GnomonForCTC)(sound(), torch.ones(3, 10)), r"one number a frame, \(3, 37\); got \(3, 10\)"),
        (
            lambda: listener(GnomonForCTC)(sound(), (torch.arange(FRAMES) > 5).long().expand(3, -1)),
            "padding of sound follows its frames",
        ),
        (lambda: listener(GnomonForCTC)(sound(), labels=torch.tensor([[20]] * 3)), "0 to 19; got 20"),
        (lambda: listener(GnomonForCTC)(sound(), labels=torch.tensor([[-100, 3]] * 3)), "before their padding"),
        (lambda: GnomonModel(GnomonConfig(**VARIANTS["linear"]))(input_features=sound()), "models with num_mel_bins"),
        (lambda: listener(GnomonForCTC).model(input_ids=torch.ones(1, 3, dtype=torch.long)), "give input_features"),
        (lambda: gnomon.grow(listener(GnomonForCTC, "rms norm"), hidden_size=36), "groups of 8 channels"),
    ],
)
def test_what_does_not_fit_gets_one_sentence(attempt, message: str) -> None:
    """Configurations, features, masks, labels and widths: the rule and the value."""
    with pytest.raises(ValueError, match=message):
        attempt()
