#!/usr/bin/python3
"""Buckets of each format version, as they were written then: every byte reads, and new versions build on them."""

import hashlib
import os
import pathlib
import shutil
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))

import harness  # noqa: E402

FORMATS = sorted(HERE.glob("format-*"))


def sums_of(path):
    """{(model, version): {file: SHA-256}}"""
    versions = {}
    for line in (path / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ", 1)
        model, version, file = name.split("/", 2)
        versions.setdefault((model, version), {})[file] = digest
    return versions


def digests_below(top):
    return {str(path.relative_to(top)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in pathlib.Path(top).rglob("*") if path.is_file() and not path.is_symlink()}


def copies(t):
    """Each golden bucket, copied: (bucket, its sums)."""
    assert FORMATS
    for path in FORMATS:
        bucket = t.tmp / path.name
        shutil.copytree(path / "bucket", bucket)
        yield str(bucket), sums_of(path)


def expect_all(t, host, bucket, sums):
    for number, ((model, version), files) in enumerate(sums.items()):
        out = host.dir / f"out-{number}"
        host.ok("get", bucket, f"{model}/{version}", out)
        assert digests_below(out) == files, (model, version)
        shutil.rmtree(out)


def test_every_version_reads(t):
    for bucket, sums in copies(t):
        host = t.host(pathlib.Path(bucket).name)
        assert {model["name"] for model in host.json("ls", bucket)["models"]} == {model for model, _ in sums}
        for model in {model for model, _ in sums}:
            assert set(host.versions(bucket, model)) == {version for m, version in sums if m == model}
        host.ok("verify", bucket, "--deep")
        expect_all(t, host, bucket, sums)


def test_every_version_reads_through_a_mount(t):
    for bucket, sums in copies(t):
        mount = t.host(pathlib.Path(bucket).name).mount(bucket)
        for (model, version), files in sums.items():
            assert digests_below(mount.dir / model / version) == files, (model, version)
        assert os.readlink(mount / "qwen3 wordle/step-0/link") == "nested/zero-bytes"
        assert os.access(mount / "qwen3 wordle/step-0/run.sh", os.X_OK)
        assert os.listdir(mount / "qwen3 wordle/step-0/nested/empty") == []
        assert os.stat(mount / "qwen3 wordle/step-0/run.sh").st_mtime_ns == 1_700_000_000_123_456_789


def test_the_log_reads_from_its_beginning_without_the_snapshot(t):
    for bucket, sums in copies(t):
        for snapshot in pathlib.Path(bucket).glob("*/snapshots/*"):
            snapshot.unlink()
        host = t.host(pathlib.Path(bucket).name)
        for model in {model for model, _ in sums}:
            assert set(host.versions(bucket, model)) == {version for m, version in sums if m == model}


def test_new_versions_build_on_them_and_gc_leaves_them_whole(t):
    for bucket, sums in copies(t):
        host = t.host(pathlib.Path(bucket).name)
        host.ok("get", bucket, "qwen3 wordle/step-17", t.tmp / "new")
        data = bytearray((t.tmp / "new" / "model.safetensors").read_bytes())
        for at in range(len(data) // 2, len(data), 64):
            data[at] ^= 1
        (t.tmp / "new" / "model.safetensors").write_bytes(data)
        published = host.json("publish", t.tmp / "new", bucket, "qwen3 wordle/step-18")
        assert published["sent_bytes"] < len(data) / 4, published
        host.ok("rm", bucket, "qwen3 wordle/step-17")
        host.ok("compact", bucket)
        host.ok("gc", bucket, "--grace", "0s")
        sums = {**sums, ("qwen3 wordle", "step-18"): digests_below(t.tmp / "new")}
        del sums["qwen3 wordle", "step-17"]
        expect_all(t, t.host("other"), bucket, sums)
        host.ok("verify", bucket, "--deep")


harness.main(globals())
