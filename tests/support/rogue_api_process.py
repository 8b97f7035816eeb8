"""Fake API process that violates the protocol of its link, and exits neither with the link nor on SIGTERM.

python rogue_api_process.py --engine SOCKET --listener FD
"""

from __future__ import annotations

import signal
import socket
import sys
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[sys.argv.index("--engine") + 1])
link.recv(1)
link.sendall(b"\xff\xff\xff\xff")
while True:
    time.sleep(60)
