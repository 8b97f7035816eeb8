"""Whether workers and pipelines have loaded the same weights: `common_facts` of one pipeline, `difference` of two.
`changes`: the same of an earlier and a later pipeline, for the model and for each adapter.

Each worker reports the identity of what it has loaded (`orca_worker/model_identity.py`). Workers of older versions
report none, and are not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    return next(_differences(first, second), ("", ""))[1]


def changes(before: pb.ModelFacts, after: pb.ModelFacts, adapters: Sequence[str]) -> dict[int, str]:
    """Return the `difference` for requests of the model (0), and of each of its `adapters` (from 1).

    The files of an adapter are only compared for its own requests, those of the model for all.
    """
    changed = dict.fromkeys(("", *adapters), "")
    for name, what in _differences(before, after):
        adapter = name.removeprefix("adapter ").rpartition(": ")[0]
        owner = adapter if adapter in changed else ""
        changed[owner] = changed[owner] or what
    return {number: changed[""] or what for number, what in enumerate(changed.values())}


def replaced(what: str) -> str:
    """Return why a request ends that has results of other weights; `what` is their `difference`."""
    return f"the weights of the model were replaced ({what}) while it answered: send the request again"


def _differences(first: pb.ModelFacts, second: pb.ModelFacts) -> Iterator[tuple[str, str]]:
    """Yield all differences, for people, each after the name of its file; that of the revisions comes after ""."""
    if first.source and second.source and first.source != second.source:
        yield "", f"fetched revisions {first.source} and {second.source}"
    for name in sorted(first.file_digest.keys() & second.file_digest.keys()):
        if first.file_digest[name] != second.file_digest[name]:
            yield name, f"{name} {first.file_digest[name]} and {second.file_digest[name]}"


def with_known(before: pb.ModelFacts, facts: pb.ModelFacts) -> pb.ModelFacts:
    """Return the identities in `facts`, and those in `before` that `facts` lacks."""
    digests = {**before.file_digest, **facts.file_digest}
    return pb.ModelFacts(source=facts.source or before.source, file_digest=digests)


def different_weights(first: str, second: str, what: str, worker: str) -> WorkerLostError:
    """Return the error for two parts of an engine that would compute other tokens from the same prompt."""
    message = (
        f"{first} and {second} have different weights or settings of the model ({what}): name a commit in "
        "spec.model.revision, or an image by its digest, or change spec.restart.id, after which new pods load the same"
    )
    return WorkerLostError(message, Reason.DIFFERENT_WEIGHTS, worker, outside=True)
