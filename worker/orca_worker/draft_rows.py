"""`DraftRows`: what the draft model knows of each row: its tokens, and how many of them the model has computed. Pure.

A row is computed only when tokens are drafted for it, and then all tokens that it is behind: a prompt whose answer gets
no drafts costs the draft model nothing. Keys and values of a draft are kept as far as the draft was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from orca_protos import engine_pb2 as pb
from orca_protos.wire import PENDING_TOKEN


@dataclass(slots=True)
class _Row:
    tokens: list[int]
    """All known tokens, with the last sampled one."""
    num_computed: int = 0
    """Slots with the keys and values of these tokens, or of drafted tokens behind them."""


@dataclass(slots=True)
class Draft:
    """The draft of one row in the making. `index`: see DraftedTokens in protos/engine.proto."""

    index: int
    row: int
    num_tokens: int
    position: int
    """Of the first drafted token."""
    tokens: list[int]


class DraftRows:
    """The rows of one epoch. `longest`: tokens of a sequence that the draft model can compute."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rows: dict[int, _Row] = {}

    def note(self, iteration: pb.Iteration, sampled: Sequence[int]) -> None:
        """Add the input tokens of an iteration and its sampled tokens, without those behind a rejected draft."""
        for admission in iteration.admission:
            self._rows[admission.row] = _Row(list(admission.computed_token))
        samples, start, previous, is_valid = iter(sampled), 0, -1, True
        noted = set[int]()
        for row, count, context, has_sample in zip(
            iteration.row, iteration.num_tokens, iteration.context_length, iteration.sample, strict=True
        ):
            state, inputs = self._rows[row], iteration.token[start : start + count]
            start += count
            if row == previous:  # a drafted token, valid if it is the token that was sampled in its place
                is_valid = is_valid and state.tokens[context] == inputs[0]
            else:
                is_valid = True
                if inputs[0] != PENDING_TOKEN:
                    state.tokens[context:] = inputs
            if has_sample:
                token = next(samples)
                if is_valid:
                    state.tokens.append(token)
            previous = row
            noted.add(row)
        for row in noted:  # not between the entries of a row: later ones may confirm a draft
            self._rows[row].num_computed = min(self._rows[row].num_computed, len(self._rows[row].tokens) - 1)

    def catch_up(self, iteration: pb.Iteration, most_tokens: int) -> tuple[pb.Iteration, list[Draft]]:
        """Return the first iteration of the draft model after `iteration`, and the drafts that it begins.

        It computes what the rows that want drafts are behind, at most `most_tokens` tokens: rows of which a part
        remains get no draft. Empty if there is nothing to compute.
        """
        first, drafts = pb.Iteration(), list[Draft]()
        for index, (row, wanted) in enumerate(zip(iteration.row, iteration.num_drafts, strict=False)):
            state = self._rows[row]
            length = len(state.tokens)
            count = min(wanted, self._longest - length + 1)
            num_tokens = min(length - state.num_computed, most_tokens - len(first.token))
            if count < 1 <= wanted:
                drafts.append(Draft(index, row, 0, length, []))
            if count < 1 or num_tokens < 1:
                continue
            begin = state.num_computed
            state.num_computed += num_tokens
            is_whole = state.num_computed == length
            _add(first, row, begin, state.tokens[begin : begin + num_tokens], is_whole)
            if is_whole:
                drafts.append(Draft(index, row, count, length, []))
        return first, drafts

    def advance(self, drafts: Iterable[Draft], sampled: Sequence[int]) -> tuple[pb.Iteration, list[Draft]]:
        """Add a token to each draft; return the next iteration of the draft model, and the drafts that it goes on with.

        Empty if all drafts are complete.
        """
        following, incomplete = pb.Iteration(), list[Draft]()
        for draft, token in zip((draft for draft in drafts if draft.num_tokens), sampled, strict=True):
            draft.tokens.append(token)
            if len(draft.tokens) < draft.num_tokens:
                _add(following, draft.row, draft.position + len(draft.tokens) - 1, [token], samples=True)
                self._rows[draft.row].num_computed += 1
                incomplete.append(draft)
        return following, incomplete


def _add(iteration: pb.Iteration, row: int, context: int, tokens: Sequence[int], samples: bool) -> None:
    """Add an entry for tokens of a row from the position `context` on."""
    iteration.row.append(row)
    iteration.num_tokens.append(len(tokens))
    iteration.context_length.append(context)
    iteration.token.extend(tokens)
    iteration.num_new_blocks.append(0)
    iteration.sample.append(samples)
