"""What the machine offers, on trees of machines that are not here and on the one that is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import trees
from threadcast.core import Affinity, Case, Machine, read_machine, usable_cores
from threadcast.core.errors import InvalidInput
from threadcast.core.sysfs import format_cpus, parse_cpus
from threadcast.core.topology import whole_cores

V1_CPU = Path("/sys/fs/cgroup/cpu")


@pytest.fixture(scope="module")
def xeon_phi(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    root = tmp_path_factory.mktemp("xeon_phi")
    cpus = trees.xeon_phi_7250(root)
    assert len(cpus) == 272
    return read_machine(root, affinity=cpus)


def test_xeon_phi_has_68_cores_and_exactly_the_papers_68_cases(xeon_phi):
    machine, cases = xeon_phi, xeon_phi.cases()
    assert len(machine) == 68
    assert machine.threads_per_core == 4
    assert [len(group) for group in machine.groups] == [2] * 34
    assert [c.threads for c in cases if c.affinity is Affinity.SPREAD] == list(range(1, 35))
    assert [c.threads for c in cases if c.affinity is Affinity.COMPACT] == list(range(2, 69, 2))
    assert machine.cores[0].cpus == (0, 68, 136, 204)
    assert {core.node for core in machine.cores} == {0}


def test_epyc_groups_are_its_ccds_and_stay_in_their_socket(tmp_path):
    machine = read_machine(tmp_path, affinity=trees.epyc_two_sockets(tmp_path))
    assert (len(machine), machine.threads_per_core) == (128, 2)
    assert [len(group) for group in machine.groups] == [8] * 16
    socket = {core.id: core.socket for core in machine.cores}
    assert [socket[group[0]] for group in machine.groups] == [0] * 8 + [1] * 8
    assert {core.node for core in machine.cores} == {0, 1}
    assert machine.cores[0].max_hz == 3_529_052_000.0
    l3 = [cache for cache in machine.caches if cache.level == 3]
    assert (len(l3), l3[0].size_bytes, l3[0].cores) == (16, 32 << 20, tuple(range(8)))


def test_a_whole_core_has_hardware_threads_that_this_process_may_not_use(tmp_path):
    trees.epyc_two_sockets(tmp_path)
    assert whole_cores([0, 1], tmp_path) == {0, 1, 128, 129}
    assert whole_cores([128], tmp_path) == {0, 128}
    assert whole_cores([500], tmp_path) == {500}


@pytest.mark.parametrize("capacities", [False, True])
def test_fast_cores_of_a_hybrid_come_first_in_groups_of_one_and_small_ones_in_fours(tmp_path, capacities):
    machine = read_machine(tmp_path, affinity=trees.hybrid_laptop(tmp_path, capacities=capacities))
    assert [len(group) for group in machine.groups] == [1] * 6 + [4] * 2
    assert [len(core.cpus) for core in machine.cores] == [2] * 6 + [1] * 8
    first_cpus = [core.cpus[0] for core in machine.cores]
    assert first_cpus == [8, 10, 12, 14, 16, 18, 0, 1, 2, 3, 4, 5, 6, 7]


def test_a_mask_of_equal_structure_is_the_same_machine_wherever_it_lies(tmp_path):
    trees.epyc_two_sockets(tmp_path)
    first = read_machine(tmp_path, affinity=[0, 1, 2, 8])
    for mask in ([16, 24, 25, 26], [70, 80, 81, 82], [40, 41, 42, 32]):
        assert read_machine(tmp_path, affinity=mask) == first, mask
    assert read_machine(tmp_path, affinity=[0, 1, 8, 9]) != first
    assert read_machine(tmp_path, affinity=[0, 1, 2, 64]) != first


def test_arm_without_smt_has_one_affinity_and_a_name(tmp_path):
    machine = read_machine(tmp_path, affinity=trees.graviton3(tmp_path))
    assert machine.name == "Neoverse V1"
    assert (len(machine), len(machine.groups), machine.threads_per_core) == (64, 1, 1)
    assert machine.cases() == tuple(Case(n) for n in range(1, 65))


def test_offline_cpus_are_not_used(tmp_path):
    cpus = trees.epyc_two_sockets(tmp_path, per_socket=8, offline=[*range(16, 32), 5])
    machine = read_machine(tmp_path, affinity=range(32))
    assert (len(cpus), len(machine), machine.threads_per_core) == (15, 15, 1)
    assert 5 not in {cpu for core in machine.cores for cpu in core.cpus}
    assert [len(group) for group in machine.groups][:2] == [8, 7]  # larger groups first


@pytest.mark.parametrize("cores", [0, -1, 9])
def test_asking_for_more_cores_than_usable_names_what_limits_them(tmp_path, cores):
    trees.plain(tmp_path, 64)
    with pytest.raises(InvalidInput, match=rf"cores={cores} must be from 1 to the 8 .*affinity mask 0-7"):
        read_machine(tmp_path, affinity=range(8), cores=cores)


def test_a_cpuset_limits_the_machine_and_is_named(tmp_path):
    trees.epyc_two_sockets(tmp_path, per_socket=16)
    trees.cgroup_v2(tmp_path, "/", {"cpuset.cpus.effective": "8-15,40-47"})
    usable = usable_cores(tmp_path, affinity=range(64))
    assert (usable.cores, usable.limited_by) == (8, "cpuset 8-15,40-47")
    machine = read_machine(tmp_path, affinity=range(64))
    assert (len(machine), len(machine.groups)) == (8, 1)


def test_a_quota_of_one_and_a_half_cpus_leaves_one_whole_core(tmp_path):
    trees.plain(tmp_path, 8)
    trees.cgroup_v2(tmp_path, "/", {"cpu.max": "150000 100000"})
    usable = usable_cores(tmp_path, affinity=range(8))
    assert (usable.cores, usable.quota, usable.limited_by) == (1, 1.5, "cgroup quota of 1.5 CPUs")
    assert len(usable.cpus) == 8
    assert len(read_machine(tmp_path, affinity=range(8))) == 1


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_a_version_1_quota_is_read_whatever_is_mounted_with_it(tmp_path, controllers):
    trees.plain(tmp_path, 8)
    files = {
        f"{controllers}/docker/a/cpu.cfs_quota_us": 250000,
        f"{controllers}/docker/a/cpu.cfs_period_us": 100000,
        f"{controllers}/cpu.cfs_quota_us": -1,
        f"{controllers}/cpu.cfs_period_us": 100000,
    }
    trees.cgroup_v1(tmp_path, "/docker/a", files, controllers=controllers)
    usable = usable_cores(tmp_path, affinity=range(8))
    assert (usable.cores, usable.quota) == (2, 2.5)


def test_the_smallest_quota_above_a_nested_group_wins(tmp_path):
    trees.plain(tmp_path, 16)
    files = {
        "kubepods/cpu.max": "1200000 100000",
        "kubepods/pod1/cpu.max": "300000 100000",
        "kubepods/pod1/main/cpu.max": "max 100000",
    }
    trees.cgroup_v2(tmp_path, "/kubepods/pod1/main", files)
    assert usable_cores(tmp_path, affinity=range(16)).quota == 3.0


def test_a_container_sees_its_quota_where_the_hosts_path_is_not_mounted(tmp_path):
    """Docker without a cgroup namespace: the mount shows only the container's own group."""
    trees.plain(tmp_path, 8)
    trees.cgroup_v2(tmp_path, "/docker/abc", {"cpu.max": "200000 100000"}, shown="/docker/abc")
    assert usable_cores(tmp_path, affinity=range(8)).quota == 2.0


