"""Gives schemathesis what the OpenAPI document cannot contain: valid values of special formats, and ids that exist.

Nothing here disables a check or changes what is expected of a response.
"""

import atexit
import json
import os
import re
import time
import urllib.error
import urllib.request
import zlib
from collections import Counter

import schemathesis
from hypothesis import strategies as st

URL = os.environ["FLEETMEND_URL"]
KEY = os.environ["FLEETMEND_API_KEY"]
TALLY = os.environ["FLEETMEND_CONTRACT_TALLY"]
CALLS = Counter()
VERSIONS = re.compile(r'(\*|(W/)?"[!#-~]*")( *, *(\*|(W/)?"[!#-~]*"))*')
TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
SERVER_ID = re.compile(r"srv_[0-7][0-9a-hjkmnp-tv-z]{25}")

# The batch id in the examples of the document.
EXAMPLE_ID = "bat_01jcqk3m8ye0fr5cq0k6s8v2xw"

# Formats that a pattern cannot describe.
schemathesis.openapi.format(
    "cron",
    st.sampled_from(["0 3 * * SUN", "@daily", "*/15 1-4 * * MON-FRI", "30 4 L * *", "0 5 15W * *", "0 2 * * TUE#2"]),
)
schemathesis.openapi.format(
    "iana-time-zone", st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"])
)


