from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import invoke
from tests.waiting import HANGS_S
from threadcast.cli.findings import (
    State,
    check_binding,
    check_compiler,
    check_counters,
    check_environment,
    check_limits,
    check_load,
    check_packages,
    check_torch,
)  # fmt: skip
from threadcast.collector.busy import Load
from threadcast.collector.counters import CounterStatus, CountingPlan, Event
from threadcast.core import Machine, UsableCores, read_machine, usable_cores

V1_CPU = Path("/sys/fs/cgroup/cpu")
FOUR = UsableCores((0, 1, 2, 3), 4)
THROTTLED = UsableCores((0, 1, 2, 3), 1, 1.5, "cgroup quota of 1.5 CPUs")
TOPICS = {
    "cores", "caches", "hardware counters", "software counters", "frequency", "load", "compiler", "PyTorch",
    "environment", "packages",
}  # fmt: skip


def test_doctor_describes_this_machine_as_json():
    result = invoke("doctor", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert {finding["topic"] for finding in document["findings"]} == TOPICS
    assert {finding["state"] for finding in document["findings"]} <= set(State)
    assert all(finding["advice"] for finding in document["findings"] if finding["state"] == "mend")
    assert document["machine"]["fingerprint"] == read_machine().fingerprint
    assert Machine.from_json(document["machine"]) == read_machine()
    assert document["usable"]["cores"] == usable_cores().cores
    assert len(document["cases"]) == len(read_machine().cases())


def test_doctor_tells_people_within_80_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    result = invoke("doctor")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert read_machine().fingerprint in result.stdout
    assert all(topic in result.stdout for topic in TOPICS)
    assert "\\n" not in result.stdout


@pytest.mark.parametrize(
    ("usable", "state", "advice"),
    [
        (THROTTLED, State.NOTE, "a quota of 2 would fill it"),
        (UsableCores((0, 1, 2), 1, 0.5, "cgroup quota of 0.5 CPUs"), State.MEND, "raise the quota to at least 1"),
        (UsableCores((0, 1, 2), 2, 2.0, "cgroup quota of 2 CPUs"), State.OK, None),
        (UsableCores((0, 1, 2), 2, 1.99999, "cgroup quota of 1.99999 CPUs"), State.OK, None),
        (UsableCores((0, 1), 2, None, "cpuset 0-1"), State.NOTE, "widen it"),
        (UsableCores((0, 1), 2, 8.0, "affinity mask 0-1"), State.NOTE, "widen it"),
    ],
)
def test_what_limits_the_process_is_named_with_what_to_do(usable, state, advice):
    finding = check_limits(usable)
    assert (finding.state, usable.limited_by in finding.found) == (state, True)
    assert (advice or "") in (finding.advice or "")


def test_torchs_default_threads_under_a_quota_are_a_thing_to_mend():
    finding = check_torch("2.13.0", 4, THROTTLED)
    assert finding.state is State.MEND
    assert "more than the 1 usable (cgroup quota of 1.5 CPUs)" in finding.advice
    assert "OMP_NUM_THREADS=1" in finding.advice


@pytest.mark.parametrize(
    ("variable", "value", "advice"),
    [
        ("OMP_NUM_THREADS", "8", "more threads than the 4 usable cores"),
        ("OMP_NUM_THREADS", "8,2", "more threads than the 4 usable cores"),
        ("OMP_NUM_THREADS", "8 ,2", "more threads than the 4 usable cores"),
        ("OMP_NUM_THREADS", " 8 , 2 ", "more threads than the 4 usable cores"),
        ("MKL_NUM_THREADS", "8", "more threads"),
        ("OMP_MAX_ACTIVE_LEVELS", "0", "a single thread"),
        ("OMP_THREAD_LIMIT", "2", "keeps teams below"),
        ("OMP_WAIT_POLICY", "ACTIVE", "keep their cores"),
        ("KMP_BLOCKTIME", "200", "keep their cores"),
        ("KMP_BLOCKTIME", "200ms", "keep their cores"),
        ("KMP_BLOCKTIME", "200us", "keep their cores"),
        ("KMP_BLOCKTIME", "infinite", "keep their cores"),
        ("GOMP_SPINCOUNT", "30000000000", "keep their cores"),
        ("GOMP_SPINCOUNT", "2m", "keep their cores"),
        ("GOMP_SPINCOUNT", " 301 K", "keep their cores"),
        ("GOMP_SPINCOUNT", "INFINITY", "keep their cores"),
        ("OMP_PROC_BIND", "close", "against the plan's"),
        ("KMP_AFFINITY", "granularity=fine,compact,1,0", "against the plan's"),
        ("KMP_AFFINITY", "verbose, Scatter", "against the plan's"),
        ("KMP_AFFINITY", "granularity=fine,proclist=[0,3],explicit", "against the plan's"),
        ("GOMP_CPU_AFFINITY", "0-3", "against the plan's"),
        ("OMP_PLACES", "cores", "the main thread to the first"),
        ("OMP_PLACES", "{0:4}", "the main thread to the first"),
        ("OMP_DYNAMIC", "TRUE", "fewer threads than asked"),
    ],
)
def test_a_harmful_variable_is_named_with_the_harm(variable, value, advice):
    (finding,) = check_environment({variable: value, "HOME": "/"}, FOUR)
    assert (finding.state, finding.found) == (State.MEND, f"{variable}={value}")
    assert advice in finding.advice


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OMP_NUM_THREADS", "4"), ("OMP_NUM_THREADS", "nonsense"), ("OMP_WAIT_POLICY", "passive"),
        ("KMP_BLOCKTIME", "0"), ("OMP_PROC_BIND", "false"), ("KMP_AFFINITY", "none"), ("OMP_DYNAMIC", "false"),
        ("GOMP_SPINCOUNT", "100"), ("GOMP_SPINCOUNT", "300k"), ("GOMP_SPINCOUNT", "lots"), ("OMP_THREAD_LIMIT", "64"),
        ("PATH", "active"), ("OMP_MAX_ACTIVE_LEVELS", "1"), ("OMP_NUM_THREADS", "4 ,8"), ("OMP_PLACES", " "),
        ("KMP_AFFINITY", "verbose,none"), ("KMP_AFFINITY", "verbose"), ("KMP_AFFINITY", "granularity=fine,disabled"),
    ],
)  # fmt: skip
def test_a_harmless_variable_is_left_alone(variable, value):
    (finding,) = check_environment({variable: value}, FOUR)
    assert finding.state is State.OK


