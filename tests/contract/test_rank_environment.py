"""Which variables a topology may set in rank processes: settings of libraries, no names of files or of code."""

from __future__ import annotations

import pytest
from orca_contract.rank_environment import MAX_VALUE_LENGTH, is_allowed, refusal

USEFUL = [
    *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_P2P_DISABLE"),
    *("NCCL_NET_GDR_LEVEL", "NCCL_ALGO", "NCCL_P2P_DIRECT_DISABLE", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    *("GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"),
    *("KMP_AFFINITY", "MKL_NUM_THREADS", "MKL_CBWR", "NCCL_IB_PKEY", "NCCL_IB_ADDR_FAMILY"),
    *("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_LOG_CPP_STACK_ON_UNCLEAN_SHUTDOWN"),
]
LISTENS = ["NCCL_RAS_ADDR", "NCCL_COMM_ID"]
LOADS_CODE = [
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "PYTHONPATH", "PYTHONWARNINGS", "PYTHONSTARTUP", "BROWSER", "PATH"),
    *("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN", "NCCL_GIN_PLUGIN"),
    *(
        "OMP_TOOL_LIBRARIES",
        "OMP_TOOL",
        "UCX_MODULE_DIR",
        "UCX_LOG_FILE",
        "CXX",
        "TMPDIR",
        "HOME",
        "ORCA_MEMORY_REQUEST",
    ),
]
TOUCHES_FILES = [
    *("NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_CONF_FILE", "NCCL_TOPO_FILE"),
    *("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "NCCL_INSPECTOR_DUMP_DIR"),
    *(
        "NCCL_TUNER_CONFIG_FILE",
        "KMP_STATS_FILE",
        "KMP_CPUINFO_FILE",
        "MKL_VERBOSE_OUTPUT_FILE",
        "OMP_TOOL_VERBOSE_INIT",
        "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY",
        "NCCL_IB_PKEY_FILE",
    ),
]
NOT_NAMES = [
    "",
    "A",
    "NCCL",
    "NCCL_",
    "nccl_debug",
    "NCCL_DEBUG\n",
    "NCCL_DEBUG=1",
    "X_NCCL_DEBUG",
    "NCCL_Ä",
    "NCCL_A B",
    "NCCL_IB_PKEY\n",
]


@pytest.mark.parametrize("name", USEFUL)
def test_settings_of_libraries_are_taken(name):
    assert is_allowed(name)
    assert refusal({name: "1"}) == ""


@pytest.mark.parametrize("name", [*LOADS_CODE, *TOUCHES_FILES, *LISTENS, *NOT_NAMES])
def test_everything_else_is_refused_by_name(name):
    assert not is_allowed(name)
    assert refusal({"NCCL_DEBUG": "INFO", name: "1"}).startswith(f"{name!r} is refused")


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"NCCL_DEBUG": "a\0b"}, "NCCL_DEBUG: the value"),
        ({"NCCL_DEBUG": "x" * (MAX_VALUE_LENGTH + 1)}, "NCCL_DEBUG: the value"),
        ({f"NCCL_{number}": "" for number in range(65)}, "65 variables"),
    ],
)
def test_values_and_their_number_are_bounded(environment, words):
    assert refusal(environment).startswith(words)
