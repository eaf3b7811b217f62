"""What docs/SECURITY.md says of the cache, of other users, of credentials and of who writes the bucket."""

import os
import pathlib
import pwd
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
import harness
from harness import CHAIN, expect_same_tree, tree

NOBODY = pwd.getpwnam("nobody").pw_uid


def test_a_cache_directory_that_others_can_use_is_refused_and_left_alone(t):
    bucket, host = t.dir_bucket(), t.host("h")
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    spoilt = [("755", 0o755, None), ("777", 0o777, None), ("750", 0o750, None)]
    if os.geteuid() == 0:
        spoilt.append(("theirs", 0o700, NOBODY))
    for name, mode, owner in spoilt:
        cache = t.tmp / f"cache-{name}"
        cache.mkdir()
        cache.chmod(mode)
        if owner is not None:
            os.chown(cache, owner, owner)
        error = host.fails("get", bucket, "m/v0", t.tmp / f"got-{name}", "--cache-dir", cache)
        assert str(cache) in error, error
        assert list(cache.iterdir()) == [], name
        (t.tmp / "mnt").mkdir(exist_ok=True)
        error = host.fails("mount", bucket, t.tmp / "mnt", "--cache-dir", cache)
        assert str(cache) in error, error
    target = t.tmp / "private"
    target.mkdir(mode=0o700)
    link = t.tmp / "link"
    link.symlink_to(target)
    done = host.run("get", bucket, "m/v0", t.tmp / "got-link", "--cache-dir", link)
    assert done.returncode == 1 or stat_is_private(target), done


def stat_is_private(path):
    return path.stat().st_mode & 0o077 == 0


def test_what_is_made_is_closed_to_others(t):
    bucket, host = t.dir_bucket(), t.host("h")
    os.umask(0)
    mount = host.mount(bucket)
    shutil.copytree(CHAIN[0], mount / "m/v0", dirs_exist_ok=False)
    host.ok("commit", mount / "m/v0")
    caches = [path for path in host.cache.rglob("index.sqlite")]
    assert caches and all(stat_is_private(path.parent) for path in caches)
    assert stat_is_private(host.cache)
    mount.umount()


def test_another_user_reads_nothing_without_allow_other(t):
    bucket, host = t.dir_bucket(), t.host("h")
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    for path in (t.tmp, host.dir):
        path.chmod(0o755)
    mount = host.mount(bucket)
    (mount / "m/v0/config.json").read_bytes()
    for what in (mount.dir, mount / "m/v0/config.json", host.cache):
        for program in ("ls", "cat", "stat"):
            done = subprocess.run(["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", program, what], check=False,
                                  capture_output=True, text=True)
            if program == "stat" and what == host.cache:
                continue  # that it is there is no secret
            assert done.returncode != 0 and done.stdout == "", (program, what, done)
    mount.umount()


def test_credentials_appear_in_no_log_error_or_command_line_s3(t):
    bucket = t.s3()
    env = {**bucket.env, "AWS_SESSION_TOKEN": ""}
    secret, texts = env["AWS_SECRET_ACCESS_KEY"], []
    host = t.host("h", env)
    mount = host.mount(bucket.url)
    shutil.copytree(CHAIN[0], mount / "m/v0")
    texts.append(host.ok("commit", mount / "m/v0"))
    texts += [host.ok("status"), host.ok("status", mount.dir, "--json"), host.ok("stats", mount.dir), host.ok("log", bucket.url, "m")]
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if "weightfs" in (process / "comm").read_text():
                texts.append((process / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            pass
    texts += [os.getxattr(mount / "m/v0", f"user.weightfs.{name}").decode() for name in ("bucket", "control", "state")]
    # A wrong secret, which the server refuses: its answer repeats what was signed.
    wrong = "WRONG" + secret[5:][::-1]
    done = host.run("--log-level", "debug", "ls", bucket.url, "--cache-dir", t.tmp / "third", env={"AWS_SECRET_ACCESS_KEY": wrong})
    assert done.returncode == 1, done
    texts += [done.stdout, done.stderr]
    bucket.proxy.cut()
    done = subprocess.run(["timeout", "-s", "INT", "5", harness.WEIGHTFS, "--log-level", "debug", "ls", bucket.url, "--cache-dir",
                           t.tmp / "other"], env=host.env, check=False, capture_output=True, text=True)
    texts += [done.stdout, done.stderr]
    bucket.proxy.restore()
    mount.umount()
    texts.append(mount.log_path.read_text(errors="replace"))
    for path in [*host.dir.rglob("*"), *(t.tmp / "other").rglob("*")]:
        if path.is_file():
            texts.append(path.read_bytes().decode("latin-1"))
    for text in texts:
        for word in (secret, wrong):
            assert word not in text, text[max(0, text.find(word) - 200):text.find(word)]


def test_get_writes_through_no_link_that_lies_in_its_way(t):
    bucket, host = t.dir_bucket(), t.host("h")
    source, outside = t.tmp / "source", t.tmp / "outside"
    (source / "sub").mkdir(parents=True)
    (source / "sub/file").write_bytes(b"new")
    (source / "top").write_bytes(b"new")
    host.ok("publish", source, bucket, "m/v")
    outside.mkdir()
    (outside / "victim").write_bytes(b"old")
    dest = t.tmp / "dest"
    dest.mkdir()
    (dest / "sub").symlink_to(outside)
    (dest / "top").symlink_to(outside / "victim")
    host.run("get", bucket, "m/v", dest)
    assert tree(outside) == {"victim": b"old"}


def test_objects_of_one_model_in_place_of_anothers_are_an_error(t):
    bucket, writer = t.dir_bucket(), t.host("w")
    writer.ok("publish", CHAIN[0], bucket, "a/v")
    writer.ok("publish", CHAIN[5], bucket, "b/v")
    top = pathlib.Path(bucket)
    kinds = lambda model: {kind: sorted((top / model / kind).rglob("*")) for kind in ("manifests", "packs")}
    swapped = 0
    for kind, theirs in kinds("a").items():
        for mine, other in zip(kinds("b")[kind], theirs):
            if not mine.is_file():
                continue
            kept = mine.read_bytes()
            mine.chmod(0o600)
            mine.write_bytes(other.read_bytes())
            dest = t.tmp / f"got-{swapped}"
            reader = t.host(f"r{swapped}")
            reader.fails("get", bucket, "b/v", dest)
            for path in dest.rglob("*"):
                if path.is_file() and (CHAIN[5] / path.name).exists():
                    assert path.read_bytes() == (CHAIN[5] / path.name).read_bytes(), path
            mine.write_bytes(kept)
            swapped += 1
    assert swapped >= 2
    t.host("last").ok("get", bucket, "b/v", t.tmp / "last")
    expect_same_tree(t.tmp / "last", CHAIN[5])


harness.main(globals())
