#!/usr/bin/env python3
"""The training program in Python: the same model, options, batches and loss, with the attention of
the Python class written out. For comparing curves and speed; it keeps no checkpoints.

  train.py --init FOLDER/checkpoint.pt --csv python.csv [the program's options]

--init takes the weights of a checkpoint of the program; --weights writes those at the end, which
the program takes with its own --init.
"""

import argparse
import contextlib
import csv
import math
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

PREFIX = "model."  # of the weights' names in a checkpoint
STRETCHES = 40
VALIDATION_WINDOWS = 64
SEED_LIMIT = 2**31
LAST_RATE = 0.1  # of the learning rate, at the last step


class Attention(nn.Module):
    """Heads that share one small projection each; the scores are divided by the root of embed."""

    def __init__(self, embed, heads):
        super().__init__()
        self.heads, self.size = heads, embed // heads
        self.values = nn.Linear(self.size, self.size, bias=False)
        self.keys = nn.Linear(self.size, self.size, bias=False)
        self.queries = nn.Linear(self.size, self.size, bias=False)
        self.fc_out = nn.Linear(embed, embed)

    def forward(self, x, mask):
        batch, length, embed = x.shape
        pieces = x.reshape(batch, length, self.heads, self.size)
        values, keys, queries = self.values(pieces), self.keys(pieces), self.queries(pieces)
        scores = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
        scores = scores.masked_fill(mask == 0, -1e20)
        weights = torch.softmax(scores / embed**0.5, dim=3)
        mixed = torch.einsum("nhql,nlhd->nqhd", [weights, values])
        return self.fc_out(mixed.reshape(batch, length, embed))


