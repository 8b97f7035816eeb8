"""`constrained`: what limits the tokens of a submitted request, made from its grammar and its budget of reasoning."""

from __future__ import annotations

from dataclasses import replace

from orca_master.engine.messages import Submission
from orca_master.errors import RequestError
from orca_master.text.grammar_compiler import GrammarCompiler

BUDGET = "thinking_token_budget"


async def constrained(submission: Submission, grammars: GrammarCompiler, vocabulary_size: int) -> Submission:
    """Return the submission with its `constraint` and its `thinking`; raise what GrammarCompiler raises."""
    constraint = thinking = None
    if (budget := submission.thinking_budget) is not None:
        if max(budget.end, default=vocabulary_size) >= vocabulary_size:
            raise RequestError(f"{BUDGET}: the model has no token {max(budget.end, default=0)}", BUDGET)
        thinking = await grammars.tracker(budget, submission.generated)
    if submission.grammar is not None:
        constraint = await grammars.compile(submission.grammar, vocabulary_size, submission.generated)
        if not submission.generated:
            await grammars.check_begins(constraint, submission.sampling.allowed_token_ids, vocabulary_size)
    return replace(submission, constraint=constraint, thinking=thinking)
