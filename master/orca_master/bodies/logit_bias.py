"""`LogitBias`: the field `logit_bias` of request bodies, refused at its first invalid entry."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from orca_master.bodies.lengths import at_most

MAX_BIASES = 4096
"""Maximum entries: one message to the workers contains the entries of all choices of a batch."""
BiasToken = Annotated[str, Field(pattern=r"^[0-9]{1,10}$")]
BiasValue = Annotated[float, Field(ge=-100, le=100)]
_BIAS: TypeAdapter[tuple[str, float]] = TypeAdapter(tuple[BiasToken, BiasValue])


def _first_wrong(biases: Any) -> Any:
    """Return a valid mapping unchanged, else a mapping of the first invalid entry, which the error names."""
    for entry in biases.items() if isinstance(biases, dict) else ():
        try:
            _BIAS.validate_python(entry)
        except ValidationError:
            return dict([entry])
    return biases


LogitBias = Annotated[
    dict[BiasToken, BiasValue], Field(max_length=MAX_BIASES), BeforeValidator(_first_wrong), at_most(MAX_BIASES)
]
