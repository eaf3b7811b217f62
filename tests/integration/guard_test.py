"""The guard beside a daemon: it ends a connection that a killed daemon would hold for ever, and is no burden otherwise."""

import errno
import os
import pathlib
import signal
import subprocess

import harness
from harness import CHAIN, TIMEOUT, WEIGHTFS, wait_for

STUCK_DAEMON = pathlib.Path(WEIGHTFS).parent / "tests/integration/stuck_daemon"


def children(pid):
    return [int(child) for task in os.listdir(f"/proc/{pid}/task")
            for child in pathlib.Path(f"/proc/{pid}/task/{task}/children").read_text().split()]


def guard_of(daemon):
    found = [pid for pid in children(daemon.pid) if pathlib.Path(f"/proc/{pid}/comm").read_text() == "wfs-guard\n"]
    assert len(found) == 1, f"guards of {daemon.pid}: {found}"
    return found[0]


def is_alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def killed_in_a_notification(t, connections):
    mount = t.tmp / "mnt"
    mount.mkdir()
    # Whatever the guard does: nothing of this test stays behind.
    t.cleanup.callback(subprocess.run, ["umount", "-f", "-l", mount], check=False, capture_output=True)
    daemon = t.process(STUCK_DAEMON, mount, connections, stdout=subprocess.PIPE, text=True)
    wait_for("mount", lambda: harness.mounted(mount))
    maker = t.process("mkdir", mount / "x", stderr=subprocess.PIPE, text=True)
    assert daemon.stdout.readline() == "stuck\n"
    guard = guard_of(daemon)
    daemon.kill()
    _, error = maker.communicate(timeout=TIMEOUT)
    assert maker.returncode == 1 and "File exists" not in error, error
    daemon.wait(TIMEOUT)
    wait_for("end of the guard", lambda: not is_alive(guard))
    try:
        os.stat(mount)
        raise AssertionError("the mount answers")
    except OSError as stat:
        assert stat.errno == errno.ENOTCONN, stat


def test_a_daemon_killed_in_a_notification_ends_by_fusectl(t):
    connections = t.tmp / "connections"
    connections.mkdir()
    subprocess.run(["mount", "-t", "fusectl", "none", connections], check=True)
    t.cleanup.callback(subprocess.run, ["umount", connections], check=True)
    killed_in_a_notification(t, connections)


def test_a_daemon_killed_in_a_notification_ends_by_a_forced_umount(t):
    killed_in_a_notification(t, t.tmp / "not-there")


def test_umount_ends_the_guard(t):
    mount = t.host("a").mount(t.dir_bucket())
    guard = guard_of(mount.daemon)
    mount.umount()
    assert not is_alive(guard)


def test_the_guard_outlives_signals_and_the_daemon_outlives_the_guard(t):
    mount = t.host("a").mount(t.dir_bucket())
    guard = guard_of(mount.daemon)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
        os.kill(guard, number)
    assert not os.listdir(mount.dir)
    assert is_alive(guard)
    os.kill(guard, signal.SIGKILL)
    wait_for("end of the guard", lambda: not is_alive(guard))
    (mount / "m").mkdir()
    mount.host.ok("publish", CHAIN[0], t.dir_bucket(), "n/v0")
    mount.umount()


def test_kill_9_of_the_daemon_ends_the_guard(t):
    mount = t.host("a").mount(t.dir_bucket())
    guard = guard_of(mount.daemon)
    # Nothing but its own: a log that somebody reads, a cache that is taken over, a directory that is removed stay free.
    held = {os.readlink(f"/proc/{guard}/fd/{fd}") for fd in os.listdir(f"/proc/{guard}/fd")}
    assert {name.split(":")[0] for name in held} <= {"/dev/null", "pipe", "anon_inode"}, held
    assert os.readlink(f"/proc/{guard}/cwd") == "/"
    mount.daemon.kill()
    mount.daemon.wait(TIMEOUT)
    wait_for("end of the guard", lambda: not is_alive(guard))


harness.main(globals())
