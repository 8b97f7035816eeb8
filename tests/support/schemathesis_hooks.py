"""Loaded by schemathesis (SCHEMATHESIS_HOOKS): writes route, mode and status of every call to the file $CALLS."""

from __future__ import annotations

import os

import schemathesis


@schemathesis.hook
def after_call(context, case, response):
    with open(os.environ["CALLS"], "a", encoding="utf-8") as file:
        made = case.meta.generation.mode.value  # "positive" if it follows the schema
        file.write(f"{case.method.upper()} {case.operation.path} {made} {response.status_code}\n")
