"""Trains the demo model: a 4.3 M parameter Llama on the text that a Python installation carries.

Order of events: collect documents (docstrings of the standard library, the language reference in
`pydoc_data.topics`, the licence text) → train a byte-level BPE tokenizer on them → train the model
in bfloat16 autocast on the CPU → report the loss on held-out documents → write a Hugging Face
directory (config.json, model.safetensors in bfloat16, tokenizer files, training.json).

Every docstring is seen in two forms: as plain text behind its qualified name, and as the answer to a
question about that name, so that the checkpoint serves completions and chat alike.

    python examples/train_demo_model.py --output examples/demo-model --steps 2200
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import platform
import pydoc_data.topics
import random
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END, USER, ASSISTANT = "<|end|>", "<|user|>", "<|assistant|>"
QUESTIONS = ("What does {} do?", "Explain {}.", "What is {}?", "Describe {}.", "Tell me about {}.")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}"
    "{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
SKIPPED_FOLDERS = {"site-packages", "__pycache__", "test", "tests", "idlelib", "lib2to3", "ensurepip"}
CONTEXT = 512
VOCABULARY = 4096


@dataclass(frozen=True, slots=True)
class Document:
    """One text and, where it explains something, the name of what it explains."""

    name: str | None
    text: str


def docstrings(root: Path) -> Iterator[Document]:
    """Yield the docstrings of every module, class and function below `root`."""
    for path in sorted(root.rglob("*.py")):
        module_path = path.relative_to(root).with_suffix("")
        if SKIPPED_FOLDERS.intersection(module_path.parts):
            continue
        module = ".".join(part for part in module_path.parts if part != "__init__")
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        yield from _walk(tree, module)


def _walk(node: ast.AST, name: str) -> Iterator[Document]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text and len(text) > 20:
            yield Document(name, text)
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _walk(child, f"{name}.{child.name}")


def collect() -> list[Document]:
    """Return every document in a fixed order, without repeats."""
    documents = list(docstrings(Path(sysconfig.get_paths()["stdlib"])))
    documents += [
        Document(f"the topic {topic}", text.strip()) for topic, text in sorted(pydoc_data.topics.topics.items())
    ]
    licence = Path(sysconfig.get_paths()["stdlib"]) / "LICENSE.txt"
    if licence.is_file():
        documents.append(Document(None, licence.read_text(encoding="utf-8")))
    return list(dict.fromkeys(documents))


def train_tokenizer(documents: list[Document]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of VOCABULARY entries."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator((f"{d.name or ''}\n\n{d.text}" for d in documents), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )


def encode(documents: list[Document], tokenizer: PreTrainedTokenizerFast, shuffler: random.Random) -> torch.Tensor:
    """Return all documents, in both forms and shuffled, as one stream of token ids `[tokens]`."""
    texts = []
    for document in documents:
        if document.name is None:
            texts.append(f"{document.text}{END}")
            continue
        question = shuffler.choice(QUESTIONS).format(document.name)
        texts.append(f"{document.name}\n\n{document.text}{END}")
        texts.append(f"{USER}{question}{ASSISTANT}{document.text}{END}")
    shuffler.shuffle(texts)
    return torch.tensor([token for ids in tokenizer(texts)["input_ids"] for token in ids], dtype=torch.long)


def held_out_loss(model: LlamaForCausalLM, stream: torch.Tensor) -> float:
    """Mean cross-entropy in nats per token over consecutive windows of `stream`."""
    windows = stream[: len(stream) // CONTEXT * CONTEXT].view(-1, CONTEXT)[:64]
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        losses = [model(input_ids=part, labels=part).loss.item() for part in windows.split(8)]
    model.train()
    return sum(losses) / len(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--batch-size", type=int, default=8, help=f"windows of {CONTEXT} tokens per step")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    shuffler = random.Random(arguments.seed)

    documents = collect()
    shuffler.shuffle(documents)
    held_out, training = documents[: len(documents) // 50], documents[len(documents) // 50 :]
    tokenizer = train_tokenizer(training)
    stream, held_out_stream = (encode(part, tokenizer, shuffler) for part in (training, held_out))
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=256,
            intermediate_size=640,
            num_hidden_layers=5,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{len(documents)} documents, {len(stream)} training tokens, {parameters} parameters", flush=True)

    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    warmup = max(1, arguments.steps // 30)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warmup) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / arguments.steps))),
    )
    started = time.monotonic()
    loss = torch.zeros(())
    for step in range(arguments.steps):
        starts = torch.randint(len(stream) - CONTEXT, (arguments.batch_size,))
        batch = torch.stack([stream[start : start + CONTEXT] for start in starts.tolist()])
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0:
            print(f"step {step} loss {loss.item():.3f} {time.monotonic() - started:.0f} s", flush=True)

    report = {
        "documents": len(documents),
        "training_tokens": len(stream),
        "parameters": parameters,
        "steps": arguments.steps,
        "tokens_per_step": arguments.batch_size * CONTEXT,
        "final_training_loss": round(loss.item(), 3),
        "held_out_loss": round(held_out_loss(model, held_out_stream), 3),
        "seconds": round(time.monotonic() - started),
        "python": platform.python_version(),
        "seed": arguments.seed,
    }
    model.to(torch.bfloat16).save_pretrained(arguments.output)
    tokenizer.save_pretrained(arguments.output)
    (arguments.output / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
