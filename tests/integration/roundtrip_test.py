"""A real chain goes in and comes out byte for byte, by the commands and by a mount."""

import mmap
import os
import subprocess

import harness
from harness import CHAIN, SHARDED, expect_same_tree


def read_by_mmap(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        return bytes(view)


def expect_same_in_mount(mount, name, source):
    expect_same_tree(mount / name, source)
    for path in source.iterdir():
        assert read_by_mmap(mount / name / path.name) == path.read_bytes(), path.name


def chain_through_publish(t, bucket, env=None):
    writer = t.host("writer", env)
    for i, step in enumerate(CHAIN):
        facts = writer.json("publish", step, bucket, f"minilm/step-{i}")
        assert facts["version"] == f"minilm/step-{i}"
        assert facts["parent"] == (f"minilm/step-{i - 1}" if i else None)
        assert facts["plain_bytes"] == sum(p.stat().st_size for p in step.iterdir())
        assert 0 < facts["sent_bytes"] < facts["plain_bytes"]
        if i:
            assert 0 < facts["changed_elements"] < 0.05 * facts["total_elements"]
            assert facts["sent_bytes"] < facts["plain_bytes"] / 10, facts
    reader = t.host("reader", env)
    mount = reader.mount(bucket)
    assert sorted(os.listdir(mount / "minilm")) == sorted([f"step-{i}" for i in range(8)] + ["latest"])
    assert os.readlink(mount / "minilm/latest") == "step-7"
    for i in (7, 0, 3, 1, 2, 4, 5, 6):
        expect_same_in_mount(mount, f"minilm/step-{i}", CHAIN[i])
    mount.umount()


def test_chain_published_by_command_is_read_from_another_mount(t):
    chain_through_publish(t, t.dir_bucket())


def test_chain_published_by_command_is_read_from_another_mount_s3(t):
    bucket = t.s3()
    chain_through_publish(t, bucket.url, bucket.env)


def chain_through_cp(t, bucket, env=None):
    writer, reader = t.host("writer", env).mount(bucket), t.host("reader", env).mount(bucket, "--poll", "500ms")
    for i, step in enumerate(CHAIN):
        (writer / "minilm").mkdir(exist_ok=True)
        subprocess.run(["cp", "-r", step, writer / f"minilm/step-{i}"], check=True)
        writer.wait_committed(f"minilm/step-{i}")
        harness.wait_for(f"step-{i} at the reader", lambda: reader.state(f"minilm/step-{i}") == "committed")
        expect_same_in_mount(reader, f"minilm/step-{i}", step)
        expect_same_in_mount(writer, f"minilm/step-{i}", step)
    assert os.readlink(reader / "minilm/latest") == "step-7"
    log = t.host("writer", env).json("log", bucket, "minilm")["versions"]
    assert [v["name"] for v in log] == [f"step-{i}" for i in range(8)]
    assert all(v["stored_bytes"] < v["plain_bytes"] / 10 for v in log[1:]), log
    for mount in (writer, reader):
        mount.umount()


def test_chain_copied_into_a_mount_is_read_from_another(t):
    chain_through_cp(t, t.dir_bucket())


def test_chain_copied_into_a_mount_is_read_from_another_s3(t):
    bucket = t.s3()
    chain_through_cp(t, bucket.url, bucket.env)


def test_resharded_versions_are_deltas_of_each_other(t):
    bucket, writer = t.dir_bucket(), t.host("writer")
    writer.ok("publish", CHAIN[4], bucket, "m/whole")
    two = writer.json("publish", SHARDED[0], bucket, "m/two")
    three = writer.json("publish", SHARDED[1], bucket, "m/three")
    assert two["changed_elements"] == 0 and two["sent_bytes"] < 20_000, two
    assert three["sent_bytes"] < 40_000, three
    reader = t.host("reader")
    for name, source in (("three", SHARDED[1]), ("two", SHARDED[0])):
        reader.ok("get", bucket, f"m/{name}", t.tmp / name)
        expect_same_tree(t.tmp / name, source)


def test_files_that_are_no_weights_links_and_empty_directories_survive(t):
    source = t.tmp / "source"
    (source / "a/b").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / "a/b/nested.bin").write_bytes(os.urandom(3_000_000))
    (source / "none").write_bytes(b"")
    (source / ".hidden").write_text("x")
    (source / "broken.safetensors").write_bytes(b"\xff" * 1000)
    (source / "link").symlink_to("../../etc/passwd")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "na\xefve \u2603").write_text("name")
    bucket = t.dir_bucket()
    t.host("writer").ok("publish", source, bucket, "m/v")
    reader = t.host("reader")
    reader.ok("get", bucket, "m/v", t.tmp / "dest")
    mount = reader.mount(bucket, name="x", env={"WEIGHTFS_CACHE": str(t.tmp / "other-cache")})
    for copy in (t.tmp / "dest", mount / "m/v"):
        assert harness.tree(copy) == harness.tree(source)
        assert os.access(copy / "run.sh", os.X_OK) and not os.access(copy / "none", os.X_OK)


def test_a_version_of_another_model_can_be_the_parent(t):
    bucket, writer = t.dir_bucket(), t.host("writer")
    writer.ok("publish", CHAIN[0], bucket, "base/v0")
    facts = writer.json("publish", CHAIN[1], bucket, "tuned/v1", "--parent", "base/v0")
    assert facts["parent"] == "base/v0" and facts["sent_bytes"] < 40_000, facts
    t.host("reader").ok("get", bucket, "tuned/v1", t.tmp / "dest")
    expect_same_tree(t.tmp / "dest", CHAIN[1])


def test_get_goes_on_where_it_was_killed(t):
    bucket, writer = t.dir_bucket(), t.host("writer")
    source = t.tmp / "source"
    source.mkdir()
    for name in "abc":
        (source / name).write_bytes(os.urandom(12 << 20))
    writer.ok("publish", source, bucket, "m/v")
    dest, reader = t.tmp / "dest", t.host("reader")
    get = t.process(harness.WEIGHTFS, "get", bucket, "m/v", dest, "--bandwidth", "12M", env=reader.env)
    harness.wait_for("the first file", lambda: (dest / "a").exists())
    get.kill()
    get.wait()
    assert not (dest / "c").exists(), "killed too late to tell"
    other = t.host("other")  # nothing in its cache: what is right in dest is not fetched
    facts = other.json("get", bucket, "m/v", dest)
    assert facts["fetched_bytes"] < facts["plain_bytes"] - (11 << 20), facts
    expect_same_tree(dest, source)
    assert other.json("get", bucket, "m/v", dest)["fetched_bytes"] < 100_000


harness.main(globals())
