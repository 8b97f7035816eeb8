"""Whether workers and pipelines have loaded the same weights: `common_facts` of one pipeline, `difference` of two.

Each worker reports the identity of what it has loaded (`orca_worker/model_identity.py`). Workers of older versions
report none, and are not compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from orca_contract.reasons import Reason
from orca_protos import engine_pb2 as pb

from orca_master.engine.faults import WorkerLostError


def common_facts(workers: Sequence[str], facts: Sequence[pb.ModelFacts]) -> pb.ModelFacts:
    """Return the facts of a pipeline with workers at these addresses: those of the first, and the files of all.

    Raises WorkerLostError if two of them have different weights.
    """
    common = pb.ModelFacts()
    common.CopyFrom(facts[0])
    for partition, each in enumerate(facts):
        if difference(common, each):
            other = next(place for place in range(partition) if difference(facts[place], each))
            raise different_weights(
                f"partition {other} (worker {workers[other]})",
                f"partition {partition} (worker {workers[partition]})",
                difference(facts[other], each),
                workers[partition],
            )
        common.source = common.source or each.source
        common.file_digest.update(each.file_digest)
    return common


def difference(first: pb.ModelFacts, second: pb.ModelFacts) -> str:
    """Return which weights or settings of two workers or pipelines differ, as far as both report them; "" if none."""
    if first.source and second.source and first.source != second.source:
        return f"fetched revisions {first.source} and {second.source}"
    for name in sorted(first.file_digest.keys() & second.file_digest.keys()):
        if first.file_digest[name] != second.file_digest[name]:
            return f"{name} {first.file_digest[name]} and {second.file_digest[name]}"
    return ""


def different_weights(first: str, second: str, what: str, worker: str) -> WorkerLostError:
    """Return the error for two parts of an engine that would compute other tokens from the same prompt."""
    message = (
        f"{first} and {second} have different weights or settings of the model ({what}): name a commit in "
        "spec.model.revision, or an image by its digest, or change spec.restart.id, after which new pods load the same"
    )
    return WorkerLostError(message, Reason.DIFFERENT_WEIGHTS, worker, outside=True)
