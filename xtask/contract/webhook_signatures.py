"""Verifies the signatures of webhooks with the reference libraries of Standard Webhooks, in Python and JavaScript.

The service sends a test event to a receiver in this process. The libraries must accept the request as it arrived, and
reject it when it was altered, signed with another secret, or is old. The first argument is the directory of the npm
package; the second one is the script that verifies a request with it.
"""

import base64
import json
import os
import queue
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import Request, urlopen

from standardwebhooks import Webhook, WebhookVerificationError

PACKAGES, SCRIPT = sys.argv[1:3]
URL, KEY = os.environ["FLEETMEND_URL"], os.environ["FLEETMEND_API_KEY"]
SECONDS_MAX = 60
received = queue.Queue()
checked = 0


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        received.put(({name.lower(): value for name, value in self.headers.items()}, body.decode()))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def call(method, path, body=None):
    request = Request(URL + path, None if body is None else json.dumps(body).encode(), method=method)
    request.add_header("authorization", f"Bearer {KEY}")
    request.add_header("content-type", "application/json")
    with urlopen(request, timeout=30) as response:
        text = response.read()
        return json.loads(text) if text else None


def accepted_in_python(secret, headers, body):
    try:
        return Webhook(secret).verify(body, headers) == json.loads(body)
    except WebhookVerificationError:
        return False


def accepted_in_javascript(secret, headers, body):
    given = json.dumps({"secret": secret, "headers": headers, "body": body})
    ran = subprocess.run(["node", SCRIPT, PACKAGES], input=given, capture_output=True, text=True, timeout=SECONDS_MAX)
    if ran.returncode != 0:
        raise AssertionError(f"{SCRIPT} failed: {ran.stderr}")
    return {"accepted": True, "rejected": False}[ran.stdout.strip()]


def expect(accepted, what, secret, headers, body):
    global checked
    for library in (accepted_in_python, accepted_in_javascript):
        checked += 1
        if library(secret, headers, body) != accepted:
            verb = "rejected" if accepted else "accepted"
            raise AssertionError(f"{library.__name__}: {what} was {verb}; headers: {headers}, body: {body}")


def check(secret, headers, body):
    expect(True, "a request as it arrived", secret, headers, body)
    expect(False, "an altered body", secret, headers, body.replace("webhook", "webhoop", 1))
    expect(False, "another ID", secret, {**headers, "webhook-id": headers["webhook-id"] + "x"}, body)
    later = str(int(headers["webhook-timestamp"]) + 1)
    expect(False, "another time", secret, {**headers, "webhook-timestamp": later}, body)
    other = "whsec_" + base64.b64encode(bytes(32)).decode()
    expect(False, "another secret", other, headers, body)
    # Correctly signed, but six minutes ago.
    old = datetime.now(tz=timezone.utc) - timedelta(minutes=6)
    signature = Webhook(secret).sign(headers["webhook-id"], old, body)
    stale = {"webhook-timestamp": str(int(old.timestamp())), "webhook-signature": signature}
    expect(False, "an old request", secret, {**headers, **stale}, body)


server = HTTPServer(("127.0.0.1", 0), Receiver)
threading.Thread(target=server.serve_forever, daemon=True).start()
target = f"http://127.0.0.1:{server.server_port}/"
webhook = call("POST", "/v1/webhooks", {"name": "signatures", "url": target, "types": ["webhook.disabled"]})
try:
    call("POST", f"/v1/webhooks/{webhook['id']}/test")
    check(webhook["secret"], *received.get(timeout=SECONDS_MAX))
    # During a rotation, requests carry the signatures of both secrets.
    rotated = call("POST", f"/v1/webhooks/{webhook['id']}/rotate", {"overlap_hours": 1})
    call("POST", f"/v1/webhooks/{webhook['id']}/test")
    headers, body = received.get(timeout=SECONDS_MAX)
    for secret in (webhook["secret"], rotated["secret"]):
        check(secret, headers, body)
finally:
    call("DELETE", f"/v1/webhooks/{webhook['id']}")
print(f"{checked} decisions of the reference libraries were correct")
