"""Coverage-guided fuzzing of the decoders in targets.py, with atheris.

    python tests/fuzz/fuzz.py [--seconds 60] [--target NAME …]

The seconds are shared out between the targets, which run one after the other in processes of their own. Exit code 1: an
input broke a target; the input is kept and its path printed. `python tests/fuzz/fuzz.py --target NAME --input FILE`
runs one input again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from targets import TARGETS, Target

SECONDS_OF_AN_INPUT = 10
MEGABYTES = 2048
EXIT_SECONDS = 300.0
"""Beyond its share, for a target's start and for an input that hangs."""
STATISTIC = re.compile(r"^stat::number_of_executed_units:\s*(\d+)$", re.MULTILINE)


def fuzz(target: Target, arguments: list[str]) -> None:
    """Run libFuzzer in this process; never return."""
    import atheris

    with atheris.instrument_imports(include=list(target.packages)):
        check = target.prepare()
    # libFuzzer's arguments, before its corpus
    atheris.Setup([sys.argv[0], *arguments], check)
    atheris.Fuzz()


def run(target: Target, seconds: int, kept: Path) -> bool:
    """Fuzz one target in its own process, print a line, and return True if there is no finding."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="orca-fuzz-", dir=memory if memory.is_dir() else None) as temporary:
        corpus = Path(temporary) / "corpus"
        corpus.mkdir()
        for number, seed in enumerate(target.seeds()):
            (corpus / str(number)).write_bytes(seed)
        command = [sys.executable, __file__, "--in-process", target.name]
        command += [f"-max_total_time={seconds}", f"-timeout={SECONDS_OF_AN_INPUT}", f"-rss_limit_mb={MEGABYTES}"]
        command += [f"-artifact_prefix={kept}/{target.name}-", "-print_final_stats=1", f"-max_len={target.max_length}"]
        try:
            done = subprocess.run(
                [*command, str(corpus)],
                env={**os.environ, "TMPDIR": temporary},
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=seconds + EXIT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            print(f"{target.name}: no end within {seconds + EXIT_SECONDS:.0f} s", flush=True)
            return False
    executed = STATISTIC.search(done.stderr)
    print(f"{target.name}: {executed[1] if executed else 'no'} inputs in {seconds} s", flush=True)
    if done.returncode:
        print("\n".join(done.stderr.splitlines()[-40:]))
    return done.returncode == 0


def main() -> int:
    """Fuzz all targets, or those that the command line names; return the exit code."""
    if sys.argv[1:2] == ["--in-process"]:
        fuzz(TARGETS[sys.argv[2]], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for all targets together (60)")
    parser.add_argument("--target", action="append", choices=TARGETS, help="repeatable (all)")
    parser.add_argument("--input", type=Path, help="run the one target on this file, without atheris")
    arguments = parser.parse_args()
    chosen = [TARGETS[name] for name in arguments.target or TARGETS]
    if arguments.input is not None:
        if len(chosen) != 1:
            parser.error("--input needs one --target")
        chosen[0].prepare()(arguments.input.read_bytes())
        return 0
    kept = Path(tempfile.mkdtemp(prefix="orca-fuzz-"))
    share = max(1, arguments.seconds // len(chosen))
    broken = [target.name for target in chosen if not run(target, share, kept)]
    if not broken:
        kept.rmdir()
        return 0
    inputs = ", ".join(map(str, sorted(kept.iterdir()))) or "none was kept"
    print(f"broken targets: {', '.join(broken)}; inputs that broke them: {inputs}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
