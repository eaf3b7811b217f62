"""A flipped byte anywhere is found: never a wrong byte, and a message that names the object."""

import errno
import pathlib
import shutil
import subprocess

import harness
from harness import CHAIN, expect_same_tree


def objects(bucket):
    return sorted(path for path in pathlib.Path(bucket).rglob("*") if path.is_file())


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(mode)


def test_a_flipped_byte_in_any_object_is_an_error_that_names_it(t):
    bucket, writer = t.dir_bucket(), t.host("writer")
    for i in (0, 1):
        writer.ok("publish", CHAIN[i], bucket, f"m/v{i}")
    tried = harmless = 0
    for path in objects(bucket):
        size = path.stat().st_size
        for at in sorted({0, size // 3, size // 2, size - 1}):
            flip(path, at)
            tried += 1
            host = t.host(f"h{tried}")
            dest = t.tmp / f"d{tried}"
            done = host.run("get", bucket, "m/v1", dest)
            if done.returncode == 0:
                expect_same_tree(dest, CHAIN[1])
                harmless += 1
                # Only what is never trusted may be damaged without a word.
                assert "hint" in path.name or "/log/" not in str(path), f"{path} at {at}: nobody noticed"
            else:
                assert done.returncode == 1, done
                name = path.stem if "/log/" in str(path) else path.name
                assert name.lstrip("0")[:8] in done.stderr, f"{path} at {at}: {done.stderr}"
                for got in dest.rglob("*"):
                    if got.is_file() and got.name in ("model.safetensors", "config.json"):
                        assert got.read_bytes() == (CHAIN[1] / got.name).read_bytes(), f"{path} at {at}: wrong bytes in {got}"
            flip(path, at)
            shutil.rmtree(host.dir)
    print(f"{tried} flips, {harmless} harmless")
    t.host("last").ok("get", bucket, "m/v1", t.tmp / "last")
    expect_same_tree(t.tmp / "last", CHAIN[1])


def test_verify_finds_a_flipped_byte_in_any_object(t):
    bucket, writer = t.dir_bucket(), t.host("writer")
    for i in (0, 1):
        writer.ok("publish", CHAIN[i], bucket, f"m/v{i}")
    writer.ok("verify", bucket)
    writer.ok("verify", bucket, "--deep")
    for path in objects(bucket):
        if path.name == "hint" or "probe" in str(path):
            continue
        flip(path, path.stat().st_size // 2)
        t.host(f"flipped-{path.name}").fails("verify", bucket, code=3)
        flip(path, path.stat().st_size // 2)
        if path == objects_of_log(bucket)[-1]:
            continue  # a log without its last entry is an older, sound log
        content = path.read_bytes()
        path.unlink()
        t.host(f"without-{path.name}").fails("verify", bucket, code=3)
        path.write_bytes(content)
    writer.ok("verify", bucket, "--deep")


def objects_of_log(bucket):
    return sorted(path for path in objects(bucket) if path.parent.name == "log" and path.name != "hint")


def test_a_damaged_pack_is_eio_in_the_mount(t):
    bucket, writer = t.dir_bucket(), t.host("writer")
    writer.ok("publish", CHAIN[0], bucket, "m/v0")
    pack = next(path for path in objects(bucket) if path.parent.name == "packs")
    flip(pack, 1000)
    mount = t.host("reader").mount(bucket)
    try:
        (mount / "m/v0/model.safetensors").read_bytes()
        raise harness.Failure("damaged bytes were read")
    except OSError as error:
        assert error.errno == errno.EIO, error
    assert pack.name[:8] in mount.log(), mount.log()
    flip(pack, 1000)
    expect_same_tree(mount / "m/v0", CHAIN[0])
    mount.umount()


def test_damage_in_the_cache_is_found_at_first_use_and_repaired(t):
    bucket = t.dir_bucket()
    t.host("writer").ok("publish", CHAIN[0], bucket, "m/v0")
    reader = t.host("reader")
    mount = reader.mount(bucket)
    expect_same_tree(mount / "m/v0", CHAIN[0])
    mount.umount()
    files = [path for path in reader.cache.rglob("*") if path.is_file()]
    size = (CHAIN[0] / "model.safetensors").stat().st_size
    flat = [path for path in files if path.stat().st_size == size]
    assert flat, files
    for path in flat:
        flip(path, size // 2)
    mount = reader.mount(bucket)
    expect_same_tree(mount / "m/v0", CHAIN[0])
    mount.umount()


def test_a_damaged_index_of_the_cache_is_rebuilt(t):
    bucket = t.dir_bucket()
    t.host("writer").ok("publish", CHAIN[0], bucket, "m/v0")
    reader = t.host("reader")
    mount = reader.mount(bucket)
    expect_same_tree(mount / "m/v0", CHAIN[0])
    mount.umount()
    # SQLite's own header: found again after each repair, whatever the file is called.
    databases = [path for path in reader.cache.rglob("*") if path.is_file() and path.read_bytes()[:15] == b"SQLite format 3"]
    assert databases
    for database in databases:
        for damage in (b"", b"\0" * 4096, b"SQLite format 3\0" + b"\xff" * 4096):
            database.write_bytes(damage)
            mount = reader.mount(bucket)
            expect_same_tree(mount / "m/v0", CHAIN[0])
            mount.umount()


def test_the_last_log_entry_damaged_leaves_the_versions_before_it(t):
    bucket, writer = t.dir_bucket(), t.host("writer")
    for i in (0, 1):
        writer.ok("publish", CHAIN[i], bucket, f"m/v{i}")
    flip(objects_of_log(bucket)[-1], 40)
    mount = t.host("reader").mount(bucket)
    expect_same_tree(mount / "m/v0", CHAIN[0])
    done = subprocess.run(["cp", "-r", CHAIN[2], mount / "m/v2"], check=False, capture_output=True)
    t.host("reader").run("commit", mount / "m/v2")
    assert mount.state("m/v2") != "committed", done
    mount.umount()


harness.main(globals())
