"""A model with a token for every byte, for which the vocabulary of the other checkpoints has no room."""

from __future__ import annotations

from pathlib import Path

from support.checkpoints import CHAT_TEMPLATE, llama_like, randomise
from support.grammars import byte_tokenizer
from support.once import once


def every_byte_model(run_folder: Path) -> Path:
    """Return the folder of the model, which the first caller of a test run writes."""

    def make(folder: Path) -> None:
        randomise(llama_like("llama", 4, 64, tied=False, vocab_size=260, num_hidden_layers=2), 3).save_pretrained(
            folder
        )
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)

    return once(run_folder / "checkpoints" / "every-byte", make)
