"""The commands as a user and a script meet them: exit codes, one line of error, JSON, help, man page, completions, packages."""

import errno
import os
import pathlib
import pty
import re
import signal
import subprocess
import time

import harness
from harness import CHAIN, ROOT, WEIGHTFS

COMMANDS = ["mount", "umount", "publish", "commit", "get", "wait", "ls", "log", "diff", "verify", "rm", "gc", "compact", "status", "stats",
            "bench", "warm", "pin", "unpin"]
MAN = ROOT / "packaging" / "man" / "weightfs.1"


def commands_of_help(host):
    text = host.ok("--help").split("Subcommands:")[1]
    return re.findall(r"^  (\S+)", text, re.MULTILINE)


def test_every_command_is_there_and_its_help_teaches_by_example(t):
    host = t.host("a")
    assert sorted(commands_of_help(host)) == sorted(COMMANDS)
    for command in COMMANDS:
        text = host.ok(command, "--help")
        assert "Examples:" in text and f"weightfs {command}" in text, text


def test_the_man_page_has_every_command_and_option(t):
    host = t.host("a")
    source = MAN.read_text()
    for command in COMMANDS:
        assert re.search(rf"^\.Ss {command}\b", source, re.MULTILINE), command
        for option in set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", host.ok(command, "--help").split("Examples:")[0])):
            assert re.search(rf"\bFl -{option}\b|, -{option}$", source, re.MULTILINE), f"--{option} of {command}"
    rendered = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", MAN], check=False, capture_output=True, text=True)
    assert rendered.returncode == 0, rendered.stdout


