"""The bucket goes away: what is cached works on, the rest fails in bounded time and can be interrupted."""

import errno
import mmap
import os
import signal
import subprocess
import time

import harness
from harness import CHAIN, expect_same_tree


def two_versions_one_cached(t):
    bucket = t.s3()
    writer = t.host("writer", bucket.env)
    for i in (0, 1):
        writer.ok("publish", CHAIN[i], bucket.url, f"m/v{i}", "--no-parent")
    reader = t.host("reader", bucket.env)
    mount = reader.mount(bucket.url, "--poll", "1s")
    expect_same_tree(mount / "m/v0", CHAIN[0])
    return bucket, reader, mount


def expect_cached_version(mount):
    expect_same_tree(mount / "m/v0", CHAIN[0])
    path = mount / "m/v0/model.safetensors"
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        assert view[:] == (CHAIN[0] / "model.safetensors").read_bytes()
    assert sorted(os.listdir(mount / "m")) == ["latest", "v0", "v1"]


def test_cached_versions_are_read_without_the_bucket_also_after_a_restart_s3(t):
    bucket, reader, mount = two_versions_one_cached(t)
    bucket.proxy.cut()
    expect_cached_version(mount)
    started = time.monotonic()
    mount.umount()
    assert time.monotonic() - started < 30
    mount = reader.mount(bucket.url)
    expect_cached_version(mount)
    assert os.listdir(mount.dir) == ["m"]
    started = time.monotonic()
    mount.umount()
    assert time.monotonic() - started < 30


def test_cached_versions_are_read_after_the_daemon_was_killed_without_the_bucket_s3(t):
    bucket, reader, mount = two_versions_one_cached(t)
    bucket.proxy.cut()
    mount.kill9()
    mount = reader.mount(bucket.url, name="again")
    expect_cached_version(mount)
    mount.umount()


def test_a_read_of_what_is_not_cached_is_eio_in_bounded_time_s3(t):
    bucket, _, mount = two_versions_one_cached(t)
    bucket.proxy.cut()
    started = time.monotonic()
    try:
        (mount / "m/v1/model.safetensors").read_bytes()
        raise harness.Failure("it was read without the bucket")
    except OSError as error:
        assert error.errno == errno.EIO, error
    took = time.monotonic() - started
    print(f"EIO after {took:.1f} s")
    assert took < 180
    # The bucket is back: so is the version.
    bucket.proxy.restore()
    expect_same_tree(mount / "m/v1", CHAIN[1])
    mount.umount()


def test_a_reader_that_waits_for_the_bucket_can_be_interrupted_s3(t):
    bucket, _, mount = two_versions_one_cached(t)
    # Opened while the bucket is there, so that the wait is in read().
    with open(mount / "m/v1/model.safetensors", "rb"):
        pass
    bucket.proxy.cut()
    for number in (signal.SIGINT, signal.SIGKILL):
        cat = t.process("cat", mount / "m/v1/model.safetensors", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1)
        assert cat.poll() is None, "cat did not wait for the bucket"
        started = time.monotonic()
        cat.send_signal(number)
        cat.wait(10)
        assert time.monotonic() - started < 5, "not within 5 s"
    mount.umount()


def test_a_background_close_does_not_wait_for_the_bucket_and_the_draft_is_published_when_it_is_back_s3(t):
    bucket, reader, mount = two_versions_one_cached(t)
    mount.umount()
    mount = reader.mount(bucket.url, "--close=background", name="background")
    expect_same_tree(mount / "m/v0", CHAIN[0])
    assert not (mount / "m/v2").exists()
    (mount / "m/v2").mkdir()  # a name that is not known cannot be asked for without the bucket
    bucket.proxy.cut()
    subprocess.run(["cp", "-r", *CHAIN[2].iterdir(), mount / "m/v2"], check=True)
    assert mount.state("m/v2").startswith(("draft: ", "publishing", "failed: ")), mount.state("m/v2")
    bucket.proxy.restore()
    mount.wait_committed("m/v2", 120)
    t.host("third", bucket.env).ok("get", bucket.url, "m/v2", t.tmp / "dest")
    expect_same_tree(t.tmp / "dest", CHAIN[2])
    mount.umount()


def test_a_commit_without_the_bucket_fails_or_waits_and_keeps_the_draft_s3(t):
    bucket, reader, mount = two_versions_one_cached(t)
    bucket.proxy.cut()
    # close() waits for the bucket, and says that it did not come; the files are all there.
    done = subprocess.run(["cp", "-r", CHAIN[2], mount / "m/v2"], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "Input/output error" in done.stderr, done
    expect_same_tree(mount / "m/v2", CHAIN[2])
    assert mount.state("m/v2").startswith("interrupted: "), mount.state("m/v2")
    started = time.monotonic()
    mount.umount(timeout=120)
    print(f"umount with an unpublished draft took {time.monotonic() - started:.1f} s")
    bucket.proxy.restore()
    mount = reader.mount(bucket.url, name="again")
    expect_same_tree(mount / "m/v2", CHAIN[2])
    reader.ok("commit", mount / "m/v2")
    t.host("third", bucket.env).ok("get", bucket.url, "m/v2", t.tmp / "dest")
    expect_same_tree(t.tmp / "dest", CHAIN[2])
    mount.umount()


harness.main(globals())
