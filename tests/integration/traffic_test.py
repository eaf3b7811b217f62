"""How much a read moves, counted between client and S3 server."""

import os

import harness
import safetensors_file
from harness import CHAIN

MIB = 1 << 20


def big_checkpoint(t, tensors=64, size=16 * MIB):
    """1 GiB of bf16 noise: hardly compressible, so a tensor's encoded bytes are about its plain bytes."""
    path = t.tmp / "big"
    path.mkdir()
    safetensors_file.write(path / "model.safetensors", {f"layer.{i}.weight": os.urandom(size) for i in range(tensors)})
    return path


def test_one_tensor_of_a_gibibyte_moves_less_than_twice_its_encoded_bytes_s3(t):
    bucket = t.s3()
    source = big_checkpoint(t)
    facts = t.host("writer", bucket.env).json("publish", source, bucket.url, "big/v0", timeout=400)
    encoded = facts["sent_bytes"] * 16 * MIB // facts["plain_bytes"]
    mount = t.host("reader", bucket.env).mount(bucket.url, "--poll", "10m")
    offset, length = safetensors_file.places(source / "model.safetensors")["layer.37.weight"]
    bucket.proxy.reset_counts()
    with open(mount / "big/v0/model.safetensors", "rb") as file:
        got = os.pread(file.fileno(), length, offset)
    moved = bucket.proxy.received
    with open(source / "model.safetensors", "rb") as file:
        assert got == os.pread(file.fileno(), length, offset)
    print(f"one tensor: {length} plain, {encoded} encoded, {moved} moved, {bucket.proxy.requests} requests")
    assert moved < 2 * encoded + MIB, (moved, encoded)
    mount.umount()


def test_the_next_version_moves_only_its_delta_s3(t):
    bucket = t.s3()
    writer = t.host("writer", bucket.env)
    for i in (0, 1, 2):
        facts = writer.json("publish", CHAIN[i], bucket.url, f"m/v{i}")
    mount = t.host("reader", bucket.env).mount(bucket.url, "--poll", "10m")
    harness.expect_same_tree(mount / "m/v1", CHAIN[1])
    bucket.proxy.reset_counts()
    harness.expect_same_tree(mount / "m/v2", CHAIN[2])
    moved, sent = bucket.proxy.received, facts["sent_bytes"]
    print(f"v2 after v1: {moved} moved, {sent} sent by its publisher, {bucket.proxy.requests} requests")
    # Beside what was sent: headers of the answers, and the log entry that is read again.
    assert moved < sent + 16 * 1024, (moved, sent)
    mount.umount()


def test_a_publisher_sends_only_what_changed_s3(t):
    bucket = t.s3()
    writer = t.host("writer", bucket.env)
    writer.ok("publish", CHAIN[0], bucket.url, "m/v0")
    bucket.proxy.reset_counts()
    facts = writer.json("publish", CHAIN[1], bucket.url, "m/v1")
    print(f"publish: {facts['sent_bytes']} reported, {bucket.proxy.sent} on the wire, {bucket.proxy.received} received")
    assert facts["sent_bytes"] <= bucket.proxy.sent < facts["sent_bytes"] + 24 * 1024
    # Its parent is in the cache: nothing of it comes back.
    assert bucket.proxy.received < 32 * 1024


def test_a_publisher_with_an_empty_cache_finds_its_parent_s3(t):
    bucket = t.s3()
    t.host("one", bucket.env).ok("publish", CHAIN[0], bucket.url, "m/v0")
    facts = t.host("two", bucket.env).json("publish", CHAIN[1], bucket.url, "m/v1")
    assert facts["parent"] == "m/v0" and facts["sent_bytes"] < 40_000, facts


harness.main(globals())
