"""Smoke test: calls the sixteen core operations with a client that was generated from the OpenAPI document.

An integration starts in the same way: generate, import, call. The servers are simulated agents that use the real
protocol, so a batch ends because an agent did the work. The first argument is the directory of the client.
"""

import os
import sys
import time
from http import HTTPStatus

sys.path.insert(0, sys.argv[1])

from fleetmend_client import AuthenticatedClient, models  # noqa: E402
from fleetmend_client.api.batches import create_batch, get_batch  # noqa: E402
from fleetmend_client.api.patches import get_patch, list_patches  # noqa: E402
from fleetmend_client.api.schedules import (  # noqa: E402
    create_schedule,
    delete_schedule,
    get_schedule,
    list_runs,
    list_schedules,
    run_schedule,
    update_schedule,
)
from fleetmend_client.api.servers import (  # noqa: E402
    get_refresh,
    get_server,
    list_servers,
    patch_server,
    refresh_server,
    remove_server,
)

CORE_OPERATIONS = {
    *(list_schedules, create_schedule, get_schedule, update_schedule, delete_schedule, run_schedule, list_runs),
    *(list_servers, get_server, remove_server, refresh_server, patch_server),
    *(list_patches, get_patch, create_batch, get_batch),
}
SERVERS = int(os.environ["FLEETMEND_CONTRACT_SERVERS"])
ENVIRONMENT = os.environ["FLEETMEND_CONTRACT_ENVIRONMENT"]
CLIENT = AuthenticatedClient(
    base_url=os.environ["FLEETMEND_URL"],
    token=os.environ["FLEETMEND_API_KEY"],
    raise_on_unexpected_status=True,
    timeout=30,
)
ENDED = {"succeeded", "completed_with_errors", "failed", "canceled", "expired"}
called = set()
checked = 0


def call(operation, *ids, expected=HTTPStatus.OK, **rest):
    """Call an operation and return its response, which must have the expected status."""
    called.add(operation)
    answer = operation.sync_detailed(*ids, client=CLIENT, **rest)
    if answer.status_code != expected:
        raise AssertionError(f"{operation.__name__}: {answer.status_code} {answer.content[:2000]!r}")
    return answer


def expect(holds, otherwise):
    global checked
    checked += 1
    if not holds:
        raise AssertionError(otherwise)


