"""`EngineConfig`: the options of the engine master, without the topology."""

from __future__ import annotations

import enum
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orca_contract.model_choices import AllReduce, AttentionBackend

from orca_master.scheduling.kv_ledger import LEDGERS, KvLedger
from orca_master.scheduling.policies import POLICIES
from orca_master.scheduling.prefix_cache import PrefixCache
from orca_master.scheduling.request_pool import RequestPool
from orca_master.scheduling.scheduler_config import SchedulerConfig

if TYPE_CHECKING:  # API processes import this module and must not load gRPC
    from orca_contract.topology import Topology
    from orca_protos.tls import TlsFolder


class WorkerOwner(enum.Enum):
    """The owner of the worker processes, which starts and restarts them."""

    ENGINE = "engine"
    """The engine's process starts the workers and never restarts them; they end with the engine."""
    PARENT = "parent"
    """The parent process of `orca serve` restarts the workers: pipelines that have served recover, all others end the
    engine, unless it was restarted. The workers end after the engine."""
    CLUSTER = "cluster"
    """A supervisor such as a kubelet restarts the workers: lost pipelines recover, workers outlive the engine."""


LONGEST_SECONDS = 300.0
"""Maximum of an automatic stall timeout. Ranks wait so long for each other."""
GRACE_SECONDS = 10.0
"""From the end of a master's drain to its kill on a cluster (GRACE_BEYOND_DRAIN of the operator)."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Options of the engine master, with the defaults of the command line (options.py). Times in seconds.

    Other than there, `target_itl` is None also with one partition: programs that generate offline need none.

    `token_budget` None: no limit; `target_itl`: target of the time between the tokens of an answer, by which
    prompts are cut (prompt_budget.py), None: no target; `balanced`: batches of few requests are split, and prompts are
    cut, so that no stage waits for another; `kv_slots` None: sized from free memory. `admission`: a key
    of kv_ledger.LEDGERS; `scheduling_policy`: a key of policies.POLICIES. `recovery_timeout`: maximum wait of
    requests, without progress, while no pipeline serves, if `worker_owner` is not ENGINE. `stall_timeout`: bound of
    an iteration, None: automatic (iteration_watch.py). `max_recovery_wait`: longest expected wait for which new
    requests are accepted meanwhile (recovery.py). `max_expected_wait`: longest expected wait in the queue for which
    new requests are accepted (admission.py). `drain_timeout`: maximum wait for running requests at the end.
    `lookahead`: one more iteration than partitions is in flight (lookahead.py; SchedulerConfig.keeps_spare_iteration);
    `prefix_caching`: see prefix_cache.py; `speculative_tokens`: most drafted tokens of a request in an iteration, 0 for
    none (speculation.py); `enforce_eager`: no CUDA graphs;
    `attention_backend`: who computes the attention of GPUs; `all_reduce`: sum over the ranks of a worker on GPUs;
    `deterministic`: exactness level L2 or no start (docs/contracts.md, section 7); `iteration_log`: see
    iteration_log.py; `traces_endpoint`: collector of traces, None for none (request_traces.py). `tls`: certificates for
    calls to workers on TCP, None for plain text. `restarted`: the engine takes the place of a killed one and uses its
    workers. The first pipeline that serves completes the start, and a pipeline that cannot be formed counts as lost.
    `runtime_adapters`: folder on the workers below which adapters may be loaded while the engine runs, None: none is
    (runtime_adapters.py). `master_id`: by which workers know this master
    from others (earlier_master.py).
    """

    max_batch_size: int = 32
    token_budget: int | None = 2048
    target_itl: float | None = None
    balanced: bool = True
    lookahead: bool = True
    prefix_caching: bool = True
    speculative_tokens: int = 0
    enforce_eager: bool = False
    attention_backend: AttentionBackend = "auto"
    all_reduce: AllReduce = "library"
    deterministic: bool = False
    admission: str = "reserve"
    scheduling_policy: str = "fcfs"
    kv_slots: int | None = None
    memory_utilization: float = 0.9
    max_queued_requests: int = 4096
    max_queued_tokens: int = 8 << 20
    max_expected_wait: float = 60.0
    connect_timeout: float = 60.0
    stall_timeout: float | None = None
    worker_owner: WorkerOwner = WorkerOwner.ENGINE
    recovery_timeout: float = 0.0
    max_recovery_wait: float = 60.0
    drain_timeout: float = 30.0
    iteration_log: Path | None = None
    traces_endpoint: str | None = None
    tls: TlsFolder | None = None
    restarted: bool = False
    runtime_adapters: Path | None = None
    master_id: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False)

    @property
    def handover_timeout(self) -> float:
        """Longest wait for the end of an earlier master, which drains as long as this one would."""
        return self.drain_timeout + GRACE_SECONDS

    @property
    def longest_seconds(self) -> float:
        """Bound of any iteration: the stall timeout, or LONGEST_SECONDS if it is automatic."""
        return LONGEST_SECONDS if self.stall_timeout is None else self.stall_timeout

    @property
    def rank_timeout(self) -> float:
        """How long the ranks of a formation wait for each other.

        At least LONGEST_SECONDS, so that the stall timeout can become longer or automatic during the formation.
        """
        return max(LONGEST_SECONDS, self.longest_seconds)

    @property
    def fixed_stall_timeout(self) -> float | None:
        """The stall timeout; None: automatic. Where nobody restarts workers a false alarm would be final."""
        return self.longest_seconds if self.worker_owner is WorkerOwner.ENGINE else self.stall_timeout

    def new_pool(self) -> RequestPool:
        """Return an empty queue."""
        return RequestPool(self.max_queued_requests, self.max_queued_tokens, POLICIES[self.scheduling_policy])

    def new_ledger(self, num_blocks: int) -> KvLedger:
        """Return the ledger of a pipeline that begins to serve."""
        return LEDGERS[self.admission](num_blocks, PrefixCache() if self.prefix_caching else None)

    def for_scheduler(self, topology: Topology) -> SchedulerConfig:
        """Return the options of the scheduler of pipelines of this topology."""
        return SchedulerConfig(
            self.max_batch_size,
            topology.pipeline_parallel_size,
            self.token_budget,
            self.balanced,
            self.speculative_tokens,
            has_draft_model=topology.model.draft_path is not None,
            # Under `priority`, requests that pause for more urgent ones would run in it.
            keeps_spare_iteration=self.lookahead
            and topology.pipeline_parallel_size > 1
            and self.scheduling_policy == "fcfs",
            looks_ahead=self.lookahead and topology.pipeline_parallel_size == 1,
        )