def test_completions_are_read_by_their_shells(t):
    host = t.host("a")
    for shell, check in (("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])):
        script = t.tmp / shell
        script.write_text(host.ok("completion", shell))
        subprocess.run([*check, script], check=True)
    words = subprocess.run(["bash", "-c", f"""source {t.tmp}/bash
        COMP_WORDS=(weightfs gc --gr); COMP_CWORD=2; _weightfs; echo "${{COMPREPLY[@]}}"
        COMP_WORDS=(weightfs ver); COMP_CWORD=1; _weightfs; echo "${{COMPREPLY[@]}}" """], check=True, capture_output=True, text=True)
    assert words.stdout.split() == ["--grace", "verify"], words


def test_wrong_usage_is_2_and_failure_is_1_each_with_one_line(t):
    host, bucket = t.host("a"), t.dir_bucket()
    for args in ([], ["nonsense"], ["ls"], ["ls", bucket, "m", "--nonsense"], ["get", bucket, "m", t.tmp / "x"],
                 ["publish", CHAIN[0], bucket, "m/latest"], ["publish", CHAIN[0], bucket, "m/v", "--parent", "a/b", "--no-parent"],
                 ["wait", bucket, "m", "--timeout", "soon"], ["publish", t.tmp / "missing", bucket, "m/v"],
                 ["mount", bucket, t.tmp, "--cache-size", "big"], ["gc", bucket, "--grace", "-1s"]):
        message = host.fails(*args, code=2)
        assert "--help" in message, message
    for args in (["log", bucket, "m"], ["get", bucket, "m/v", t.tmp / "x"], ["ls", "/no/such/parent/bucket"], ["ls", "ftp://x/y"],
                 ["wait", bucket, "m", "--timeout", "100ms"], ["umount", t.tmp], ["rm", bucket, "m/v"], ["stats", t.tmp]):
        host.fails(*args)


def test_errors_name_the_thing_once_and_say_what_to_do(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    for args, code, parts in ((["lss", bucket], 2, ["'lss'", "--help"]),
                              (["publish", CHAIN[0], t.tmp / "no/such", "m/v1"], 1, [f"{t.tmp}/no/such:", "make that first"]),
                              *([[command, t.tmp / "none", *rest], 1, [f"{t.tmp}/none: no such directory", "`weightfs publish`"]]
                                for command, *rest in (["ls"], ["log", "m"], ["verify"], ["gc"], ["compact"], ["rm", "m/v0"],
                                                       ["diff", "m/v0", "m/v1"], ["get", "m/v0", t.tmp / "x"],
                                                       ["mount", "--ro", t.tmp])),
                              (["mount", "--memory", "1M", bucket, t.tmp], 1, ["is too small", "at least 64M (--memory)"]),
                              (["log", bucket, "none"], 1, ["none: no such model", "`weightfs ls BUCKET`"]),
                              (["get", bucket, "m/none", t.tmp / "x"], 1, ["m/none: no such version", "`weightfs log BUCKET MODEL`"]),
                              (["compact", bucket, "none"], 1, [": none: no such model"]),
                              (["mount", bucket, t.tmp / "none"], 1, [f"{t.tmp}/none is not there", "make the directory"]),
                              (["mount", bucket, CHAIN[0] / "config.json"], 1, ["is not a directory", "name one"])):
        message = host.fails(*args, code=code)
        for part in parts:
            assert message.count(part) == 1, (part, message)
    assert not (t.tmp / "none").exists()
    assert host.fails("compact", bucket, "none").count("none") == 1
    mount = host.mount(bucket)
    for path, parts in (("m", ["is a model", "MODEL/VERSION"]), ("m/none", ["m/none: no such draft", "mkdir"])):
        message = host.fails("commit", mount / path)
        assert all(message.count(part) == 1 for part in parts), message
    elsewhere = t.tmp / "elsewhere"
    elsewhere.mkdir()
    message = host.fails("mount", bucket, elsewhere)
    assert str(mount.dir) in message and str(mount.daemon.pid) in message and "--cache-dir" in message, message
    message = host.fails("mount", bucket, mount.dir)
    assert "mounted here already" in message and "weightfs umount" in message, message
    mount.umount()


def test_a_mount_may_follow_a_failed_or_an_ended_one_at_once(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    directory = t.tmp / "mnt"
    for end in (["fusermount3", "-u", directory], ["fusermount3", "-u", "-z", directory], [WEIGHTFS, "umount", directory]):
        host.fails("mount", bucket, directory)
        directory.mkdir()
        host.ok("mount", bucket, directory)
        t.cleanup.callback(subprocess.run, ["fusermount3", "-uzq", directory], check=False)
        (directory / "m/draft").mkdir()  # a daemon with something to put away
        (directory / "m/draft").rmdir()
        subprocess.run(end, check=True, env=host.env)
        directory.rmdir()


def test_commands_that_need_the_same_cache_wait_for_each_other(t):
    host, bucket = t.host("a"), t.dir_bucket()
    source = t.tmp / "source"
    source.mkdir()
    (source / "noise.bin").write_bytes(os.urandom(8 << 20))
    limited = [WEIGHTFS, "publish", source, bucket, "m/v0", "--bandwidth", "3M"]
    first = t.process(*limited, env=host.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    lock = host.cache
    harness.wait_for("the first has the cache", lambda: list(lock.glob("*/lock")) or first.poll() is not None)
    second = host.run("publish", CHAIN[0], bucket, "n/v0")
    assert second.returncode == 0, second.stderr
    assert first.wait(harness.TIMEOUT) == 0, first.stderr.read()
    assert host.versions(bucket, "m") == ["v0"] and host.versions(bucket, "n") == ["v0"]


def test_wait_in_a_mount_never_takes_an_older_version_for_a_newer_one(t):
    host, bucket = t.host("a"), t.dir_bucket()
    for i in range(3):
        host.ok("publish", CHAIN[i], bucket, f"m/v{i}")
    mount = host.mount(bucket, "--poll", "200ms")
    host.ok("rm", bucket, "m/v2")
    harness.wait_for("v1 is the newest", lambda: os.readlink(mount / "m/latest") == "v1")
    for newest in ("v2", "v1"):  # removed; the newest itself
        for where in (bucket, mount.dir):
            message = host.fails("wait", where, "m", "--newer-than", newest, "--timeout", "300ms")
            assert f"newer than {newest}" in message, message
    assert host.ok("wait", mount.dir, "m", "--newer-than", "v0", "--timeout", "30s") == "m/v1\n"
    mount.umount()


def test_credentials_in_a_url_are_refused_and_not_repeated(t):
    message = t.host("a").fails("ls", "s3://AKIASECRET:hunter2@bucket/prefix")
    assert "hunter2" not in message and "AKIASECRET" not in message, message


def test_json_objects_have_the_fields_of_the_contract(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    facts = host.json("publish", CHAIN[1], bucket, "m/v1")
    assert set(facts) >= {"version", "parent", "plain_bytes", "sent_bytes", "changed_elements", "total_elements", "seconds"}
    assert all(isinstance(facts[name], int) for name in ("plain_bytes", "sent_bytes", "changed_elements", "total_elements"))
    log = host.json("log", bucket, "m")["versions"]
    assert [entry["name"] for entry in log] == ["v0", "v1"]
    assert set(log[1]) >= {"name", "parent", "plain_bytes", "stored_bytes", "changed_elements", "time"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", log[1]["time"]), log
    assert host.json("wait", bucket, "m", "--newer-than", "v0") == {"version": "m/v1"}
    assert host.json("ls", bucket)["models"][0]["latest"] == "v1"
    assert [entry["name"] for entry in host.json("ls", bucket, "m")["versions"]] == ["v0", "v1"]
    assert host.json("verify", bucket, "--deep")["damaged"] == []
    difference = host.json("diff", bucket, "m/v0", "m/v1")
    assert difference["changed_elements"] == facts["changed_elements"], (difference, facts)
    bench = host.json("bench", CHAIN[0], CHAIN[1])
    assert bench["changed_elements"] == facts["changed_elements"] and bench["plain_bytes"] == facts["plain_bytes"], bench
    for name in ("encode_bytes_per_second", "decode_bytes_per_second", "memcpy_bytes_per_second", "sent_bytes", "total_elements"):
        assert bench[name] > 0, name
    mount = host.mount(bucket)
    mount.dir.joinpath("m/v1/model.safetensors").read_bytes()
    stats = host.json("stats", mount.dir)
    for name in ("bucket_get_bytes", "bucket_put_bytes", "bucket_requests", "cache_bytes", "reads_passthrough", "resident_bytes"):
        assert isinstance(stats[name], int), name
    assert stats["resident_bytes"] > 1 << 20, stats["resident_bytes"]
    assert host.json("status")["mounts"] and host.json("status", mount.dir)["drafts"] == []
    mount.umount()


def test_diff_names_what_was_added_removed_and_changed(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    host.ok("publish", CHAIN[0], bucket, "m/same")
    assert host.json("diff", bucket, "m/v0", "m/same")["changed_elements"] == 0
    host.ok("publish", CHAIN[1], bucket, "m/v1")
    tensors = {entry["name"]: entry for entry in host.json("diff", bucket, "m/v0", "m/v1")["tensors"]}
    changed = [entry for entry in tensors.values() if entry["changed_elements"]]
    assert changed and all(entry["largest_ulp_step"] >= 1 for entry in changed), tensors
    text = host.ok("diff", bucket, "m/v0", "m/v1")
    assert changed[0]["name"] in text


def test_a_removed_version_is_gone_and_gc_keeps_the_others(t):
    host, bucket = t.host("a"), t.dir_bucket()
    for i in range(4):
        host.ok("publish", CHAIN[i], bucket, f"m/v{i}")
    host.ok("rm", bucket, "m/v0")
    host.ok("rm", bucket, "m/v2")
    assert host.versions(bucket, "m") == ["v1", "v3"]
    host.ok("gc", bucket, "--dry-run")
    for _ in range(2):
        host.ok("gc", bucket, "--grace", "0s")
    reader = t.host("reader")
    reader.ok("verify", bucket, "--deep")
    for i in (1, 3):
        reader.ok("get", bucket, f"m/v{i}", t.tmp / f"v{i}")
        harness.expect_same_tree(t.tmp / f"v{i}", CHAIN[i])
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    t.host("third").ok("get", bucket, "m/v0", t.tmp / "v0")
    harness.expect_same_tree(t.tmp / "v0", CHAIN[0])


def test_get_writes_files_of_any_legal_name(t):
    host, bucket = t.host("a"), t.dir_bucket()
    source = t.tmp / "source"
    source.mkdir()
    for name in ("n" * 255, "m" * 239, "line\nbreak", b"\xff\x01".decode(errors="surrogateescape")):
        (source / name).write_text(f"{len(name)}")
    host.ok("publish", source, bucket, "m/v")
    for cache in ("a", "b"):  # from the publisher's cache, and from the bucket
        t.host(cache).ok("get", bucket, "m/v", t.tmp / cache)
        harness.expect_same_tree(t.tmp / cache, source)


def test_a_dry_gc_says_what_the_real_one_does(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    for grace in ("0s", "1h"):
        host.ok("publish", CHAIN[1], bucket, "m/v1")
        host.ok("rm", bucket, "m/v1")
        foretold = host.json("gc", bucket, "--dry-run", "--grace", grace)
        done = host.json("gc", bucket, "--grace", grace)
        assert (done["deleted_objects"] > 0) == (grace == "0s"), done
        for field in ("deleted_objects", "deleted_bytes", "collected_objects", "waiting_objects", "kept_objects"):
            assert foretold[field] == done[field], (grace, field, foretold, done)


def test_mount_goes_to_the_background_and_umount_ends_it(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    directory = t.tmp / "mnt"
    directory.mkdir()
    host.ok("mount", bucket, directory)
    t.cleanup.callback(subprocess.run, ["fusermount3", "-uzq", directory], check=False)
    assert harness.mounted(directory)  # already when the command has returned
    assert os.listdir(directory) == ["m"]
    harness.expect_same_tree(directory / "m/v0", CHAIN[0])
    # Commands on the same cache work through its daemon.
    host.ok("publish", CHAIN[1], bucket, "m/v1")
    host.ok("get", bucket, "m/v1", t.tmp / "dest")
    harness.expect_same_tree(t.tmp / "dest", CHAIN[1])
    harness.wait_for("v1", lambda: (directory / "m/v1").exists())
    host.ok("warm", directory / "m/v1")
    host.ok("pin", directory / "m/v0")
    host.ok("unpin", directory / "m/v0")
    host.fails("mount", bucket, directory)
    host.ok("umount", directory)
    assert not harness.mounted(directory)


def test_umount_of_a_busy_mount_names_who_keeps_it(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    mount = host.mount(bucket)
    holder = t.process("tail", "-f", mount / "m/v0/config.json", stdout=subprocess.DEVNULL)
    harness.wait_for("tail", lambda: any(str(mount.dir) in os.readlink(fd) for fd in pathlib.Path(f"/proc/{holder.pid}/fd").iterdir()))
    message = host.fails("umount", mount.dir)
    assert str(holder.pid) in message and "tail" in message, message
    holder.kill()
    holder.wait()
    mount.umount()


def test_umount_keeps_an_unfinished_draft_and_says_so(t):
    host, bucket = t.host("a"), t.dir_bucket()
    mount = host.mount(bucket)
    (mount / "m").mkdir()
    (mount / "m/v").mkdir()
    (mount / "m/v/config.json").write_text("{}")
    status = host.json("status", mount.dir)
    assert [draft["name"] for draft in status["drafts"]] == ["m/v"], status
    out = mount.umount()
    assert "m/v" in out, out
    again = host.mount(bucket)
    assert (again / "m/v/config.json").read_text() == "{}"
    again.umount()


def test_mount_options_can_be_given_as_in_fstab(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    mount = host.mount(bucket, "-o", "ro,cache-size=1G,poll=1s,nofail,_netdev,x-systemd.automount")
    try:
        (mount / "m/v1").mkdir()
        raise harness.Failure("a read-only mount made a draft")
    except OSError as error:
        assert error.errno == 30, error  # EROFS
    mount.umount()
    host.fails("mount", bucket, mount.dir, "-o", "nonsense=1", code=2)


def test_ctrl_c_of_a_publish_leaves_nothing_visible(t):
    host, bucket = t.host("a"), t.dir_bucket()
    source = t.tmp / "source"
    source.mkdir()
    (source / "noise.bin").write_bytes(os.urandom(256 << 20))
    publish = t.process(WEIGHTFS, "publish", source, bucket, "m/v", "--bandwidth", "8M", env=host.env, stderr=subprocess.PIPE, text=True)
    time.sleep(1.5)
    publish.send_signal(signal.SIGINT)
    code = publish.wait(20)
    assert code in (1, 130), (code, publish.stderr.read())
    assert t.host("b").versions(bucket, "m") == []


def test_a_progress_bar_is_shown_on_a_terminal_only(t):
    host, bucket = t.host("a"), t.dir_bucket()
    source = t.tmp / "source"
    source.mkdir()
    (source / "noise.bin").write_bytes(os.urandom(32 << 20))
    ours, theirs = pty.openpty()
    publish = t.process(WEIGHTFS, "publish", source, bucket, "m/v", "--bandwidth", "10M", env=host.env, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:
            break
        if not piece:
            break
        shown += piece
    assert publish.wait(60) == 0
    assert b"publish m/v" in shown and b"MiB" in shown, shown
    done = host.run("publish", source, bucket, "m/v2", "--no-parent", "--bandwidth", "10M")
    assert done.returncode == 0 and done.stderr == "", done


def test_installation_puts_everything_in_place(t):
    build = pathlib.Path(WEIGHTFS).parent
    subprocess.run(["cmake", "--install", build, "--prefix", "/usr"], env={**os.environ, "DESTDIR": str(t.tmp / "root")}, check=True,
                   capture_output=True)
    root = t.tmp / "root/usr"
    for path in ("bin/weightfs", "share/man/man1/weightfs.1", "sbin/mount.weightfs", "share/bash-completion/completions/weightfs",
                 "share/zsh/vendor-completions/_weightfs", "share/fish/vendor_completions.d/weightfs.fish",
                 "lib/systemd/system/weightfs@.service"):
        assert (root / path).stat().st_size > 0, path

    out = subprocess.run([root / "bin/weightfs", "--version"], check=True, capture_output=True, text=True).stdout
    assert re.fullmatch(r"weightfs \d+\.\d+\.\d+\n", out), out


def test_the_fstab_helper_mounts(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    directory = t.tmp / "mnt"
    directory.mkdir()
    path = {"PATH": f"{pathlib.Path(WEIGHTFS).parent}:{os.environ['PATH']}"}
    subprocess.run([ROOT / "packaging/mount.weightfs", bucket, directory, "-n", "-o", "ro,nofail"], env={**host.env, **path}, check=True)
    t.cleanup.callback(subprocess.run, ["fusermount3", "-uzq", directory], check=False)
    harness.expect_same_tree(directory / "m/v0", CHAIN[0])
    host.ok("umount", directory)


def test_a_model_whose_first_version_is_on_its_way_is_no_fault(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v")
    packs = pathlib.Path(bucket) / "new" / "packs"
    packs.mkdir(parents=True)
    (packs / ("1" * 32 + "-0")).write_bytes(b"frames")
    assert [model["name"] for model in host.json("ls", bucket)["models"]] == ["m"]
    for command in (["verify"], ["verify", "--deep"], ["gc", "--grace", "0s"], ["compact"]):
        host.ok(command[0], bucket, *command[1:])
    assert (packs / ("1" * 32 + "-0")).exists()
    for command in (["ls", bucket, "new"], ["log", bucket, "new"]):
        assert "new: no such model" in host.fails(*command)


def test_a_name_of_over_255_bytes_is_too_long_wherever_it_is_given(t):
    host, bucket = t.host("a"), t.dir_bucket()
    host.ok("publish", CHAIN[0], bucket, "m/v0")
    mount = host.mount(bucket)
    (mount / "m/v1/work").mkdir(parents=True)
    (mount / "m/v1/open").write_bytes(b"x")
    long, longest = "n" * 256, "n" * 1024
    for directory in ("", "m", "m/v0", "m/v1", "m/v1/work"):
        at = mount / directory
        assert os.statvfs(at).f_namemax == 255
        for name in (long, longest):
            for call in (lambda: os.stat(at / name), lambda: os.mkdir(at / name), lambda: open(at / name, "w"),
                         lambda: os.unlink(at / name), lambda: os.rmdir(at / name), lambda: os.symlink("x", at / name),
                         lambda: os.rename(mount / "m/v1/open", at / name), lambda: os.rename(at / name, mount / "m/v1/new"),
                         lambda: os.link(mount / "m/v1/open", at / name)):
                try:
                    call()
                    raise AssertionError(f"{directory}: a name of {len(name)} bytes was taken")
                except OSError as error:
                    assert error.errno == errno.ENAMETOOLONG, (directory, error)
    (mount / "m/v1" / ("n" * 255)).write_bytes(b"y")
    assert (mount / "m/v1" / ("n" * 255)).read_bytes() == b"y"
    host.ok("umount", mount.dir)


def test_a_lost_object_of_a_model_is_never_taken_for_a_new_model(t):
    host, bucket = t.host("a"), t.dir_bucket()
    for i in range(16):  # enough for an edge that `compact` makes
        host.ok("publish", CHAIN[i % 8], bucket, f"m/v{i:02}")
    lost = [path for path in (pathlib.Path(bucket) / "m" / "manifests").iterdir()]
    assert lost, bucket
    for path in lost:
        path.unlink()
    reader = t.host("reader")
    for code, *command in ((3, "verify"), (3, "verify", "--deep"), (1, "compact")):
        message = reader.fails(command[0], bucket, *command[1:], code=code)
        assert "m/manifests/" in message, (command, message)


harness.main(globals())
