"""Rows of speech and batches of them: features of sound, and labels of transcripts or of classes."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from gnomon.data.audio import HOP_SECONDS, SHORTEST_FRAMES, Clips, count_frames, read_sound
from gnomon.data.augmentation import SpecAugment
from gnomon.data.tokenizers import PADDING, UNKNOWN, character_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REMEMBERED_SECONDS = 3600.0
"""The features of up to so much speech are kept in memory, 115 MB, and not computed every epoch anew."""

IGNORED = -100


def build_ctc_tokenizer(texts: Sequence[str]) -> "PreTrainedTokenizerBase":
    """A token a character, and one for padding that is the blank of CTC as well; decoding joins repeats.

    Args:
        texts: The training transcripts, normalized.

    Raises:
        ValueError: There is no character in them.
    """
    from transformers import ParakeetTokenizer

    if not any(texts):
        raise ValueError("a tokenizer of characters is made from training transcripts, and there are none")
    return ParakeetTokenizer(
        tokenizer_object=character_tokenizer(texts),
        pad_token=PADDING,
        unk_token=UNKNOWN,
        clean_up_tokenization_spaces=False,
    )


def required_frames(labels: Sequence[int]) -> int:
    """How many frames CTC needs for its labels: one each, and a blank between two that are equal.

    Source: Connectionist Temporal Classification (Graves et al. 2006), section 3.1.

    >>> required_frames([1, 2, 3, 1, 2]), required_frames([1, 1, 1])
    (5, 5)
    """
    return len(labels) + sum(left == right for left, right in pairwise(labels))


class SpeechRows(Dataset[dict[str, torch.Tensor]]):
    """Speech as `input_features` (frames, mel bins), `attention_mask` (frames,) and `labels` (length,) or ().

    A clip that turns out to be damaged when it is used is replaced by the next good one, and listed.

    Args:
        clips: The sounds with their normalized transcripts.
        extractor: What `build_feature_extractor` made.
        labels: The token ids of each transcript, or each clip's class.
        augmentation: Changes the features anew every time, for training.
    """

    def __init__(
        self,
        clips: Clips,
        extractor: Any,
        labels: Sequence[Sequence[int] | int],
        augmentation: SpecAugment | None = None,
    ) -> None:
        self.clips, self.extractor, self.labels, self.augmentation = clips, extractor, labels, augmentation
        self._remembered: dict[int, torch.Tensor] | None = {} if clips.seconds <= REMEMBERED_SECONDS else None

    def __len__(self) -> int:
        return len(self.clips)

    @property
    def lengths(self) -> list[int]:
        """Every row's frames, roughly, without reading a sound."""
        return [int(header.seconds / HOP_SECONDS) for header in self.clips.headers]

    @property
    def texts(self) -> list[str]:
        """Every row's transcript or class."""
        return self.clips.texts

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """One row."""
        for step in range(len(self)):
            row = (index + step) % len(self)
            try:
                features = self.features(row)
            except ValueError as error:
                self.clips.left_out.add_late(self.clips.names[row], str(error))
                continue
            return {
                "input_features": features if self.augmentation is None else self.augmentation(features),
                "attention_mask": torch.ones(len(features), dtype=torch.long),
                "labels": torch.tensor(self.labels[row], dtype=torch.long),
            }
        raise ValueError(f"no sound can be read any more ({self.clips.left_out.describe(shown=1)})")

    def features(self, row: int) -> torch.Tensor:
        """A row's features (frames, mel bins), without augmentation.

        Raises:
            ValueError: The sound cannot be read, or is too short.
        """
        if self._remembered is not None and row in self._remembered:
            return self._remembered[row]
        rate = self.extractor.sampling_rate
        features = extract_features(read_sound(self.clips.sounds[row], rate), self.extractor)
        if self._remembered is not None:
            self._remembered[row] = features
        return features


def extract_features(samples: Any, extractor: Any) -> torch.Tensor:
    """The features of one sound (frames, mel bins), without the extractor's last, padded frame.

    Raises:
        ValueError: It is too short.
    """
    frames = count_frames(len(samples), extractor)
    if frames < SHORTEST_FRAMES:
        raise ValueError(f"it is shorter than {SHORTEST_FRAMES * HOP_SECONDS:g} s")
    batch = extractor([samples], sampling_rate=extractor.sampling_rate, return_tensors="pt")
    return batch["input_features"][0, :frames].float()


def mean_filterbank(samples: Any, extractor: Any) -> torch.Tensor:
    """The mean over time of a sound's logarithmic mel bins (mel bins,), less the mean of them all, its loudness.

    It is what normalization takes away from `extract_features`: how the voice and the microphone color every sound.
    """
    spectrum = torch.stft(
        torch.as_tensor(samples),
        extractor.n_fft,
        hop_length=extractor.hop_length,
        win_length=extractor.win_length,
        window=torch.hann_window(extractor.win_length, periodic=False),
        pad_mode="constant",
        return_complex=True,
    )
    mean = torch.log(extractor.mel_filters @ spectrum.abs().square() + 2**-24).mean(dim=1)
    return mean - mean.mean()


class SpeechCollator:
    """Rows to a batch, padded: features with 0, which the mask leaves out, and labels with -100.

    `input_features` (batch, frames, mel bins), `attention_mask` (batch, frames), `labels` (batch, length) or (batch,).
    """

    def __call__(self, rows: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """One batch."""
        padding = {"input_features": 0.0, "attention_mask": 0, "labels": IGNORED}
        return {
            key: torch.stack([row[key] for row in rows])
            if rows[0][key].dim() == 0
            else pad_sequence([row[key] for row in rows], batch_first=True, padding_value=value)
            for key, value in padding.items()
        }
