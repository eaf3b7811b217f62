"""kill -9 of the daemon at many points: afterwards another host sees a whole version or none, and nothing is lost."""

import subprocess

import harness
from harness import CHAIN, expect_same_tree


def check_after_kill(t, point, writer, bucket, model, source, env=None):
    """The daemon is dead. Another host sees all or nothing; after a remount the draft is there, or is the version."""
    other = t.host(f"other-{point}", env)
    seen = other.versions(bucket, model)
    assert seen in ([], ["v"]), seen
    if seen:
        other.ok("get", bucket, f"{model}/v", t.tmp / f"dest-{point}")
        expect_same_tree(t.tmp / f"dest-{point}", source)
    mount = writer.mount(bucket, name=f"again-{point}")
    expect_same_tree(mount / f"{model}/v", source)
    writer.ok("commit", mount / f"{model}/v")
    assert mount.state(f"{model}/v") == "committed"
    expect_same_tree(mount / f"{model}/v", source)
    mount.umount()
    other.ok("get", bucket, f"{model}/v", t.tmp / f"after-{point}")
    expect_same_tree(t.tmp / f"after-{point}", source)


def test_daemon_killed_at_each_request_of_a_publish_s3(t):
    bucket = t.s3()
    t.host("base", bucket.env).ok("publish", CHAIN[0], bucket.url, "base/v")
    point, survived = 0, False
    while not survived:
        point += 1
        writer = t.host(f"writer-{point}", bucket.env)
        mount = writer.mount(bucket.url, "--settle", "1h", "--settle-live", "1h")
        (mount / f"m{point}").mkdir()
        subprocess.run(["cp", "-r", CHAIN[1], mount / f"m{point}/v"], check=True)
        bucket.proxy.kill_at_request(point, mount.daemon.pid)
        done = writer.run("commit", mount / f"m{point}/v")
        survived = mount.daemon.poll() is None and done.returncode == 0
        mount.kill9()
        check_after_kill(t, point, writer, bucket.url, f"m{point}", CHAIN[1], bucket.env)
    print(f"{point - 1} points")
    assert point > 4


def kill_at_system_calls(t, calls):
    """strace kills the daemon at the n-th of these calls, n = 1, 2, … until a publish survives."""
    bucket = t.dir_bucket()
    for call in calls:
        point, survived = 0, False
        while not survived:
            point += 1
            name = f"{call}-{point}"
            writer = t.host(name)
            mount = writer.mount(bucket, "--settle", "1h", "--settle-live", "1h")
            (mount / name).mkdir()
            subprocess.run(["cp", "-r", CHAIN[1], mount / f"{name}/v"], check=True)
            tracer = t.process("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e",
                               f"inject={call}:signal=KILL:when={point}", "-p", mount.daemon.pid)
            harness.wait_for("strace", lambda: traced(mount.daemon.pid))
            done = writer.run("commit", mount / f"{name}/v")
            survived = mount.daemon.poll() is None and done.returncode == 0
            mount.kill9()
            tracer.wait(harness.TIMEOUT)
            check_after_kill(t, name, writer, bucket, name, CHAIN[1])
        print(f"{call}: {point - 1} points")


def traced(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in status)


def test_daemon_killed_at_its_writes_to_disk_during_a_publish(t):
    kill_at_system_calls(t, ["fsync,fdatasync", "linkat", "rename,renameat2"])


def test_daemon_killed_while_reading_serves_right_bytes_afterwards(t):
    bucket = t.dir_bucket()
    writer = t.host("writer")
    for i in range(8):
        writer.ok("publish", CHAIN[i], bucket, f"m/v{i}")
    reader = t.host("reader")
    for i in range(8):
        mount = reader.mount(bucket)
        for j in range(i + 1):
            path = mount / f"m/v{j}/model.safetensors"
            # Half way in: later blocks are missing, some are in memory only.
            with open(path, "rb") as file:
                file.read(300_000 + 10_000 * i)
        mount.kill9()
    mount = reader.mount(bucket)
    for i in range(8):
        expect_same_tree(mount / f"m/v{i}", CHAIN[i])
    mount.umount()


harness.main(globals())