def test_a_mask_that_changes_as_torch_is_imported_is_named():
    assert check_binding(frozenset({0, 1}), frozenset({0, 1})) == []
    (finding,) = check_binding(frozenset({0, 1, 2}), frozenset({0}))
    assert (finding.state, "binds the main thread to CPU 0 of 0-2" in finding.found) == (State.MEND, True)


def plan_of(*statuses: CounterStatus, groups: tuple[tuple[Event, ...], ...] = ()) -> CountingPlan:
    return CountingPlan(groups, (), (), {status.name: status for status in statuses})


def test_counters_that_cannot_be_read_say_why_and_what_still_works():
    hardware = [
        CounterStatus("cycles", "hardware", False, "not permitted (perf_event_paranoid=4); lower it"),
        CounterStatus("instructions", "hardware", True),
    ]
    partly, software = check_counters(plan_of(*hardware, CounterStatus("faults", "software", True)), paranoid=4)
    assert partly.state is State.NOTE
    assert partly.found == "1 of 2 events can be counted; not cycles: not permitted (perf_event_paranoid=4); lower it"
    assert "FLOPs" in partly.advice
    assert (software.state, software.found) == (State.OK, "1 of 1 events can be counted (perf_event_paranoid=4)")
    none, _ = check_counters(plan_of(hardware[0]), paranoid=None)
    assert none.found.startswith("0 of 1 events can be counted: not permitted")
    assert "--counters cachegrind" in none.advice


def test_a_busy_machine_is_to_be_mended_before_timing():
    busy = check_load(Load(0.3, 0.9, 0.02, 4))
    assert (busy.state, busy.found) == (
        State.MEND, "others use 30% of the 4 cpus (the busiest 90%, 2% taken by other virtual machines)",
    )  # fmt: skip
    assert check_load(Load(0.05, 0.1, 0.0, 4)).state is State.OK
    assert check_load(None).state is State.NOTE


def test_the_compiler_that_is_named_is_looked_for_first():
    paths = {"g++": "/usr/bin/g++", "icpx": "/opt/icpx"}
    assert check_compiler(paths.get, "icpx").found == "/opt/icpx"
    assert check_compiler(paths.get, "missing").found == "/usr/bin/g++"
    assert "makes no plans" in check_compiler({}.get, None).advice
    assert "fused operators" in check_compiler({}.get, None, engine=True).advice


def test_missing_packages_name_their_extra():
    findings = check_packages(lambda name: name not in ("flask", "dask"))
    assert [(f.found, f.advice) for f in findings] == [
        ("service: no flask", "pip install 'threadcast[service]'"),
        ("fleet: no dask", "pip install 'threadcast[fleet]'"),
    ]
    assert check_packages(lambda name: True)[0].state is State.OK


@pytest.mark.needs_root
@pytest.mark.skipif(
    os.geteuid() != 0 or not os.access(V1_CPU / "cgroup.procs", os.W_OK) or len(os.sched_getaffinity(0)) < 2,
    reason="needs root, a version 1 cpu hierarchy and two CPUs",
)
def test_doctor_inside_a_real_quota_warns_of_torchs_default_and_of_what_openmp_binds():
    group = V1_CPU / f"threadcast-doctor-{os.getpid()}"
    program = (
        "import os, sys, pathlib\n"
        "pathlib.Path(sys.argv.pop(1), 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from threadcast.cli.main import main\n"
        "main()\n"
    )
    environment = {name: text for name, text in os.environ.items() if not name.startswith("OMP_")}
    environment["OMP_PLACES"] = "cores"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("150000")
        done = subprocess.run(
            [sys.executable, "-c", program, str(group), "doctor", "--json"],
            capture_output=True, text=True, check=True, timeout=HANGS_S, env=environment,
        )  # fmt: skip
    finally:
        group.rmdir()
    findings = {finding["topic"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["cores"]["found"] == "1 usable core, limited by the cgroup quota of 1.5 CPUs"
    assert findings["PyTorch"]["state"] == "mend"
    assert findings["binding"]["state"] == findings["environment"]["state"] == "mend"
    assert findings["binding"]["found"].startswith("importing PyTorch binds the main thread to CPU ")
    assert findings["environment"]["found"] == "OMP_PLACES=cores"