class Block(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.dropout = options.dropout
        self.attention_norm = nn.LayerNorm(options.embed)
        self.attention = Attention(options.embed, options.heads)
        self.feed_forward_norm = nn.LayerNorm(options.embed)
        self.expand = nn.Linear(options.embed, 4 * options.embed)
        self.contract = nn.Linear(4 * options.embed, options.embed)

    def drop(self, x):
        return functional.dropout(x, self.dropout, self.training)

    def forward(self, x, mask):
        x = x + self.drop(self.attention(self.attention_norm(x), mask))
        hidden = functional.gelu(self.expand(self.feed_forward_norm(x)))
        return x + self.drop(self.contract(hidden))


class LanguageModel(nn.Module):
    def __init__(self, options, vocabulary):
        super().__init__()
        self.dropout = options.dropout
        self.token = nn.Embedding(vocabulary, options.embed)
        self.position = nn.Embedding(options.context, options.embed)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.embed)
        self.head = nn.Linear(options.embed, vocabulary)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, 0.0, 0.02)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.token(tokens) + self.position.weight[:length]
        x = functional.dropout(x, self.dropout, self.training)
        mask = torch.tril(torch.ones(length, length))
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class Text:
    """The bytes of a file as numbers; every tenth of forty stretches is for validation."""

    def __init__(self, path, context):
        content = Path(path).read_bytes()
        self.vocabulary = sorted(set(content))
        numbers = {byte: number for number, byte in enumerate(self.vocabulary)}
        self.tokens = torch.tensor([numbers[byte] for byte in content])
        training, validation = [], []
        for first in range(0, STRETCHES, 10):
            begin, middle, end = ((first + part) * len(content) // STRETCHES for part in (0, 9, 10))
            training += range(begin, middle - context)
            validation += range(middle, end - context, context)
        used = min(len(validation), VALIDATION_WINDOWS)
        self.training_starts = training
        self.validation_starts = [validation[index * len(validation) // used] for index in range(used)]


def windows(tokens, starts, context):
    """Inputs and targets of windows that begin there."""
    rows = torch.stack([tokens[start : start + context + 1] for start in starts])
    return rows[:, :-1], rows[:, 1:]


def learning_rate(options, step):
    """Of a step, from 0: a linear warm-up, then half a cosine down to a tenth."""
    if step < options.warmup:
        return options.learning_rate * (step + 1) / options.warmup
    done = (step - options.warmup) / max(1, options.steps - options.warmup)
    falling = 0.5 * (1.0 + math.cos(math.pi * done))
    return options.learning_rate * (LAST_RATE + (1.0 - LAST_RATE) * falling)


class Training:
    def __init__(self, options):
        self.options = options
        torch.manual_seed(options.seed)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.text = Text(options.text, options.context)
        self.model = LanguageModel(options, len(self.text.vocabulary))
        self.model.to(getattr(torch, options.dtype))
        if options.init:
            saved = torch.load(options.init)
            self.model.load_state_dict(
                {name.removeprefix(PREFIX): value for name, value in saved.items() if name.startswith(PREFIX)})
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=options.learning_rate, betas=(0.9, 0.99), weight_decay=options.weight_decay)

    def loss_of(self, inputs, targets):
        cast = torch.autocast("cpu", torch.bfloat16) if self.options.bf16 else contextlib.nullcontext()
        with cast:
            scores = self.model(inputs)
            return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())

    def step(self, number):
        options, text = self.options, self.text
        drawn = torch.randint(len(text.training_starts), (options.batch,), generator=self.generator)
        starts = [text.training_starts[window] for window in drawn.tolist()]
        torch.manual_seed(torch.randint(SEED_LIMIT, (1,), generator=self.generator).item())
        rate = learning_rate(options, number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        loss = self.loss_of(*windows(text.tokens, starts, options.context))
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), options.clip)
        self.optimizer.step()
        return loss.item(), rate

    @torch.no_grad()
    def validate(self):
        options, starts = self.options, self.text.validation_starts
        self.model.eval()
        total = 0.0
        for first in range(0, len(starts), options.batch):
            part = starts[first : first + options.batch]
            total += self.loss_of(*windows(self.text.tokens, part, options.context)).item() * len(part)
        self.model.train()
        return total / len(starts)

    def run(self, write):
        options, begin = self.options, time.perf_counter()
        for number in range(options.steps):
            start = time.perf_counter()
            loss, rate = self.step(number)
            speed = options.batch * options.context / (time.perf_counter() - start)
            last = number + 1 == options.steps
            checked = last or (number + 1) % options.validate_every == 0
            validation = self.validate() if checked else None
            write(number + 1, loss, validation, rate, speed, time.perf_counter() - begin)


def parse(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default="/usr/share/common-licenses/GPL-3")
    parser.add_argument("--init")
    parser.add_argument("--weights")
    parser.add_argument("--csv")
    for name, default in (("steps", 1300), ("batch", 16), ("context", 256), ("embed", 128), ("heads", 4),
                          ("layers", 4), ("warmup", 100), ("seed", 1), ("threads", 0), ("validate-every", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("learning-rate", 3e-3), ("dropout", 0.2), ("weight-decay", 0.1), ("clip", 1.0)):
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--bf16", action="store_true")
    return parser.parse_args(arguments)


def main():
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    training = Training(options)
    with contextlib.ExitStack() as stack:
        table = None
        if options.csv:
            table = csv.writer(stack.enter_context(open(options.csv, "w", newline="")), lineterminator="\n")
            table.writerow(("step", "loss", "validation_loss", "learning_rate", "tokens_per_second", "seconds"))

        def write(step, loss, validation, rate, speed, seconds):
            if table:
                checked = "" if validation is None else validation
                table.writerow((step, loss, checked, rate, f"{speed:.1f}", f"{seconds:.3f}"))
            if validation is not None:
                print(f"step {step}/{options.steps}: loss {loss:.4f}, validation {validation:.4f}, "
                      f"{speed:.0f} tokens/s, {seconds:.1f} s", flush=True)

        training.run(write)
    if options.weights:
        torch.save({PREFIX + name: value for name, value in training.model.state_dict().items()}, options.weights)
    return 0


if __name__ == "__main__":
    sys.exit(main())
