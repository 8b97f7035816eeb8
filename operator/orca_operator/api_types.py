"""Base class and scalar types of all models of the OrcaDeployment API."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
LABEL_VALUE = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

Quantity = Annotated[str, Field(pattern=QUANTITY)]
Text = Annotated[str, Field(min_length=1, max_length=512)]
Labels = dict[str, Annotated[str, Field(pattern=LABEL_VALUE, max_length=63)]]
"""Kubernetes labels; validation.py has the rule for their keys."""
Annotations = dict[str, str]


class Part(BaseModel):
    """A part of the API: camelCase on the wire; unknown fields are dropped, as the API server does."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class SecretKey(Part):
    """A key of a Secret in the same namespace."""

    name: Text = Field(description="Name of the Secret.")
    key: Text = Field("token", description="Key in the Secret.")
