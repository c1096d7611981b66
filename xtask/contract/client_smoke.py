"""The sixteen operations of the service, called by a client that was generated from its own description.

Whoever integrates the service starts like this: generate, import, call. The servers are simulated agents that speak
the real protocol, so a batch ends because somebody did the work. The first argument is the directory of the client.
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

SIXTEEN = {
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


def call(operation, *ids, answers=HTTPStatus.OK, **rest):
    """The answer of an operation, which must have this status."""
    called.add(operation)
    answer = operation.sync_detailed(*ids, client=CLIENT, **rest)
    if answer.status_code != answers:
        raise AssertionError(f"{operation.__name__}: {answer.status_code} {answer.content[:2000]!r}")
    return answer


def expect(holds, otherwise):
    global checked
    checked += 1
    if not holds:
        raise AssertionError(otherwise)


def until(what, look):
    """What `look` finds, as soon as it finds something. The agents need a moment, and may have a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (found := look()) is not None:
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited a minute for {what}")


def ended(batch_id):
    def look():
        batch = call(get_batch, batch_id).parsed
        return batch if batch.state.value in ENDED else None

    return until(f"the end of {batch_id}", look)


def the_inventory():
    def everyone():
        found = call(list_servers, status=models.Status.ONLINE).parsed
        scanned = all(server.last_scan_at for server in found.data)
        return found if found.meta.total == SERVERS and scanned else None

    online = until("all servers to be online and scanned", everyone)
    expect(online.meta.limit == 50 and online.meta.offset == 0, "a page has 50 rows unless someone says otherwise")
    expect(call(list_servers, status=models.Status.OFFLINE).parsed.meta.total == 0, "nobody is offline")
    expect(call(list_servers, environment=ENVIRONMENT).parsed.meta.total == SERVERS, "all joined with one token")
    expect(call(list_servers, environment="elsewhere").parsed.data == [], "no server is elsewhere")
    system = online.data[0].os.id
    same = call(list_servers, os=system.upper()).parsed.data
    expect(same and all(server.os.id == system for server in same), f"`os` selects {system}, in any case")
    page = call(list_servers, limit=7, offset=5).parsed
    expect([row.id for row in page.data] == [row.id for row in online.data[5:12]], "the second page goes on")
    expect("offset=12" in page.links.next_ and "offset=0" in page.links.prev, "links lead to the pages around it")

    detail = call(get_server, online.data[0].id).parsed
    expect(detail.hostname == online.data[0].hostname, "it is the same server")
    expect(len(detail.packages) == detail.summary.packages > 0, "every package is listed")
    pending = [package for package in detail.packages if package.available_version is not None]
    expect(len(pending) == detail.summary.updates, "and every update that is pending")
    return online.data


def the_updates():
    listed = call(list_patches, limit=500).parsed
    expect(0 < len(listed.data) == listed.meta.total, "updates are pending")
    for word in ("critical", "high"):
        chosen = call(list_patches, severity=word, limit=500).parsed.data
        rows = [row.package_name for row in listed.data if row.severity.value == word]
        expect([row.package_name for row in chosen] == rows, f"`severity={word}` leaves those in their order")
    first = listed.data[0]
    detail = call(get_patch, first.package_name).parsed
    expect(detail.package_name == first.package_name and detail.versions, "it is the same update")
    expect(len(detail.servers) == first.affected_servers > 0, "every affected server is named")
    server = detail.servers[0].server_id
    names = [row.package_name for row in call(list_patches, server_id=server, limit=500).parsed.data]
    expect(first.package_name in names, "it is pending on a server that it affects")


def a_refresh(server):
    before = call(get_server, server.id).parsed.last_scan_at
    asked = call(refresh_server, server.id, answers=HTTPStatus.ACCEPTED)
    expect(asked.headers["location"].endswith(asked.parsed.id), "`Location` leads to the refresh")

    def done():
        refresh = get_refresh.sync(server.id, asked.parsed.id, client=CLIENT)
        return refresh if refresh.state.value != "pending" else None

    expect(until("the scan", done).state.value == "completed", "the scan has arrived")
    expect(call(get_server, server.id).parsed.last_scan_at > before, "and it is a new one")


def one_servers_patch(server):
    packages = call(get_server, server.id).parsed.packages
    wanted = next(package for package in packages if package.available_version and not package.blocked_by)
    order = models.PatchServer(packages=[wanted.name], reboot=models.RebootPolicy.NEVER)
    accepted = call(patch_server, server.id, body=order, answers=HTTPStatus.ACCEPTED)
    expect(accepted.headers["location"] == f"/v1/batches/{accepted.parsed.id}", "`Location` leads to the batch")
    batch = ended(accepted.parsed.id)
    expect(batch.state.value == "succeeded" and batch.progress.total == 1, f"one server is patched: {batch}")
    changes = [(change.name, change.from_, change.to) for change in batch.results[0].result.packages]
    expect((wanted.name, wanted.version, wanted.available_version) in changes, f"the package was updated: {changes}")

    def scanned():
        now = next(one for one in call(get_server, server.id).parsed.packages if one.name == wanted.name)
        return now if now.version == wanted.available_version else None

    expect(until("the scan after it", scanned).available_version is None, "and nothing is left to do")


