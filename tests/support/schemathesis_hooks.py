"""Hooks for schemathesis (SCHEMATHESIS_HOOKS): write route, mode and status of every call to the file $CALLS."""

from __future__ import annotations

import os

import schemathesis


@schemathesis.hook
def after_call(context, case, response):
    with open(os.environ["CALLS"], "a", encoding="utf-8") as file:
        mode = case.meta.generation.mode.value  # "positive" if the body follows the schema
        file.write(f"{case.method.upper()} {case.operation.path} {mode} {response.status_code}\n")
