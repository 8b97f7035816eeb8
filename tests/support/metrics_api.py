"""Stand-in for an adapter of custom.metrics.k8s.io: `python3 metrics_api.py FOLDER`, with the certificate's folder.

Runs in a pod, with the standard library alone. The value of a metric of an OrcaDeployment is that of its master, read
from the client Service at each request; the first underscore of the name stands for the colon.
"""

from __future__ import annotations

import datetime
import http.server
import json
import re
import ssl
import sys
import urllib.request
from typing import Any

ROOT = "/apis/custom.metrics.k8s.io/v1beta1"
VALUE = re.compile(rf"{ROOT}/namespaces/([^/]+)/orcadeployments\.orca-serving\.io/([^/]+)/([^/?]+)")
PORT = 8443


def master_value(namespace: str, name: str, metric: str) -> float:
    """Return a gauge of a master; raise OSError if no master answers, LookupError for an unknown metric."""
    with urllib.request.urlopen(f"http://{name}.{namespace}.svc/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found = re.search(rf"^{re.escape(metric.replace('_', ':', 1))}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    if found is None:
        raise LookupError(metric)
    return float(found[1])


def answer(path: str) -> tuple[int, dict[str, Any]]:
    """Return status and body of a GET."""
    if path.partition("?")[0] == ROOT:
        return 200, {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": ROOT[6:], "resources": []}
    if (match := VALUE.match(path)) is None:
        return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "message": path}
    namespace, name, metric = match.groups()
    try:
        value = master_value(namespace, name, metric)
    except (OSError, LookupError) as error:
        return 404, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404, "message": str(error)}
    item = {
        "describedObject": {
            "kind": "OrcaDeployment",
            "namespace": namespace,
            "name": name,
            "apiVersion": "orca-serving.io/v1alpha1",
        },
        "metricName": metric,
        "timestamp": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "value": f"{round(1000 * value)}m",
    }
    return 200, {"kind": "MetricValueList", "apiVersion": ROOT[6:], "metadata": {}, "items": [item]}


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers the API server."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send the answer as JSON."""
        status, body = answer(self.path)
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main(folder: str) -> None:
    """Serve HTTPS until the end of the process."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    server = http.server.ThreadingHTTPServer(("", PORT), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
