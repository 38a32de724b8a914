"""Python's own documentation: which topic, and is it one of the four at all?

A small DistilBERT (Hugging Face transformers, random weights) learns to tell by a few sentences of
the standard library's docstrings whether they are about networks, files, concurrency or testing.
Then come sentences about graphics, lines of source code, German, and a cat on the keyboard.
Nothing is downloaded: the texts are read from the files of the Python that runs this.

    pip install 'tulip-ood[hf,figures]'
    python examples/text.py
"""

import random
import textwrap
import warnings
from pathlib import Path
from typing import Any

import torch
from common import Numbers, judged, main
from docstrings import TOPICS, passages, unfamiliar
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import DistilBertConfig, DistilBertForSequenceClassification
from transformers import PreTrainedTokenizerFast as FastTokenizer

import tulip_ood as tulip
from tulip_ood.figures.canvas import COLOURS, canvas

LENGTH = 48  # tokens


def make_tokenizer(texts: list[str]) -> FastTokenizer:
    """Byte pairs, learned from the training sentences."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=["[PAD]"], initial_alphabet=letters, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return FastTokenizer(tokenizer_object=tokenizer, pad_token="[PAD]")


def train(
    batch: Any, y: Tensor, vocabulary: int, epochs: int
) -> DistilBertForSequenceClassification:
    """Two layers of width 64, AdamW, one cycle."""
    config = DistilBertConfig(
        vocab_size=vocabulary,
        max_position_embeddings=LENGTH,
        pad_token_id=0,
        n_layers=2,
        n_heads=4,
        dim=64,
        hidden_dim=128,
        num_labels=len(TOPICS),
    )
    model = DistilBertForSequenceClassification(config)
    optimiser = torch.optim.AdamW(model.parameters())
    steps = epochs * (len(y) // 64 + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(64):
            optimiser.zero_grad()
            model(**{k: v[rows] for k, v in batch.items()}, labels=y[rows]).loss.backward()
            optimiser.step()
            schedule.step()
    return model.eval()


def run(seed: int, quick: bool) -> tuple[Numbers, Any]:
    """Train, compare detectors, and look at one sentence of each kind."""
    torch.manual_seed(seed)
    draw = random.Random(seed)
    known = [(t, i) for i, modules in enumerate(TOPICS.values()) for t in passages(modules)]
    draw.shuffle(known)
    known = known[:600] if quick else known
    texts, y = [text for text, _ in known], torch.tensor([topic for _, topic in known])
    n, m = 6 * len(texts) // 10, 8 * len(texts) // 10  # training, validation, test
    tokenizer = make_tokenizer(texts[:n])

    def encode(texts: list[str]) -> Any:
        """A mapping with input_ids and attention_mask, as the model takes it."""
        form = {"padding": "max_length", "truncation": True, "max_length": LENGTH}
        return tokenizer(texts, **form, return_tensors="pt", return_token_type_ids=False)

    model = train(encode(texts[:n]), y[:n], len(tokenizer), epochs=1 if quick else 10)
    odd = {name: draw.sample(s, 50 if quick else 250) for name, s in unfamiliar(draw).items()}
    found = tulip.compare(
        model,
        id_val=[{**encode(texts[n:m]), "labels": y[n:m]}],
        id_test=[{**encode(texts[m:]), "labels": y[m:]}],
        ood={name: [encode(given)] for name, given in odd.items()},
        methods=["msp", "ent", "tulip"]
        if quick
        else ["msp", "ent", "knn", "mds", "noise", "tulip"],
        settings={"tulip": {"epsilon": 0.01}} if quick else None,
        seed=seed,
    )
    detector, mine = found.detectors["tulip"], found.val.methods["tulip"]
    scores = {"the four topics": mine.id_scores}
    scores |= {name: part.scores for name, part in mine.sets.items()}
    shown = {}
    for name, given in {"the four topics": texts[m:], **odd}.items():
        # Not a chosen example: the one in the middle.
        one = given[int((scores[name] - scores[name].median()).abs().argmin())]
        shown[name] = one, detector.predict(encode([one])), scores[name]
    numbers = {"accuracy": found.val.methods["ent"].accuracy, "methods": judged(found.val)}
    return numbers, (shown, detector.threshold.value)


def draw(picture: Any, path: Path) -> None:
    """One row for each kind of text: an example, the network's answer, all scores."""
    shown, threshold = picture
    topics, most = list(TOPICS), max(float(scores.max()) for _, _, scores in shown.values())
    with canvas(12.0, 8.6) as figure:
        rows = figure.subplots(len(shown), 2, width_ratios=(1.0, 1.15))
        for (left, right), (name, (text, answer, scores)) in zip(rows, shown.items(), strict=True):
            quote = textwrap.wrap(f"“{text}”", 52, max_lines=3, placeholder=" …”")
            guess = f"{topics[int(answer.label[0])]}, {float(answer.probs[0].max()):.0%}"
            left.text(0, 1, name, weight="bold", fontsize=14, va="top")
            left.text(0, 0.76, "\n".join(quote), va="top", style="italic")
            left.text(0, 0.0, f"answer: {guess}", va="bottom", color=COLOURS["blue"])
            left.axis("off")
            bins = torch.arange(0, most + threshold / 32, threshold / 32).tolist()
            refused = scores > threshold
            for part, colour in ((~refused, "blue"), (refused, "vermilion")):
                right.hist(scores[part].tolist(), bins, color=COLOURS[colour])
            right.axvline(threshold, color=COLOURS["ink"], lw=1.5)
            share = f"{float(refused.float().mean()):.0%} refused"
            right.set_title(share, loc="right", color=COLOURS["vermilion"])
            right.set(xlim=(0, 1.02 * most), yticks=[])
            right.spines["left"].set_visible(False)
            right.tick_params(labelbottom=name == list(shown)[-1])
        rows[0, 1].text(threshold - 0.01, 0.2 * rows[0, 1].get_ylim()[1], "threshold", ha="right")
        rows[-1, 1].set_xlabel("TULiP's score: high = unsure")
        figure.savefig(path, format="png")


if __name__ == "__main__":
    warnings.simplefilter("ignore", tulip.TulipWarning)  # findings stand in detector.report()
    main("text", run, draw)
