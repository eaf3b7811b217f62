"""Other people's programs in a draft: fio with verification, stress-ng's filesystem stressors, git and a build.

WEIGHTFS_SUITE_SECONDS (default 4) is how long each runs; tests/tools/suites runs them longer, and fsx and pjdfstest besides.
"""

import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
import harness
from harness import Failure, expect_same_tree

SECONDS = int(os.environ.get("WEIGHTFS_SUITE_SECONDS", "4"))
# Left out: fiemap (a FUSE filesystem has none), mknod's devices (EPERM by design; its other calls are in `filename`, `open`).
STRESSORS = """access chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl filename flock fpunch fsize fstat getdent handle
hdd io iomix lease link locka lockf lockofd open rename symlink sync-file touch utime xattr inotify dnotify seek aio readahead mmap""".split()
FIO_JOBS = {
    "writes": "rw=randwrite ioengine=psync",
    "synced": "rw=randwrite ioengine=psync fsync=64",
    "mapped": "rw=randwrite ioengine=mmap",
    "queued": "rw=randwrite ioengine=libaio iodepth=8 direct=1 bsrange=4k-64k blockalign=4k",
    "trimmed": "rw=write ioengine=psync fallocate=keep",
}


def draft(t):
    """(mount, a draft under a temporary name: nothing publishes it by itself)."""
    mount = t.host("writer").mount(t.dir_bucket())
    path = mount / "m/.draft"
    path.mkdir(parents=True)
    return mount, path


def passes(*command, timeout, **more):
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True, errors="replace", timeout=timeout,
                          **more)
    if done.returncode != 0:
        raise Failure(f"{command}: exit {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    return done.stdout


def test_fio_reads_back_what_it_wrote(t):
    mount, path = draft(t)
    jobs = ["[global]", "size=8M", "bsrange=512-64k", "verify=xxhash", "do_verify=1", "verify_fatal=1", "verify_state_save=0",
            f"loops={max(1, SECONDS // 2)}", f"directory={path}"]
    for name, words in FIO_JOBS.items():
        jobs += [f"[{name}]", *words.split()]
    file = t.tmp / "jobs.fio"
    file.write_text("\n".join(jobs))
    passes("fio", "--output-format=terse", file, timeout=120 + 20 * SECONDS)
    mount.umount()


def test_stress_ng_finds_nothing_to_complain_about(t):
    mount, path = draft(t)
    words = [word for name in STRESSORS for word in ("--" + name, "1")]
    passes("stress-ng", "--temp-path", path, *words, "--hdd-bytes", "32M", "--fallocate-bytes", "32M", "--iomix-bytes", "32M", "-t", f"{SECONDS}s", "--verify", timeout=120 + 2 * SECONDS, cwd=t.tmp)
    assert list(path.iterdir()) == []
    mount.umount()


def write_project(path, modules=24):
    """A C project whose program adds up what its modules return."""
    path.mkdir()
    names = [f"module_{i}" for i in range(modules)]
    for i, name in enumerate(names):
        (path / f"{name}.c").write_text(f"#include <stdio.h>\n#include <stdlib.h>\nint {name}(void) {{ return {i}; }}\n")
    (path / "main.c").write_text("".join(f"int {name}(void);\n" for name in names) + "#include <stdio.h>\nint main(void) { printf(\"%d\\n\", "
                                 + " + ".join(f"{name}()" for name in names) + "); return 0; }\n")
    objects = " ".join(f"{name}.o" for name in names)
    (path / "Makefile").write_text(f"CFLAGS = -O1 -g\nprogram: main.o libmodules.a\n\tcc -o $@ $^\nlibmodules.a: {objects}\n\tar rcs $@ $^\n"
                                   "clean:\n\trm -f *.o *.a program\n")
    return sum(range(modules))


def test_a_clone_and_a_build_work_and_are_published_as_they_are(t):
    mount, path = draft(t)
    source = t.tmp / "project"
    total = write_project(source)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@localhost"]
    passes(*git, "init", "-q", source, timeout=60)
    passes(*git, "-C", source, "add", ".", timeout=60)
    passes(*git, "-C", source, "commit", "-qm", "first", timeout=60)
    clone = path / "clone"
    for number in range(max(1, SECONDS // 4)):
        passes(*git, "clone", "-q", "--no-local", source, clone, timeout=60)
        for _ in range(2):
            passes("make", "-C", clone, "-j4", timeout=120)
            assert passes(clone / "program", timeout=60).strip() == str(total)
            passes("make", "-C", clone, "clean", timeout=60)
        assert passes(*git, "-C", clone, "status", "--short", timeout=60) == ""
        (clone / "main.c").write_text("int main(void) { return 0; }\n")
        passes(*git, "-C", clone, "commit", "-qam", "second", timeout=60)
        passes(*git, "-C", clone, "gc", "-q", timeout=60)
        passes(*git, "-C", clone, "fsck", "--strict", timeout=60)
        if number:
            passes("rm", "-r", clone, timeout=60)
            passes(*git, "clone", "-q", "--no-local", source, clone, timeout=60)
    kept = t.tmp / "kept"
    passes("cp", "-a", path, kept, timeout=60)
    mount.host.ok("commit", path.rename(mount / "m/v"))
    expect_same_tree(mount / "m/v", kept)
    t.host("reader").ok("get", t.dir_bucket(), "m/v", t.tmp / "got")
    expect_same_tree(t.tmp / "got", kept)
    mount.umount()


harness.main(globals())