def wait_for(what, look):
    """Poll `look` until it returns something. The agents need a moment; the limit is one minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.1)
    raise AssertionError(f"timed out after one minute waiting for {what}")


def wait_for_end(batch_id):
    def look():
        batch = call(get_batch, batch_id).parsed
        return batch if batch.state.value in ENDED else None

    return wait_for(f"the end of {batch_id}", look)


def check_inventory():
    def all_online():
        found = call(list_servers, status=models.Status.ONLINE).parsed
        scanned = all(server.last_scan_at for server in found.data)
        return found if found.meta.total == SERVERS and scanned else None

    online = wait_for("all servers to be online and scanned", all_online)
    expect(online.meta.limit == 50 and online.meta.offset == 0, "the default page size is 50")
    expect(call(list_servers, status=models.Status.OFFLINE).parsed.meta.total == 0, "no server is offline")
    expect(call(list_servers, environment=ENVIRONMENT).parsed.meta.total == SERVERS, "all servers enrolled with one token")
    expect(call(list_servers, environment="elsewhere").parsed.data == [], "no server is in another environment")
    system = online.data[0].os.id
    same = call(list_servers, os=system.upper()).parsed.data
    expect(same and all(server.os.id == system for server in same), f"`os` selects {system}, case-insensitively")
    page = call(list_servers, limit=7, offset=5).parsed
    expect([row.id for row in page.data] == [row.id for row in online.data[5:12]], "the second page continues the first")
    expect("offset=12" in page.links.next_ and "offset=0" in page.links.prev, "links point to the adjacent pages")

    detail = call(get_server, online.data[0].id).parsed
    expect(detail.hostname == online.data[0].hostname, "the detail is of the same server")
    expect(len(detail.packages) == detail.summary.packages > 0, "every installed package is listed")
    pending = [package for package in detail.packages if package.available_version is not None]
    expect(len(pending) == detail.summary.updates, "every pending update is listed")
    return online.data


def check_patches():
    listed = call(list_patches, limit=500).parsed
    expect(0 < len(listed.data) == listed.meta.total, "updates are pending")
    for word in ("critical", "high"):
        chosen = call(list_patches, severity=word, limit=500).parsed.data
        rows = [row.package_name for row in listed.data if row.severity.value == word]
        expect([row.package_name for row in chosen] == rows, f"`severity={word}` filters and keeps the order")
    first = listed.data[0]
    detail = call(get_patch, first.package_name).parsed
    expect(detail.package_name == first.package_name and detail.versions, "the detail is of the same patch")
    expect(len(detail.servers) == first.affected_servers > 0, "every affected server is listed")
    server = detail.servers[0].server_id
    names = [row.package_name for row in call(list_patches, server_id=server, limit=500).parsed.data]
    expect(first.package_name in names, "the patch is pending on an affected server")


def check_refresh(server):
    before = call(get_server, server.id).parsed.last_scan_at
    asked = call(refresh_server, server.id, expected=HTTPStatus.ACCEPTED)
    expect(asked.headers["location"].endswith(asked.parsed.id), "`Location` points to the refresh")

    def done():
        refresh = get_refresh.sync(server.id, asked.parsed.id, client=CLIENT)
        return refresh if refresh.state.value != "pending" else None

    expect(wait_for("the scan", done).state.value == "completed", "the scan is completed")
    expect(call(get_server, server.id).parsed.last_scan_at > before, "the scan is newer than the previous one")


def check_patch_server(server):
    packages = call(get_server, server.id).parsed.packages
    wanted = next(package for package in packages if package.available_version and not package.blocked_by)
    order = models.PatchServer(packages=[wanted.name], reboot=models.RebootPolicy.NEVER)
    accepted = call(patch_server, server.id, body=order, expected=HTTPStatus.ACCEPTED)
    expect(accepted.headers["location"] == f"/v1/batches/{accepted.parsed.id}", "`Location` points to the batch")
    batch = wait_for_end(accepted.parsed.id)
    expect(batch.state.value == "succeeded" and batch.progress.total == 1, f"the batch patched one server: {batch}")
    changes = [(change.name, change.from_, change.to) for change in batch.results[0].result.packages]
    expect((wanted.name, wanted.version, wanted.available_version) in changes, f"the package was updated: {changes}")

    def scanned():
        now = next(one for one in call(get_server, server.id).parsed.packages if one.name == wanted.name)
        return now if now.version == wanted.available_version else None

    expect(wait_for("the scan after it", scanned).available_version is None, "no update is pending afterwards")


def check_batch(servers):
    ids = [server.id for server in servers]
    order = models.CreateBatch(
        server_ids=ids + ids[:1], security_only=True, reboot=models.RebootPolicy.IF_REQUIRED, packages=[]
    )
    accepted = call(create_batch, body=order, idempotency_key="smoke-test", expected=HTTPStatus.ACCEPTED)
    again = call(create_batch, body=order, idempotency_key="smoke-test", expected=HTTPStatus.ACCEPTED)
    expect(again.parsed.id == accepted.parsed.id, "a repeated request returns the same batch")
    batch = wait_for_end(accepted.parsed.id)
    expect(batch.state.value == "succeeded", f"the batch succeeded on every server: {batch}")
    expect(batch.progress.total == len(ids) and batch.progress.percent == 100, "a server that is listed twice counts once")
    expect({task.server_id for task in batch.results} == set(ids), "every server has a result")
    for server in ids:

        def scanned():
            packages = call(get_server, server).parsed.packages
            left = [one for one in packages if one.available_version and one.security and not one.blocked_by]
            return packages if not left else None

        wait_for(f"a scan of {server} without security updates", scanned)
    refused = create_batch.sync_detailed(
        client=CLIENT, body=models.CreateBatch(server_ids=["srv_01jcqk3m8ye0fr5cq0k6s8v2xw"], security_only=True)
    )
    expect(refused.status_code == 422 and refused.parsed.errors[0].pointer == "/server_ids/0", "the error points to the unknown server")


def check_schedule(servers):
    selected = models.Selector(server_ids=[server.id for server in servers])
    wanted = models.ScheduleRequest(
        name="Sunday nights",
        description="One after the other",
        cron="0 3 * * SUN",
        timezone="Europe/Berlin",
        targets=selected,
        options=models.OptionsRequest(security_only=True, reboot=models.RebootPolicy.IF_REQUIRED, stagger_minutes=0),
    )
    made = call(create_schedule, body=wanted, expected=HTTPStatus.CREATED)
    schedule = made.parsed
    expect(made.headers["location"] == f"/v1/schedules/{schedule.id}", "`Location` points to the schedule")
    expect(len(schedule.next_runs) == 5 and schedule.enabled and schedule.last_run is None, "the schedule is enabled and has next runs")
    expect([row.id for row in call(list_schedules).parsed.data] == [schedule.id], "the schedule is listed")
    seen = call(get_schedule, schedule.id)
    expect(seen.parsed == schedule, "the stored schedule equals the created one")
    wanted.cron, wanted.enabled, version = "30 4 * * MON-FRI", False, seen.headers["etag"]
    changed = call(update_schedule, schedule.id, body=wanted, if_match=version).parsed
    expect((changed.cron, changed.enabled, changed.next_runs) == ("30 4 * * MON-FRI", False, []), "the schedule was replaced")
    stale = update_schedule.sync_detailed(schedule.id, client=CLIENT, body=wanted, if_match=version)
    expect(stale.status_code == 412, "an outdated version cannot overwrite the change")

    wanted.enabled, wanted.targets = True, models.Selector(environment="prodction")
    refused = update_schedule.sync_detailed(schedule.id, client=CLIENT, body=wanted)
    expect(
        refused.status_code == 422 and refused.parsed.errors[0].code == "no_servers_match",
        "targets that match no server are refused",
    )

    run = call(run_schedule, schedule.id, expected=HTTPStatus.ACCEPTED).parsed
    expect(run.trigger.value == "manual" and run.batch_id is not None, "a manual run has a batch")
    expect(wait_for_end(run.batch_id).progress.total == len(servers), "the run covers the selected servers")

    def over():
        history = call(list_runs, schedule.id).parsed
        return history if history.data[0].finished_at is not None else None

    history = wait_for("the run in the history", over)
    expect([past.id for past in history.data] == [run.id], "the history contains this run")
    expect(history.data[0].state.value == "succeeded", f"the run succeeded: {history.data[0]}")
    expect(call(get_schedule, schedule.id).parsed.last_run.id == run.id, "the schedule refers to its last run")
    call(delete_schedule, schedule.id, expected=HTTPStatus.NO_CONTENT)
    call(get_schedule, schedule.id, expected=HTTPStatus.NOT_FOUND)


def check_removal(server):
    call(remove_server, server.id, expected=HTTPStatus.NO_CONTENT)
    gone = call(get_server, server.id, expected=HTTPStatus.NOT_FOUND)
    expect(gone.parsed.code.value == "not_found", "a problem has a code")
    expect(call(list_servers).parsed.meta.total == SERVERS - 1, "the server is no longer listed")


def main():
    servers = check_inventory()
    check_patches()
    check_refresh(servers[0])
    check_patch_server(servers[1])
    check_batch(servers[2:7])
    check_schedule(servers[7:11])
    check_removal(servers[-1])
    missed = sorted(operation.__name__ for operation in CORE_OPERATIONS - called)
    expect(not missed, f"not called: {missed}")
    print(f"{len(called)} operations called by a generated client, {checked} assertions")


main()
