"""Two daemons publish at once; writers die in the middle of a copy."""

import collections
import os
import re
import shutil
import subprocess
import sys
import threading
import time

import harness
from harness import CHAIN, expect_same_tree

ROUNDS = 50


def race(t, bucket, env=None):
    hosts = [t.host(name, env) for name in ("one", "two")]
    mounts = [host.mount(bucket, "--settle", "1h", "--settle-live", "1h", "--poll", "1s") for host in hosts]
    sources = [CHAIN[1], CHAIN[2]]
    won = collections.Counter()
    for round_number in range(ROUNDS):
        # Even rounds: one name. Odd rounds: a name each.
        names = ["v" if round_number % 2 == 0 else f"v{i}" for i in (0, 1)]
        paths = [mount / f"m/r{round_number}-{name}" for mount, name in zip(mounts, names)]
        for path, source in zip(paths, sources):
            path.parent.mkdir(exist_ok=True)
            subprocess.run(["cp", "-r", source, path], check=True)
        codes = [None, None]

        def commit(i):
            codes[i] = hosts[i].run("commit", paths[i], timeout=120)

        threads = [threading.Thread(target=commit, args=(i,)) for i in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        winners = [i for i in (0, 1) if codes[i].returncode == 0]
        text = "\n".join(done.stderr for done in codes)
        assert len(winners) == (1 if names[0] == names[1] else 2), f"round {round_number}: {text}"
        if names[0] == names[1]:
            won[winners[0]] += 1
            loser = 1 - winners[0]
            # The loser keeps its draft, whole.
            expect_same_tree(paths[loser], sources[loser])
            os.rename(paths[loser], mounts[loser] / f"m/.lost-{round_number}")
    expected = {f"r{n}-v" for n in range(0, ROUNDS, 2)} | {f"r{n}-v{i}" for n in range(1, ROUNDS, 2) for i in (0, 1)}
    reader = t.host("reader", env)
    assert set(reader.versions(bucket, "m")) == expected
    reader.ok("verify", bucket, "--deep", timeout=300)
    print(f"one name: won {dict(won)}")
    for mount in mounts:
        mount.umount()


def test_execve_with_a_file_of_a_draft_open_ends_and_interrupts_nothing(t):
    # execve closes what is O_CLOEXEC while it holds the lock that /proc/PID/stat waits for: a daemon that read that file
    # to answer the close would wait for ever, and with it everybody who looks at the process.
    mount = t.host("a").mount(t.dir_bucket(), "--settle", "200ms")
    (mount / "m").mkdir()
    shutil.copytree(CHAIN[0], mount / "m/.v.tmp")
    script = "import os, sys; fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND); os.execv('/bin/true', ['true'])"
    process = t.process(sys.executable, "-c", script, mount / "m/.v.tmp/model.safetensors")
    assert process.wait(harness.TIMEOUT) == 0
    assert not mount.state("m/.v.tmp").startswith("interrupted"), mount.state("m/.v.tmp")
    os.rename(mount / "m/.v.tmp", mount / "m/v")
    mount.wait_committed("m/v")
    expect_same_tree(mount / "m/v", CHAIN[0])
    mount.umount()


def test_two_daemons_race_fifty_times(t):
    race(t, t.dir_bucket())


def test_two_daemons_race_fifty_times_s3(t):
    bucket = t.s3()
    race(t, bucket.url, bucket.env)


def system_calls(command, trace):
    """[name] of the calls of a traced command, in order."""
    subprocess.run(["strace", "-qq", "-o", trace, *map(str, command)], check=True)
    with open(trace, encoding="utf-8", errors="replace") as lines:
        return [match[1] for line in lines if (match := re.match(r"(\w+)\(", line))]


def test_cp_killed_at_each_of_its_system_calls_publishes_no_half_copy(t):
    bucket, host = t.dir_bucket(), t.host("writer")
    mount = host.mount(bucket, "--settle", "200ms", "--settle-live", "500ms")
    (mount / "m").mkdir()
    calls = system_calls(["cp", "-r", CHAIN[1], mount / "m/whole"], t.tmp / "trace")
    mount.wait_committed("m/whole")
    first = next(i for i, call in enumerate(calls) if call.startswith("mkdir"))
    seen, killed = collections.Counter(calls[:first]), []
    for i, call in enumerate(calls[first:]):
        seen[call] += 1
        name = f"m/k{i}"
        done = subprocess.run(["strace", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e",
                               f"inject={call}:signal=KILL:when={seen[call]}", "cp", "-r", CHAIN[1], mount / name],
                              check=False, capture_output=True)
        assert done.returncode != 0, (call, done)
        killed.append(name)
    time.sleep(3)  # six settle times
    published = [name for name in killed if mount.state(name) == "committed"]
    reader = t.host("reader")
    assert sorted(reader.versions(bucket, "m")) == sorted(["whole"] + [name[2:] for name in published])
    # Killed after the last file was whole and closed, a copy is complete: that one may be published, and is right.
    for name in published:
        reader.ok("get", bucket, name, t.tmp / name)
        expect_same_tree(t.tmp / name, CHAIN[1])
    print(f"killed {len(killed)} times, {len(published)} of them complete")
    assert len(killed) > 20 and len(published) < len(killed) / 2
    mount.umount()


def test_cp_stopped_by_ctrl_c_publishes_nothing_until_asked(t):
    bucket, host = t.dir_bucket(), t.host("writer")
    mount = host.mount(bucket, "--settle", "200ms", "--settle-live", "500ms")
    (mount / "m").mkdir()
    big = t.tmp / "big"
    big.mkdir()
    (big / "model.safetensors").write_bytes(CHAIN[0].joinpath("model.safetensors").read_bytes())
    (big / "other.bin").write_bytes(os.urandom(64 << 20))
    # Stopped at a write, so that it is in the middle however fast the disk is.
    copy = t.process("strace", "-qq", "-o", "/dev/null", "-e", "trace=write,copy_file_range", "-e",
                     "inject=write,copy_file_range:signal=INT:when=5", "cp", "-r", big, mount / "m/v")
    assert copy.wait(harness.TIMEOUT) != 0
    time.sleep(2)
    state = mount.state("m/v")
    assert state.startswith("interrupted: "), state
    assert t.host("reader").versions(bucket, "m") == []
    mount.umount()


def test_full_disk_in_the_middle_of_a_copy_publishes_nothing(t):
    disk = t.tmp / "small"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "none", disk], check=True)
    t.cleanup.callback(subprocess.run, ["umount", "-l", disk], check=True)
    bucket, host = t.dir_bucket(), t.host("writer", {"WEIGHTFS_CACHE": str(disk)})
    mount = host.mount(bucket, "--settle", "200ms", "--settle-live", "500ms")
    (mount / "m").mkdir()
    source = t.tmp / "source"
    source.mkdir()
    (source / "a.safetensors").write_bytes(CHAIN[0].joinpath("model.safetensors").read_bytes())
    (source / "b.bin").write_bytes(os.urandom(40 << 20))
    done = subprocess.run(["cp", "-r", source, mount / "m/v"], check=False, capture_output=True, text=True)
    assert done.returncode != 0 and "No space left" in done.stderr, done
    time.sleep(2)
    assert mount.state("m/v").startswith("interrupted: "), mount.state("m/v")
    assert t.host("reader").versions(bucket, "m") == []
    # What is there can be published when asked: also half of it, if that is what is wanted.
    mount.umount()


harness.main(globals())
