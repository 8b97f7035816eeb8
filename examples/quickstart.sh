#!/usr/bin/env bash
# Serves the demo model on two partitions, asks it one question, and goes on serving until Ctrl-C.
# Called by `make run`; PORT chooses another port.
set -euo pipefail
cd "$(dirname "$0")"
port=${PORT:-8000}
url=http://127.0.0.1:$port

if (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then echo "port $port is in use: choose another one with PORT=" >&2; exit 2; fi

orca serve demo-model --pipeline-parallel-size 2 --port "$port" --disable-log-requests &
server=$!
trap 'kill -TERM $server 2>/dev/null || true; wait $server || true' EXIT
trap 'exit 130' INT TERM

# The first start compiles the CPU kernels, which may take minutes on a slow machine.
until curl --silent --fail "$url/readyz" >/dev/null; do
  kill -0 $server 2>/dev/null || { trap - EXIT; wait $server; exit $?; }
  if [ "$SECONDS" -ge 600 ]; then echo "the server is not ready after ten minutes" >&2; exit 1; fi
  sleep 0.25
done

body='{"model": "demo-model", "prompt": "json.dumps\n\n", "max_tokens": 60, "temperature": 0, "stream": true}'
printf '\nTry it:\n\n  curl -N %s/v1/completions -H "Content-Type: application/json" -d '\''%s'\''\n\n' "$url" "$body"
curl --silent --show-error --fail --no-buffer --max-time 60 "$url/v1/completions" -H "Content-Type: application/json" -d "$body" \
  | python3 -c '
import json, sys
for line in sys.stdin:
    if line.startswith("data: {"):
        print(json.loads(line[6:])["choices"][0]["text"], end="", flush=True)
'
printf '\n\nServing on %s until Ctrl-C.\n' "$url"
wait $server
