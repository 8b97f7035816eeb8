"""Options shared by `orca bench serve` and `orca simulate`, and the requests that they select."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from orca_bench.traces import TracedRequest, recorded, synthetic

SYNTHETIC = ("paper", "homogeneous")
LENGTHS = ("input_len", "output_len")
"""Options without effect on a trace that is not homogeneous."""
IGNORED_WITH_ARRIVALS = ("request_rate", "burstiness")
"""Options without effect on a trace that contains arrivals."""


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the trace."""
    parser.add_argument(
        "--trace", default="paper", help="paper, homogeneous, or a .json or .csv file of requests (paper)"
    )
    parser.add_argument("--num-requests", type=positive, default=100, help="requests per run (100)")
    parser.add_argument(
        "--burstiness",
        type=rate,
        default=1.0,
        help="gamma shape of arrival gaps: 1 is Poisson, less is burstier (1)",
    )
    parser.add_argument("--input-len", type=positive, default=32, help="prompt tokens of the homogeneous trace (32)")
    parser.add_argument("--output-len", type=positive, default=32, help="output tokens of the homogeneous trace (32)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the requests and arrivals (0)")


def read_requests(parser: argparse.ArgumentParser, argv: Sequence[str]) -> tuple[list[TracedRequest], bool]:
    """Return the requests of a valid command line, and True if the trace contains arrivals; raise TraceError.

    Ends the command with exit code 2 if the line has options that such a trace ignores.
    """
    arguments = parser.parse_args(argv)
    if arguments.trace != "homogeneous":
        refuse_ignored(parser, argv, f"--trace {arguments.trace}", LENGTHS)
    if arguments.trace in SYNTHETIC:
        lengths = (arguments.input_len, arguments.output_len)
        return synthetic(arguments.trace, arguments.num_requests, arguments.seed, lengths), False
    requests, own_arrivals = recorded(Path(arguments.trace), arguments.num_requests, arguments.seed)
    if own_arrivals:
        refuse_ignored(parser, argv, f"--trace {arguments.trace} (with arrivals)", IGNORED_WITH_ARRIVALS)
    return requests, own_arrivals


def options_given(parser: argparse.ArgumentParser, argv: Sequence[str]) -> frozenset[str]:
    """Return the names (`dest`) of the arguments that a valid command line has, those with default values included."""
    unset = argparse.Namespace(**dict.fromkeys(vars(parser.parse_args(argv))))  # argparse sets no default over a None
    return frozenset(name for name, value in vars(parser.parse_args(argv, unset)).items() if value is not None)


def refuse_ignored(parser: argparse.ArgumentParser, argv: Sequence[str], cause: str, ignored: Sequence[str]) -> None:
    """End the command with exit code 2 if its line has options (names in `ignored`) that `cause` ignores."""
    given = options_given(parser, argv)
    names = ", ".join(f"--{name.replace('_', '-')}" for name in ignored if name in given)
    if names:
        parser.error(f"{cause} ignores {names}: leave out one or the other")


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def rate(text: str) -> float:
    """Parse a number above 0, inf included."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def fraction(text: str) -> float:
    """Parse a number from 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return value


def output_file(text: str) -> Path:
    """Return the path of a file to write (argparse type): its folder must exist before minutes are spent on figures."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file in a folder that exists")
    return path