def request_json(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": "Bearer " + KEY, "Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, data, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


SERVERS = [server["id"] for server in request_json("/v1/servers?limit=500")["data"]]
# Servers that may be removed, and servers that receive orders.
REMOVABLE, KEPT = SERVERS[: len(SERVERS) // 3], SERVERS[len(SERVERS) // 3 :]
# Batches that stay in progress: the second server starts long after the run.
SLOW = {"security_only": True, "stagger_minutes": 1440, "dry_run": True, "server_ids": KEPT[:2]}
BATCHES = [request_json("/v1/batches", SLOW)["id"] for _ in range(8)]
# Batches that may be canceled, and batches that are paused and resumed.
CANCELABLE, PAUSABLE = BATCHES[:4], BATCHES[4:]
# The operation that must precede this one for it to succeed.
PREREQUISITE = {"pause_batch": "resume", "resume_batch": "pause"}
REFRESH = request_json(f"/v1/servers/{KEPT[0]}/refresh", {})
# Servers with a package of each whose update is pending.
PENDING = [
    (server, package["name"])
    for server in KEPT[:5]
    for package in request_json(f"/v1/servers/{server}")["packages"]
    if package["available_version"]
]
PATCHES = [patch["package_name"] for patch in request_json("/v1/patches?limit=500")["data"]]


def exposed_servers():
    """Return servers with a CVE that affects each. Findings are matched a moment after the scan."""
    for _ in range(300):
        found = [(server, cve["id"]) for server in KEPT for cve in request_json(f"/v1/servers/{server}")["cves"]]
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("no server has a CVE")


EXPOSED = exposed_servers()
# A policy, for operations that need an existing one.
RULES = [{"match": {"severity": "critical"}, "within_days": 7}]
POLICY = request_json("/v1/policies", {"name": "contract", "targets": {"all": True}, "rules": RULES})["id"]
POLICY_ID = re.compile(r"pol_[0-7][0-9a-hjkmnp-tv-z]{25}")
# Webhooks of a receiver that does not exist: nothing is sent anywhere.
RECEIVER = "http://127.0.0.1:1/hook"
WEBHOOK = request_json("/v1/webhooks", {"name": "contract", "url": RECEIVER, "types": ["webhook.*"]})["id"]
REMOVABLE_WEBHOOKS = [
    request_json("/v1/webhooks", {"name": f"contract {n}", "url": RECEIVER, "types": ["*"], "enabled": False})["id"] for n in range(4)
]
CREATED_WEBHOOKS = set()


def first_delivery():
    for _ in range(100):
        found = request_json(f"/v1/webhooks/{WEBHOOK}/deliveries")["data"]
        if found:
            return found[0]["id"]
        time.sleep(0.1)
    raise AssertionError("the webhook has no delivery")


DELIVERY = first_delivery()
OWN_KEY_ID = next(key["id"] for key in request_json("/v1/api-keys")["data"] if key["created_by"] == "init")


def existing_server(server_id, among):
    """Replace a generated server id by an existing one. Every fourth is left unchanged."""
    number = zlib.crc32(server_id.encode())
    return server_id if number % 4 == 0 else among[number // 4 % len(among)]


def next_count(key):
    """Count the calls per key, so that the sequence for a key does not depend on other calls."""
    CALLS[key] += 1
    return CALLS[key] - 1


def batch_for(operation, batch_id):
    """Replace a generated batch id by an existing one. Every other time it is in the state that the operation needs."""
    if operation == "cancel_batch":
        return CANCELABLE[next_count(operation) % len(CANCELABLE)] if batch_id == EXAMPLE_ID or batch_id in PAUSABLE else batch_id
    if batch_id != EXAMPLE_ID:
        return batch_id
    count = next_count(operation)
    if operation not in PREREQUISITE:
        return BATCHES[count % len(BATCHES)]
    batch_id = PAUSABLE[count // 2 % len(PAUSABLE)]
    if count % 2 == 0:
        try:
            request_json(f"/v1/batches/{batch_id}/{PREREQUISITE[operation]}", {})
        except urllib.error.HTTPError as refused:
            assert refused.code == 409, refused
    return batch_id


def arrange_waves(options):
    """Make waves valid as a whole, which a schema cannot express: only the last one takes the rest, and it does not soak."""
    waves = options.get("waves")
    if not isinstance(waves, list) or not 0 < len(waves) <= 20 or not all(isinstance(wave, dict) for wave in waves):
        return
    for wave in waves[:-1]:
        if wave.get("size") is None:
            wave["size"] = 1
    if waves[-1].get("size") is None and isinstance(waves[-1].get("soak_minutes"), int) and 0 <= waves[-1]["soak_minutes"] <= 10_080:
        waves[-1]["soak_minutes"] = 0
    if isinstance(options.get("canary"), int) and 0 <= options["canary"] < 2**32 or re.fullmatch("(100|[1-9][0-9]?)%", str(options.get("canary"))):
        options["canary"] = 0


def pin_only_with_waves(options):
    """Versions are pinned only if there is a first wave, which a schema cannot express."""
    if options.get("pin_versions") is not True:
        return
    waves, canary = options.get("waves"), options.get("canary")
    single = not waves or (isinstance(waves, list) and len(waves) == 1 and isinstance(waves[0], dict) and waves[0].get("size") is None)
    if single and canary in (None, 0):
        options["pin_versions"] = False


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = case.operation.definition.raw.get("operationId")
    path = case.path_parameters or {}
    server_id = path.get("server_id")
    if isinstance(server_id, str) and SERVER_ID.fullmatch(server_id):
        if case.method == "DELETE":
            if server_id not in REMOVABLE:
                path["server_id"] = existing_server(server_id, REMOVABLE)
                if path["server_id"] in KEPT:
                    path["server_id"] = REMOVABLE[0]
        elif server_id not in SERVERS:
            path["server_id"] = existing_server(server_id, KEPT)
    if path.get("refresh_id") and path.get("server_id") in KEPT and next_count("refresh") % 2 == 0:
        path["server_id"], path["refresh_id"] = KEPT[0], REFRESH["id"]
    if isinstance(path.get("batch_id"), str) and "task_id" not in path:
        path["batch_id"] = batch_for(operation, path["batch_id"])
    webhook_id = path.get("webhook_id")
    if isinstance(webhook_id, str) and re.fullmatch(r"whk_[0-7][0-9a-hjkmnp-tv-z]{25}", webhook_id) and webhook_id not in CREATED_WEBHOOKS:
        removes = case.method == "DELETE"
        path["webhook_id"] = REMOVABLE_WEBHOOKS[next_count("webhook") % len(REMOVABLE_WEBHOOKS)] if removes else WEBHOOK
        if "delivery_id" in path and next_count("delivery") % 2 == 0:
            path["delivery_id"] = DELIVERY
    if isinstance(path.get("package_name"), str) and next_count("patch") % 2 == 0:
        path["package_name"] = PATCHES[zlib.crc32(path["package_name"].encode()) % len(PATCHES)]
    if operation == "explain_update" and next_count(operation) % 2 == 0:
        path["server_id"], path["package_name"] = PENDING[CALLS[operation] % len(PENDING)]
    if operation == "explain_cve" and next_count(operation) % 2 == 0:
        path["server_id"], path["cve_id"] = EXPOSED[CALLS[operation] % len(EXPOSED)]
    if path.get("api_key_id") == OWN_KEY_ID and case.method == "DELETE":
        # Our own key must not be revoked.
        path["api_key_id"] = OWN_KEY_ID[:-1] + ("0" if OWN_KEY_ID[-1] != "0" else "1")
    headers = case.headers or {}
    key = headers.get("Idempotency-Key")
    if isinstance(key, str) and re.fullmatch(r"[!-~]([ -~]{0,253}[!-~])?", key):
        # Reusing one key would return 409 for every request.
        count = next_count("key")
        headers["Idempotency-Key"] = key if count % 10 == 0 else f"{key[:200]}-{count}"
    if case.method in ("PUT", "PATCH", "DELETE") and VERSIONS.fullmatch(str(headers.get("If-Match", ""))) and next_count("version") % 3:
        # A generated version would return 412 for every request.
        headers["If-Match"] = "*"
    query = case.query or {}
    if POLICY_ID.fullmatch(str(query.get("policy"))) and next_count("policy") % 2 == 0:
        query["policy"] = POLICY
    if case.method == "GET" and POLICY_ID.fullmatch(str(path.get("policy_id"))) and next_count("policy_id") % 2 == 0:
        path["policy_id"] = POLICY
    if isinstance(query.get("server_id"), str) and SERVER_ID.fullmatch(query["server_id"]):
        query["server_id"] = existing_server(query["server_id"], KEPT)
    body = case.body if isinstance(case.body, dict) else {}
    ends = body.get("expires_at")
    if isinstance(ends, str) and TIME.fullmatch(ends) and ends < "2090":
        # The expiry must be in the future, which a schema cannot express.
        body["expires_at"] = "2099" + ends[4:].replace("02-29", "02-28")
    allowed = body.get("allow_empty")
    if body and operation in ("create_schedule", "update_schedule") and (allowed is None or allowed is False):
        # Without this, targets that match no server are refused, which a schema cannot express.
        body["allow_empty"] = True
    if operation in ("create_freeze", "update_freeze") and all(isinstance(body.get(field), str) for field in ("starts_at", "ends_at")):
        if TIME.fullmatch(body["starts_at"]) and TIME.fullmatch(body["ends_at"]):
            # The end must be after the start, which a schema cannot express.
            body["starts_at"], body["ends_at"] = "2098-12-01T00:00:00Z", "2098-12-24T00:00:00Z"
    if operation in ("create_webhook", "edit_webhook") and isinstance(body.get("url"), str) and body["url"].startswith("http"):
        # Generated events are not sent to generated addresses.
        body["url"] = RECEIVER
        if operation == "create_webhook" and body.get("enabled") is True:
            body["enabled"] = False
    arrange_waves(body)
    pin_only_with_waves(body)
    if isinstance(body.get("options"), dict):
        arrange_waves(body["options"])
        pin_only_with_waves(body["options"])
    changes = body.get("changes") if operation == "create_forecast" else None
    schedules = changes.get("schedules") if isinstance(changes, dict) else None
    for schedule in schedules if isinstance(schedules, list) else []:
        if isinstance(schedule, dict) and isinstance(schedule.get("options"), dict):
            arrange_waves(schedule["options"])
    ids = body.get("server_ids")
    if isinstance(ids, list) and ids and all(isinstance(id, str) and SERVER_ID.fullmatch(id) for id in ids):
        # A request with an unknown server id is refused, which a schema cannot express.
        body["server_ids"] = [id if id in KEPT else KEPT[zlib.crc32(id.encode()) % len(KEPT)] for id in ids]


RESPONSES = Counter()


@schemathesis.hook
def after_call(context, case, response):
    operation = case.operation.definition.raw.get("operationId", case.operation.label)
    RESPONSES[operation, response.status_code] += 1
    if operation == "create_webhook" and response.status_code == 201:
        CREATED_WEBHOOKS.add(response.json()["id"])


@atexit.register
def write_tally():
    with open(TALLY, "w", encoding="utf-8") as file:
        json.dump([[operation, status, times] for (operation, status), times in sorted(RESPONSES.items())], file)
