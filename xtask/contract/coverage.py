"""Whether the walk came anywhere: a walk that only met closed doors finds nothing either."""

import json
import os
import sys
from collections import defaultdict

# Operations that cannot succeed in this fleet, with the reason.
CLOSED = {
    "openapi": "it is read before the walk begins, and is where the walk comes from",
    "retry_batch": "it takes a batch that has ended with failures, and this fleet has none",
    "release_server": "no two of these hosts share an identity, so none is in quarantine",
}


def main():
    with open(os.environ["FLEETMEND_CONTRACT_TALLY"], encoding="utf-8") as file:
        answers = json.load(file)
    with open(sys.argv[1], encoding="utf-8") as file:
        paths = json.load(file)["paths"]
    named = {operation["operationId"] for item in paths.values() for operation in item.values()}
    statuses = defaultdict(dict)
    for operation, status, times in answers:
        statuses[operation][status] = times
    closed = sorted(
        f"{operation}: {statuses[operation] or 'never called'}"
        for operation in named
        if not any(200 <= status < 300 for status in statuses[operation]) and operation not in CLOSED
    )
    if closed:
        sys.exit("the walk never saw these succeed:\n  " + "\n  ".join(closed))
    requests = sum(times for _, _, times in answers)
    seen = sum(any(200 <= status < 300 for status in statuses[operation]) for operation in named)
    print(f"{requests} requests, {seen} of {len(named)} operations seen to succeed")


main()