@pytest.mark.parametrize(("own", "shown"), [("/", "/../.."), ("/../other", "/"), ("/deep/er", "/")])
def test_a_group_out_of_sight_leaves_the_mounts_own_limits(tmp_path, own, shown):
    trees.plain(tmp_path, 8)
    trees.cgroup_v2(tmp_path, own, {"cpu.max": "200000 100000"}, shown=shown)
    assert usable_cores(tmp_path, affinity=range(8)).quota == 2.0


@pytest.mark.parametrize("text", ["", "max", "max 100000", "0 100000", "100000 0", "lots", "-1 100000", "1 2 3"])
def test_what_is_no_quota_does_not_limit(tmp_path, text):
    trees.plain(tmp_path, 4)
    trees.cgroup_v2(tmp_path, "/", {"cpu.max": text})
    usable = usable_cores(tmp_path, affinity=range(4))
    assert (usable.cores, usable.quota) == (4, None)


@pytest.mark.parametrize(
    ("missing", "cores", "groups"),
    [("cpufreq", 16, 2), ("cache", 16, 1), ("topology", 32, 16)],  # the last: threads that share a first level
)
def test_a_missing_directory_costs_only_what_it_tells(tmp_path, missing, cores, groups):
    cpus = trees.epyc_two_sockets(tmp_path, per_socket=8)
    for cpu in cpus:
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}" / missing
        folder.rename(folder.with_name("gone"))
    machine = read_machine(tmp_path, affinity=cpus)
    assert (len(machine), len(machine.groups)) == (cores, groups)


def test_garbled_files_are_as_good_as_missing(tmp_path):
    cpus = trees.plain(tmp_path, 4)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            path.write_bytes(b"\xff\xfe garbage 9-1,")
    machine = read_machine(tmp_path, affinity=cpus)
    assert (len(machine), machine.caches) == (4, ())


@given(st.frozensets(st.integers(0, 300)))
def test_cpu_lists_round_trip(cpus):
    assert (parse_cpus(format_cpus(cpus)) or frozenset()) == cpus


@given(st.text(alphabet="0123456789-, x", max_size=12))
def test_no_cpu_list_raises(text):
    cpus = parse_cpus(text)
    assert cpus is None or all(cpu >= 0 for cpu in cpus)


def test_this_machine_is_read_within_its_affinity():
    mask = os.sched_getaffinity(0)
    usable = usable_cores()
    assert set(usable.cpus) <= mask
    assert 1 <= usable.cores <= len(mask)
    machine = read_machine()
    assert len(machine) == usable.cores
    assert {cpu for core in machine.cores for cpu in core.cpus} <= mask
    assert machine == read_machine()


