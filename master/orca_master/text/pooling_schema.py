"""The files of sentence-transformers that describe the pooling of embeddings (pooling_file.py)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Fields of older files, one for each mode."""


class Module(BaseModel):
    """A module's class, and the folder of its files."""

    type: str
    path: str = ""


class ModulesFile(BaseModel):
    """modules.json, whose list has the name `modules`."""

    modules: Annotated[list[Module], Field(max_length=64)]


class PoolingFile(BaseModel):
    """config.json of the pooling: `pooling_mode`, or a field of FLAGS."""

    model_config = ConfigDict(extra="allow")

    pooling_mode: str | list[str] | None = None

    @property
    def modes(self) -> list[str]:
        """The modes, whose vectors are concatenated."""
        if self.pooling_mode is not None:
            return [self.pooling_mode] if isinstance(self.pooling_mode, str) else self.pooling_mode
        given = self.model_extra or {}
        return [mode for flag, mode in FLAGS.items() if given.get(flag) is True] or ["mean"]
