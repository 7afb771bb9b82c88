"""How well a causal language model predicts a text: nats per token, perplexity, bits per byte."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import batched
from typing import Any, Protocol