def test_this_threads_affinity_is_what_counts():
    mask = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mask)})
        assert usable_cores().cpus == (min(mask),)
    finally:
        os.sched_setaffinity(0, mask)


@pytest.mark.needs_root
@pytest.mark.skipif(
    os.geteuid() != 0 or not (V1_CPU / "cpu.cfs_quota_us").parent.is_dir() or not os.access(V1_CPU, os.W_OK),
    reason="needs root and a version 1 cpu hierarchy",
)
def test_a_real_version_1_quota_is_seen_from_inside():
    group = V1_CPU / f"threadcast-test-{os.getpid()}"
    inner = group / "inner"
    program = (
        "import os, sys, pathlib\n"
        "pathlib.Path(sys.argv[1], 'cgroup.procs').write_text(str(os.getpid()))\n"
        "from threadcast.core import usable_cores\n"
        "usable = usable_cores()\n"
        "print(usable.cores, usable.quota, usable.limited_by, sep=';')\n"
    )
    try:
        inner.mkdir(parents=True)
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("150000")
        done = subprocess.run(
            [sys.executable, "-c", program, str(inner)], capture_output=True, text=True, check=True, timeout=60
        )
    finally:
        inner.rmdir()
        group.rmdir()
    cores = 1 if len(os.sched_getaffinity(0)) > 1 else len(os.sched_getaffinity(0))
    expected = f"{cores};1.5;" + ("cgroup quota of 1.5 CPUs" if len(os.sched_getaffinity(0)) > 1 else "None")
    assert done.stdout.strip() == expected


@pytest.mark.parametrize("online", ["0-3", "0", ""])
@pytest.mark.parametrize("kept", [range(16), range(4), ()])
def test_a_container_whose_cpus_are_numbered_anew_has_all_those_of_its_mask(tmp_path, online, kept):
    """LXCFS lists as many CPUs as a container has, from 0 on; Sysbox shows folders of these only."""
    trees.plain(tmp_path, 16)
    trees.put(tmp_path, "sys/devices/system/cpu/online", online)
    for cpu in set(range(16)) - set(kept):
        shutil.rmtree(tmp_path / f"sys/devices/system/cpu/cpu{cpu}")
    mask = (2, 5, 10, 12)
    usable = usable_cores(tmp_path, affinity=mask)
    assert (usable.cores, usable.cpus) == (4, mask)
    assert [core.cpus for core in read_machine(tmp_path, affinity=mask).cores] == [(2,), (5,), (10,), (12,)]
    trees.cgroup_v2(tmp_path, "/", {"cpuset.cpus.effective": "2,5,10,12"})
    assert (usable_cores(tmp_path, affinity=mask).cpus) == mask


def test_the_kernels_mask_alone_says_what_may_be_used(tmp_path, monkeypatch):
    """Also against a cpuset that is another group's, and against CPUs that are said to be offline."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 5, 10, 12})
    trees.plain(tmp_path, 4)
    trees.put(tmp_path, "sys/devices/system/cpu/cpu2/online", 0)
    trees.cgroup_v2(tmp_path, "/", {"cpuset.cpus.effective": "0-3"})
    assert usable_cores(tmp_path).cpus == (2, 5, 10, 12)


def test_a_cpu_that_is_not_described_belongs_to_the_core_that_names_it(tmp_path):
    trees.epyc_two_sockets(tmp_path, per_socket=8)
    shutil.rmtree(tmp_path / "sys/devices/system/cpu/cpu16")
    assert usable_cores(tmp_path, affinity=[0, 1, 16]).cores == 2
    assert [core.cpus for core in read_machine(tmp_path, affinity=[0, 1, 16]).cores] == [(0, 16), (1,)]


@pytest.mark.parametrize(
    ("quota_us", "period_us", "cores"),
    [
        (199_999, 100_000, 2), (99_999, 50_000, 2), (399_600, 100_000, 4), (99_999, 100_000, 1), (50_000, 100_000, 1),
        (799_999, 100_000, 8), (199_000, 100_000, 1), (390_000, 100_000, 3), (1_999_999, 1_000_000, 2),
        (200_001, 100_000, 2),
    ],
)  # fmt: skip
def test_a_quota_that_lacks_next_to_nothing_of_a_cpu_has_it(tmp_path, quota_us, period_us, cores):
    for version in (1, 2):
        root = tmp_path / str(version)
        trees.plain(root, 8)
        if version == 2:
            trees.cgroup_v2(root, "/a", {"a/cpu.max": f"{quota_us} {period_us}"})
        else:
            names = {"cpu.cfs_quota_us": quota_us, "cpu.cfs_period_us": period_us}
            trees.cgroup_v1(root, "/a", {f"cpu,cpuacct/a/{name}": number for name, number in names.items()})
        usable = usable_cores(root, affinity=range(8))
        assert (usable.cores, usable.quota) == (cores, quota_us / period_us)
        assert (usable.limited_by is None) == (cores == 8)
        assert len(read_machine(root, affinity=range(8))) == cores