def a_batch(servers):
    ids = [server.id for server in servers]
    order = models.CreateBatch(
        server_ids=ids + ids[:1], security_only=True, reboot=models.RebootPolicy.IF_REQUIRED, packages=[]
    )
    accepted = call(create_batch, body=order, idempotency_key="sixteen", answers=HTTPStatus.ACCEPTED)
    again = call(create_batch, body=order, idempotency_key="sixteen", answers=HTTPStatus.ACCEPTED)
    expect(again.parsed.id == accepted.parsed.id, "a repeated order is the same batch")
    batch = ended(accepted.parsed.id)
    expect(batch.state.value == "succeeded", f"every server is well: {batch}")
    expect(batch.progress.total == len(ids) and batch.progress.percent == 100, "named twice counts once")
    expect({task.server_id for task in batch.results} == set(ids), "each has a result")
    for server in ids:

        def scanned():
            packages = call(get_server, server).parsed.packages
            left = [one for one in packages if one.available_version and one.security and not one.blocked_by]
            return packages if not left else None

        until(f"a scan of {server} without security updates", scanned)
    refused = create_batch.sync_detailed(
        client=CLIENT, body=models.CreateBatch(server_ids=["srv_01jcqk3m8ye0fr5cq0k6s8v2xw"], security_only=True)
    )
    expect(refused.status_code == 422 and refused.parsed.errors[0].pointer == "/server_ids/0", "who is not there is named")


def a_schedule(servers):
    selected = models.Selector(server_ids=[server.id for server in servers])
    wanted = models.ScheduleRequest(
        name="Sunday nights",
        description="One after the other",
        cron="0 3 * * SUN",
        timezone="Europe/Berlin",
        targets=selected,
        options=models.OptionsRequest(security_only=True, reboot=models.RebootPolicy.IF_REQUIRED, stagger_minutes=0),
    )
    made = call(create_schedule, body=wanted, answers=HTTPStatus.CREATED)
    schedule = made.parsed
    expect(made.headers["location"] == f"/v1/schedules/{schedule.id}", "`Location` leads to the schedule")
    expect(len(schedule.next_runs) == 5 and schedule.enabled and schedule.last_run is None, "it is about to run")
    expect([row.id for row in call(list_schedules).parsed.data] == [schedule.id], "it is listed")
    seen = call(get_schedule, schedule.id)
    expect(seen.parsed == schedule, "what was made is what is there")
    wanted.cron, wanted.enabled, version = "30 4 * * MON-FRI", False, seen.headers["etag"]
    changed = call(update_schedule, schedule.id, body=wanted, if_match=version).parsed
    expect((changed.cron, changed.enabled, changed.next_runs) == ("30 4 * * MON-FRI", False, []), "it was replaced")
    stale = update_schedule.sync_detailed(schedule.id, client=CLIENT, body=wanted, if_match=version)
    expect(stale.status_code == 412, "who has not seen the change does not overwrite it")

    wanted.enabled, wanted.targets = True, models.Selector(environment="prodction")
    refused = update_schedule.sync_detailed(schedule.id, client=CLIENT, body=wanted)
    expect(
        refused.status_code == 422 and refused.parsed.errors[0].code == "no_servers_match",
        "targets that match no server are refused",
    )

    run = call(run_schedule, schedule.id, answers=HTTPStatus.ACCEPTED).parsed
    expect(run.trigger.value == "manual" and run.batch_id is not None, "a run by hand has a batch")
    expect(ended(run.batch_id).progress.total == len(servers), "it concerns the servers that were selected")

    def over():
        history = call(list_runs, schedule.id).parsed
        return history if history.data[0].finished_at is not None else None

    history = until("the run in the history", over)
    expect([past.id for past in history.data] == [run.id], "the history holds this run")
    expect(history.data[0].state.value == "succeeded", f"it went well: {history.data[0]}")
    expect(call(get_schedule, schedule.id).parsed.last_run.id == run.id, "and the schedule knows its last run")
    call(delete_schedule, schedule.id, answers=HTTPStatus.NO_CONTENT)
    call(get_schedule, schedule.id, answers=HTTPStatus.NOT_FOUND)


def a_removal(server):
    call(remove_server, server.id, answers=HTTPStatus.NO_CONTENT)
    gone = call(get_server, server.id, answers=HTTPStatus.NOT_FOUND)
    expect(gone.parsed.code.value == "not_found", "a problem says which kind it is")
    expect(call(list_servers).parsed.meta.total == SERVERS - 1, "it has left the list")


def main():
    servers = the_inventory()
    the_updates()
    a_refresh(servers[0])
    one_servers_patch(servers[1])
    a_batch(servers[2:7])
    a_schedule(servers[7:11])
    a_removal(servers[-1])
    missed = sorted(operation.__name__ for operation in SIXTEEN - called)
    expect(not missed, f"not called: {missed}")
    print(f"{len(called)} operations by a generated client, {checked} assertions")


main()
