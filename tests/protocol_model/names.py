"""The names of the invariants; docs/protocol.md has a sentence about each."""

from __future__ import annotations

NO_OLD_EPOCH = "no old epoch"
EPOCHS_RISE = "epochs rise"
IN_ORDER = "in order"
NO_STALE_ROW = "no stale row"
RIGHT_TOKENS = "right tokens"
ONCE_IN_ORDER = "once, in order"
RECORDED_FIRST = "recorded first"
NOTHING_LOST = "nothing accepted is lost"
ROWS_FREED = "rows are freed"
ONE_MASTER = "one master"
EVERY_REQUEST_ENDS = "every request ends"
