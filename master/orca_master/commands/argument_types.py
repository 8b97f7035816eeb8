"""Argument types for argparse; each raises ArgumentTypeError with the allowed values."""

from __future__ import annotations

import argparse
import os
import re
from decimal import Decimal
from pathlib import Path

from orca_contract.kv_blocks import BLOCK_SIZE

from orca_master.endpoint.config import name_of

HOST = re.compile(r"(\[[0-9A-F:.]+\]|[A-Z0-9._-]+)(:[0-9]*)?", re.ASCII | re.IGNORECASE)
"""What clients send as Host."""
MAX_NUMBER = 2**31 - 1
UNITS = {"k": 1000, "K": 1024, "m": 1000**2, "M": 1024**2}
MAX_SLOTS = 2**63 - 1
MAX_BYTES = 2**63 - 1
MAX_MILLISECONDS = 3_600_000
MAX_STALL_SECONDS = 4_000_000
"""46 days: FormRequest has 32 bits for the time in milliseconds."""


def positive(text: str, most: int = MAX_NUMBER) -> int:
    """Parse a whole number from 1 to `most`, by default the maximum of a signed 32-bit protobuf field."""
    if not text.isdecimal() or len(text) > len(str(most)) or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {most}")
    return int(text)


def num_tokens(text: str) -> int:
    """Parse a number of tokens as `positive`; k and m mean powers of 1,000, K and M of 1,024, as in vLLM (8K)."""
    if match := re.fullmatch(r"(\d{1,10}(?:\.\d{1,9})?)([kKmM])", text, re.ASCII):
        number = Decimal(match[1]) * UNITS[match[2]]
        if number == int(number):
            return positive(str(int(number)))
    return positive(text)


def count(text: str) -> int:
    """Parse a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def num_bytes(text: str) -> int:
    """Parse a number of bytes, from 1 to MAX_BYTES."""
    return positive(text, MAX_BYTES)


def host_name(text: str) -> str:
    """Parse the name or address of a host, also with a port, which is dropped; * stands for any host."""
    host = f"[{text}]" if text.count(":") > 1 and "[" not in text else text
    name = name_of(host) if HOST.fullmatch(host) else ""
    if not name and text != "*":
        raise argparse.ArgumentTypeError(f"{text!r} is no name or address of a host, and not * for any")
    return name or text


def utf8_text(text: str) -> str:
    """Parse a text for clients, which gets into JSON: one of bytes that are UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid UTF-8") from None
    return text


def origin(text: str) -> str:
    """Parse an origin of browsers, * for any; vLLM's lists in JSON are refused, which no origin would equal."""
    if text.startswith("["):
        raise argparse.ArgumentTypeError(f"{text!r} is no origin: give the option once for each, without brackets")
    return utf8_text(text)


def root_path(text: str) -> str:
    """Parse the path at which a proxy serves this server; return it without a slash at its end, "" for none."""
    path = utf8_text(text).rstrip("/")
    if path and not path.startswith("/"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a path: a slash comes first, as in /llm")
    return path


def wait_seconds(text: str) -> int:
    """Parse a whole number of seconds, from 0 to MAX_STALL_SECONDS."""
    return 0 if text == "0" else stall_seconds(text)


def bound_seconds(text: str) -> float:
    """Parse a number of seconds above 0, up to MAX_STALL_SECONDS."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= MAX_STALL_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to {MAX_STALL_SECONDS}")
    return number


def milliseconds(text: str) -> float:
    """Parse a number of milliseconds from 0 to an hour."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= MAX_MILLISECONDS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds from 0 to {MAX_MILLISECONDS}")
    return number


def stall_seconds(text: str) -> int:
    """Parse a whole number of seconds, from 1 to MAX_STALL_SECONDS."""
    number = positive(text)
    if number > MAX_STALL_SECONDS:
        raise argparse.ArgumentTypeError(f"{number} is more than {MAX_STALL_SECONDS} seconds")
    return number


def slots(text: str) -> int:
    """Parse a number of slots, at least one block. The workers check later that the slots fit into memory."""
    number = positive(text, MAX_SLOTS)
    if number < BLOCK_SIZE:
        raise argparse.ArgumentTypeError(f"{number} is less than one block of {BLOCK_SIZE} slots")
    return number


def folder(text: str) -> Path:
    """Parse the path of a folder; return it absolute and without links."""
    if not text:
        raise argparse.ArgumentTypeError("a folder is expected")
    return Path(os.path.realpath(text))  # unlike Path.resolve, without an error for a cycle of links


def fraction(text: str) -> float:
    """Parse a fraction in (0, 1]."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and up to 1")
    return number
