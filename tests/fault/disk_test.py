"""Disks that are full, read-only or too small, and a daemon that is killed again and again: what was promised is there."""

import errno
import hashlib
import os
import pathlib
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
import harness
from harness import CHAIN, expect_same_tree

KILLS = int(os.environ.get("WEIGHTFS_KILLS", "6"))


def small_disk(t, size):
    disk = t.tmp / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=True)
    t.cleanup.callback(subprocess.run, ["umount", "-l", disk], check=True)
    return disk


def published(t, versions=3):
    bucket, writer = t.dir_bucket(), t.host("writer")
    for i in range(versions):
        writer.ok("publish", CHAIN[i], bucket, f"m/v{i}")
    return bucket


def test_a_full_disk_under_the_cache_costs_speed_and_no_byte(t):
    bucket, disk = published(t), small_disk(t, "4m")
    host = t.host("reader", {"WEIGHTFS_CACHE": str(disk)})
    mount = host.mount(bucket)
    filler = os.open(disk / "filler", os.O_CREAT | os.O_WRONLY)
    try:
        while os.write(filler, bytes(4096)):
            pass
    except OSError as error:
        assert error.errno == errno.ENOSPC, error
    os.close(filler)
    for i in (2, 0, 1):
        expect_same_tree(mount / f"m/v{i}", CHAIN[i])
    mount.umount()


def test_a_disk_that_becomes_read_only_under_the_cache_costs_no_byte(t):
    bucket, disk = published(t), small_disk(t, "64m")
    host = t.host("reader", {"WEIGHTFS_CACHE": str(disk)})
    mount = host.mount(bucket)
    expect_same_tree(mount / "m/v0", CHAIN[0])
    mount.umount()
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    done = host.run("get", bucket, "m/v1", t.tmp / "got")
    if done.returncode == 0:
        expect_same_tree(t.tmp / "got", CHAIN[1])
    else:
        assert done.returncode == 1 and len(done.stderr.splitlines()) >= 1 and "ead-only" in done.stderr, done


def test_a_quota_smaller_than_a_block_costs_speed_and_no_byte(t):
    bucket = published(t)
    mount = t.host("reader").mount(bucket, "--cache-size", "64K")
    for i in (2, 0, 1):
        expect_same_tree(mount / f"m/v{i}", CHAIN[i])
    assert t.host("reader").json("stats", mount.dir)["cache_bytes"] <= 64 << 10
    mount.umount()


class Worker:
    """Writes drafts with fsync and publishes; notes what the filesystem has promised, and when."""

    def __init__(self, mount, host, seed):
        self.mount, self.host, self.rng = mount, host, random.Random(seed)
        self.synced, self.committed = {}, {}

    def run(self, number):
        """Until the daemon dies."""
        for i in range(10_000):
            name = f"r{number}-{i}"
            path = self.mount.dir / "m" / name
            data = CHAIN[self.rng.randrange(8)].joinpath("model.safetensors").read_bytes() + self.rng.randbytes(self.rng.randrange(9))
            try:
                path.mkdir()
                with open(path / "weights", "wb") as file:
                    file.write(data)
                    os.fsync(file.fileno())
                for folder in (path, path.parent):
                    fd = os.open(folder, os.O_RDONLY)
                    os.fsync(fd)
                    os.close(fd)
            except OSError:
                return
            self.synced[name] = hashlib.sha256(data).hexdigest()
            if i % 2 and self.host.run("commit", path, timeout=120).returncode == 0:
                self.committed[name] = self.synced[name]


def test_what_was_promised_survives_kill_9_again_and_again(t):
    bucket, host = t.dir_bucket(), t.host("writer")
    options = ("--settle", "1h", "--settle-live", "1h")
    mount = host.mount(bucket, *options)
    (mount / "m").mkdir()
    worker = Worker(mount, host, 1)
    for number in range(KILLS):
        thread = threading.Thread(target=worker.run, args=(number,))
        thread.start()
        time.sleep(0.3 + worker.rng.random())
        mount.daemon.kill()
        mount.daemon.wait(harness.TIMEOUT)
        thread.join(harness.TIMEOUT)
        assert not thread.is_alive()
        mount.clear()
        worker.mount = mount = host.mount(bucket, *options)
        for name, digest in worker.synced.items():
            got = hashlib.sha256((mount / f"m/{name}/weights").read_bytes()).hexdigest()
            assert got == digest, f"{name} after kill {number}"
    reader = t.host("reader")
    assert set(worker.committed) <= set(reader.versions(bucket, "m")) if worker.committed else True
    for name, digest in worker.committed.items():
        reader.ok("get", bucket, f"m/{name}", t.tmp / name)
        assert hashlib.sha256((t.tmp / name / "weights").read_bytes()).hexdigest() == digest, name
    if worker.committed:
        reader.ok("verify", bucket, "--deep", timeout=300)
    print(f"{KILLS} kills, {len(worker.synced)} drafts synced, {len(worker.committed)} versions committed, all there")
    assert worker.synced
    mount.umount()


harness.main(globals())
