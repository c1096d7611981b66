"""What schemathesis cannot know by the document alone: words that mean something, and servers that exist.

Nothing here turns a check off or changes what is expected of an answer.
"""

import atexit
import json
import os
import re
import urllib.error
import urllib.request
import zlib
from collections import Counter

import schemathesis
from hypothesis import strategies as st

URL = os.environ["FLEETMEND_URL"]
KEY = os.environ["FLEETMEND_API_KEY"]
TALLY = os.environ["FLEETMEND_CONTRACT_TALLY"]
TURNS = Counter()
VERSIONS = re.compile(r'(\*|(W/)?"[!#-~]*")( *, *(\*|(W/)?"[!#-~]*"))*')
TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)")
SERVER_ID = re.compile(r"srv_[0-7][0-9a-hjkmnp-tv-z]{25}")

# The id of the document's examples.
MADE_UP = "bat_01jcqk3m8ye0fr5cq0k6s8v2xw"

# Texts whose rule is longer than a pattern.
schemathesis.openapi.format(
    "cron",
    st.sampled_from(["0 3 * * SUN", "@daily", "*/15 1-4 * * MON-FRI", "30 4 L * *", "0 5 15W * *", "0 2 * * TUE#2"]),
)
schemathesis.openapi.format(
    "iana-time-zone", st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"])
)


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": "Bearer " + KEY, "Content-Type": "application/json"}
    request = urllib.request.Request(URL + path, data, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


SERVERS = [server["id"] for server in ask("/v1/servers?limit=500")["data"]]
# Those that may be removed, and those that orders are given to.
DOOMED, KEPT = SERVERS[: len(SERVERS) // 3], SERVERS[len(SERVERS) // 3 :]
# Batches that stay under way: the second server's turn comes long after the walk.
SLOW = {"security_only": True, "stagger_minutes": 1440, "dry_run": True, "server_ids": KEPT[:2]}
BATCHES = [ask("/v1/batches", SLOW)["id"] for _ in range(8)]
# Those that may be cancelled, and those that are paused and resumed.
ENDED, HELD = BATCHES[:4], BATCHES[4:]
# What a batch must have gone through for an operation to succeed.
BEFORE = {"pause_batch": "resume", "resume_batch": "pause"}
REFRESH = ask(f"/v1/servers/{KEPT[0]}/refresh", {})
PATCHES = [patch["package_name"] for patch in ask("/v1/patches?limit=500")["data"]]
OURS = next(key["id"] for key in ask("/v1/api-keys")["data"] if key["created_by"] == "init")


def real(server_id, among):
    """One of these servers in place of one that was made up; every fourth is left as it is."""
    number = zlib.crc32(server_id.encode())
    return server_id if number % 4 == 0 else among[number // 4 % len(among)]


def turn(whose):
    """How often this was asked before, of the same: what others ask in between does not make it chance."""
    TURNS[whose] += 1
    return TURNS[whose] - 1


def batch_for(operation, batch_id):
    """A batch that is there in place of one that was made up; every other time as the operation wants it."""
    if operation == "cancel_batch":
        return ENDED[turn(operation) % len(ENDED)] if batch_id == MADE_UP or batch_id in HELD else batch_id
    if batch_id != MADE_UP:
        return batch_id
    count = turn(operation)
    if operation not in BEFORE:
        return BATCHES[count % len(BATCHES)]
    batch_id = HELD[count // 2 % len(HELD)]
    if count % 2 == 0:
        try:
            ask(f"/v1/batches/{batch_id}/{BEFORE[operation]}", {})
        except urllib.error.HTTPError as refused:
            assert refused.code == 409, refused
    return batch_id


@schemathesis.hook
def before_call(context, case, kwargs):
    path = case.path_parameters or {}
    server_id = path.get("server_id")
    if isinstance(server_id, str) and SERVER_ID.fullmatch(server_id):
        if case.method == "DELETE":
            if server_id not in DOOMED:
                path["server_id"] = real(server_id, DOOMED)
                if path["server_id"] in KEPT:
                    path["server_id"] = DOOMED[0]
        elif server_id not in SERVERS:
            path["server_id"] = real(server_id, KEPT)
    if path.get("refresh_id") and path.get("server_id") in KEPT and turn("refresh") % 2 == 0:
        path["server_id"], path["refresh_id"] = KEPT[0], REFRESH["id"]
    if isinstance(path.get("batch_id"), str) and "task_id" not in path:
        path["batch_id"] = batch_for(case.operation.definition.raw.get("operationId"), path["batch_id"])
    if isinstance(path.get("package_name"), str) and turn("patch") % 2 == 0:
        path["package_name"] = PATCHES[zlib.crc32(path["package_name"].encode()) % len(PATCHES)]
    if path.get("api_key_id") == OURS and case.method == "DELETE":
        # The branch that we sit on.
        path["api_key_id"] = OURS[:-1] + ("0" if OURS[-1] != "0" else "1")
    headers = case.headers or {}
    key = headers.get("Idempotency-Key")
    if isinstance(key, str) and re.fullmatch(r"[!-~]([ -~]{0,253}[!-~])?", key):
        # One key for everything would be answered with 409 for everything, whatever else it says.
        count = turn("key")
        headers["Idempotency-Key"] = key if count % 10 == 0 else f"{key[:200]}-{count}"
    if case.method in ("PUT", "DELETE") and VERSIONS.fullmatch(str(headers.get("If-Match", ""))) and turn("version") % 3:
        # A version that was made up is answered with 412, whatever else it says.
        headers["If-Match"] = "*"
    query = case.query or {}
    if isinstance(query.get("server_id"), str) and SERVER_ID.fullmatch(query["server_id"]):
        query["server_id"] = real(query["server_id"], KEPT)
    body = case.body if isinstance(case.body, dict) else {}
    ends = body.get("expires_at")
    if isinstance(ends, str) and TIME.fullmatch(ends) and ends < "2090":
        # What ends must end yet, which no schema can say.
        body["expires_at"] = "2099" + ends[4:].replace("02-29", "02-28")
    operation = case.operation.definition.raw.get("operationId")
    allowed = body.get("allow_empty")
    if body and operation in ("create_schedule", "update_schedule") and (allowed is None or allowed is False):
        # Targets that match no server are refused without it, by a rule that no schema can say.
        body["allow_empty"] = True
    ids = body.get("server_ids")
    if isinstance(ids, list) and ids and all(isinstance(id, str) and SERVER_ID.fullmatch(id) for id in ids):
        # An order that names a server which is not there is refused, by a rule that no schema can say.
        body["server_ids"] = [id if id in KEPT else KEPT[zlib.crc32(id.encode()) % len(KEPT)] for id in ids]


ANSWERS = Counter()


@schemathesis.hook
def after_call(context, case, response):
    operation = case.operation.definition.raw.get("operationId", case.operation.label)
    ANSWERS[operation, response.status_code] += 1


@atexit.register
def write_tally():
    with open(TALLY, "w", encoding="utf-8") as file:
        json.dump([[operation, status, times] for (operation, status), times in sorted(ANSWERS.items())], file)
