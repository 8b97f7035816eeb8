"""The reasoning before an answer, as rules of a grammar in llguidance's dialect of Lark.

The parser of reasoning.py finds the reasoning exactly where these rules have it. llguidance takes added tokens like
`<think>` for special tokens, which no text contains. So a marker is a text and, if the tokenizer has it, also a token.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from orca_master.text.reasoning import BEGIN, BY_TAG, END

TokenOf = Callable[[str], int | None]
"""Returns the special token of a text, None if there is none."""
TERMINALS = r"""
SPACE: /[ \t\r\n]{1,32}/
MARGIN: /[ \t\r\n]*/
ANY: /(?s:.*)/
"""


def up_to(rule: str, text: str, marker: str, token_of: TokenOf) -> list[str]:
    """Return the rules of a marker after a text; the terminal `text` contains no marker."""
    terminal, token = rule.upper(), token_of(marker)
    by_token = "" if token is None else f" | {text} <[{token}]>"
    return [f"{rule}: {terminal}{by_token}", f"{terminal}: {text} {json.dumps(marker)}"]


def reasoning_rules(form: str, token_of: TokenOf) -> list[str]:
    """Return `think`, the beginning, `reasoning`, the rest with its end, and THOUGHTS, the rest without its end.

    `form`: the format of the reasoning (reasoning.py). The rules need TERMINALS.
    """
    token = token_of(BEGIN)
    # An answer that begins within the reasoning can repeat the beginning, which as a text is one of THOUGHTS.
    text = "MARGIN_AND_THINK" if form == BY_TAG else '""'
    return [
        f"think: {text}" + ("" if token is None else f" | SPACE? <[{token}]>"),
        f'MARGIN_AND_THINK: MARGIN "{BEGIN}"',
        f'THOUGHTS: ANY & ~(ANY "{END}" ANY)',
        *up_to("reasoning", "THOUGHTS", END, token_of),
    ]


def after_reasoning(grammar: str, form: str, token_of: TokenOf) -> str:
    """Return a grammar in llguidance's form with the reasoning before it, which the format BY_TAG may omit."""
    optional = "?" if form == BY_TAG else ""
    start = f"start: (think reasoning SPACE?){optional} @answer"
    lark = "\n".join((TERMINALS, *reasoning_rules(form, token_of), start))
    (answer,) = json.loads(grammar)["grammars"]
    return json.dumps({"grammars": [{"lark_grammar": lark}, {**answer, "name": "answer"}]})
