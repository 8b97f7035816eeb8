"""Bodies of the routes that score pairs of texts, with vLLM's names; the rerank body is also Jina's and Cohere's."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag, model_validator

from orca_master.bodies.absent_fields import SCORE
from orca_master.bodies.embedding_requests import PoolingRequest
from orca_master.bodies.lengths import MAX_CHARACTERS
from orca_master.bodies.prompts import PromptText, Texts
from orca_master.bodies.sampling_fields import MAX_COUNT

SCORE_ROUTES = ("/v1/score", "/score")
RERANK_ROUTES = ("/v1/rerank", "/v2/rerank", "/rerank")


class PairsRequest(PoolingRequest):
    """Texts of two fields, which form pairs: one text with each, or the texts at the same places."""

    absent = SCORE
    sides: ClassVar[tuple[str, str]]
    """The two fields."""

    def texts(self, field: str) -> list[str]:
        """Return the texts of a field."""
        value: str | list[str] = getattr(self, field)
        return [value] if isinstance(value, str) else value

    @property
    def pairs(self) -> Iterator[tuple[str, str]]:
        """The pairs, in the order of the second field."""
        first, second = map(self.texts, self.sides)
        return zip(itertools.cycle(first), second, strict=False)

    @property
    def distinct(self) -> dict[str, str]:
        """Each text once, with the first field that has it."""
        texts: dict[str, str] = {}
        for field in self.sides:
            for text in self.texts(field):
                texts.setdefault(text, field)
        return texts

    @model_validator(mode="after")
    def _sides_agree(self) -> PairsRequest:
        first, second = map(self.texts, self.sides)
        name, other = self.sides
        if len(first) not in (1, len(second)):
            raise ValueError(
                f"{name}: {len(first)} texts, and {len(second)} of {other}: send one text, or as many as of {other}"
            )
        if (count := sum(map(len, (*first, *second)))) > MAX_CHARACTERS:
            raise ValueError(
                f"{other}: {count} characters together with {name}, at most {MAX_CHARACTERS} are allowed: "
                "send several requests"
            )
        return self


class ScoreTextsRequest(PairsRequest):
    """Body of POST /v1/score with vLLM's first names."""

    sides = ("text_1", "text_2")
    text_1: Texts
    text_2: Texts


class ScoreDocumentsRequest(PairsRequest):
    """Body of POST /v1/score with the names of a search."""

    sides = ("queries", "documents")
    queries: Texts
    documents: Texts


class ScoreItemsRequest(PairsRequest):
    """Body of POST /v1/score with SGLang's name of documents."""

    sides = ("queries", "items")
    queries: Texts
    items: Texts


SCORE_TAGS = ("[with texts]", "[with documents]", "[with items]")
"""Tags of the bodies of /v1/score."""


def _kind_of_score(value: Any) -> str:
    values = value if isinstance(value, dict) else vars(value) if isinstance(value, PairsRequest) else {}
    given = {name for name in ("queries", "documents", "items") if values.get(name) is not None}
    return SCORE_TAGS[2 if "items" in given else 1 if given else 0]


ScoreRequest = Annotated[
    Annotated[ScoreTextsRequest, Tag(SCORE_TAGS[0])]
    | Annotated[ScoreDocumentsRequest, Tag(SCORE_TAGS[1])]
    | Annotated[ScoreItemsRequest, Tag(SCORE_TAGS[2])],
    Discriminator(_kind_of_score),
]
"""Body of POST /v1/score."""


class RerankRequest(PairsRequest):
    """Body of POST /v1/rerank."""

    sides = ("query", "documents")
    query: PromptText
    documents: Texts
    top_n: Annotated[int, Field(ge=0, le=MAX_COUNT)] = 0
    return_documents: bool = True
