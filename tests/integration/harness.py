"""Buckets, hosts, mounts and faults for the end-to-end tests. Only the standard library.

A test file defines functions `test_NAME(t)` and ends with `harness.main(globals())`. One case runs as

    file.py [--as root|user] test_NAME

and prints ok or FAIL with a traceback. As root, `--as user` runs the case as an unprivileged user (who mounts by fusermount3) with
the program and the data copied to where that user can read them; for another user, `--as root` goes through sudo. Everything a
case starts is ended and unmounted when it ends, however it ends. Traffic stays on 127.0.0.1.
"""

import contextlib
import filecmp
import json
import os
import pathlib
import pwd
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback

import s3

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WEIGHTFS = os.environ.get("WEIGHTFS", str(ROOT / "build" / "release" / "weightfs"))
DATA = pathlib.Path(os.environ.get("WEIGHTFS_TEST_DATA", str(ROOT / "tests" / "data")))
CHAIN = [DATA / "minilm" / f"step-{i:06d}" for i in range(8)]
SHARDED = [DATA / "minilm" / "sharded" / f"step-{i:06d}" for i in (4, 5)]
# For debugging a daemon: WEIGHTFS_DEBUGGER="gdb|-q|-batch|-ex|run|-ex|bt|--args"
DEBUGGER = os.environ.get("WEIGHTFS_DEBUGGER", "").split("|") if os.environ.get("WEIGHTFS_DEBUGGER") else []
TEST_USER = "weightfs-test"
TIMEOUT = 60  # seconds, of anything that should take a moment


class Failure(AssertionError):
    """A command that should have worked did not, or the reverse."""


def wait_for(what, condition, timeout=TIMEOUT):
    """Polls until `condition()` is true; returns its value."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failure(f"{what}: not within {timeout} s")
        time.sleep(0.05)


def tree(path):
    """{relative path: bytes of a file, None of a directory, the target of a link} of everything below."""
    path = pathlib.Path(path)
    out = {}
    for dir_path, dirs, files in os.walk(path):
        for name in dirs + files:
            entry = pathlib.Path(dir_path) / name
            key = str(entry.relative_to(path))
            if entry.is_symlink():
                out[key] = os.readlink(entry)
            else:
                out[key] = None if entry.is_dir() else entry.read_bytes()
    return out


def expect_same_tree(got, want):
    """By cmp of every file: the kernel reads both."""
    names = lambda top: sorted(str(p.relative_to(top)) for p in pathlib.Path(top).rglob("*"))
    if names(got) != names(want):
        raise Failure(f"{got} has {names(got)}, {want} has {names(want)}")
    for path in pathlib.Path(want).rglob("*"):
        if path.is_file() and not path.is_symlink():
            other = pathlib.Path(got) / path.relative_to(want)
            if not filecmp.cmp(path, other, shallow=False):
                raise Failure(f"{other} differs from {path}")


def mounted(path):
    """Is it a weightfs mount? Never touches the filesystem."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split()
            if fields[4] == str(path) and fields[fields.index("-") + 1] == "fuse.weightfs":
                return True
    return False


class Host:
    """A machine as far as weightfs can tell: a cache of its own. `env` is added to the environment of its commands."""

    def __init__(self, test, name, env=None):
        self.test, self.name = test, name
        self.dir = test.tmp / f"host-{name}"
        self.dir.mkdir(exist_ok=True)
        self.cache = self.dir / "cache"
        self.env = {**os.environ, "WEIGHTFS_CACHE": str(self.cache), "HOME": str(self.dir), **(env or {})}

    def run(self, *args, timeout=TIMEOUT, env=None, **more):
        """The finished `weightfs ARGS`, whatever its exit code."""
        command = [WEIGHTFS, *map(str, args)]
        return subprocess.run(command, env={**self.env, **(env or {})}, timeout=timeout, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, capture_output=True, check=False, **more)

    def ok(self, *args, **more):
        """Standard output of `weightfs ARGS`, which must exit with 0."""
        done = self.run(*args, **more)
        if done.returncode != 0:
            raise Failure(f"weightfs {' '.join(map(str, args))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def json(self, *args, **more):
        return json.loads(self.ok(*args, "--json", **more))

    def fails(self, *args, code=1, **more):
        """Standard error of `weightfs ARGS`, which must exit with `code` and one line."""
        done = self.run(*args, **more)
        if done.returncode != code:
            raise Failure(f"weightfs {' '.join(map(str, args))}: exit {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
        errors = [line for line in done.stderr.splitlines() if line.startswith("weightfs")]
        if len(errors) != 1:
            raise Failure(f"weightfs {' '.join(map(str, args))}: {len(errors)} error lines\n{done.stderr}")
        return errors[0]

    def mount(self, bucket, *options, name=None, env=None, wrap=()):
        return Mount(self, bucket, options, name or self.name, env or {}, wrap)

    def versions(self, bucket, model):
        """Names of the live versions, [] for a model that is not there."""
        done = self.run("log", bucket, model, "--json")
        if done.returncode != 0:
            if "no such model" in done.stderr:
                return []
            raise Failure(done.stderr)
        return [version["name"] for version in json.loads(done.stdout)["versions"]]


class Mount:
    """A mount with its daemon in the foreground, so that its pid is known. Unmounted when the case ends."""

    def __init__(self, host, bucket, options, name, env, wrap):
        self.host = host
        self.dir = host.dir / f"mnt-{name}"
        self.dir.mkdir(exist_ok=True)
        self.log_path = host.dir / f"mnt-{name}.log"
        command = [*wrap, *DEBUGGER, WEIGHTFS, "--log-level", "debug", "mount", bucket, str(self.dir), "--foreground", *map(str, options)]
        with open(self.log_path, "ab") as log:
            self.daemon = subprocess.Popen(command, env={**host.env, **env}, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        host.test.cleanup.callback(self.force_down)
        wait_for(f"mount of {bucket}\n{self.log()}", self.answers)

    def log(self):
        return self.log_path.read_text(errors="replace")[-6000:]

    def answers(self):
        if self.daemon.poll() is not None:
            raise Failure(f"mount ended with {self.daemon.returncode}\n{self.log()}")
        return mounted(self.dir) and os.stat(self.dir).st_ino > 0

    def __truediv__(self, name):
        return self.dir / name

    def kill9(self):
        """The daemon dies; the mount point is cleared as an administrator would."""
        self.daemon.kill()
        self.daemon.wait(TIMEOUT)
        self.clear()

    def clear(self):
        if mounted(self.dir):
            subprocess.run(["fusermount3", "-u", "-z", str(self.dir)], check=False, capture_output=True)

    def umount(self, timeout=TIMEOUT):
        out = self.host.ok("umount", self.dir, timeout=timeout)
        self.daemon.wait(timeout)
        return out

    def force_down(self):
        self.host.test.mounts.append((self.dir, self.daemon.poll(), self.log()))
        if self.daemon.poll() is None:
            self.daemon.kill()
            self.daemon.wait(TIMEOUT)
        self.clear()

    def state(self, path):
        """user.weightfs.state, or None where there is no such directory."""
        try:
            return os.getxattr(self.dir / path, "user.weightfs.state").decode()
        except FileNotFoundError:
            return None

    def wait_committed(self, path, timeout=TIMEOUT):
        deadline = time.monotonic() + timeout
        while self.state(path) != "committed":
            if time.monotonic() > deadline:
                raise Failure(f"{path} is '{self.state(path)}', not committed\n{self.log()}")
            time.sleep(0.05)


class Test:
    """What a case is given."""

    def __init__(self):
        self.cleanup = contextlib.ExitStack()
        self.tmp = pathlib.Path(tempfile.mkdtemp(prefix="wfs-"))
        self.cleanup.callback(self.remove_tmp)
        self.random = random.Random(20261201)
        self.mounts = []

    def remove_tmp(self):
        for path in self.tmp.glob("host-*/mnt-*"):
            if mounted(path):
                raise Failure(f"{path} is still mounted; nothing is removed")
        shutil.rmtree(self.tmp, onerror=make_writable)

    def host(self, name, env=None):
        return Host(self, name, env)

    def report(self):
        """What the daemons had to say, for a case that failed."""
        for mount, code, log in reversed(self.mounts[:3]):
            print(f"--- daemon of {mount}: exit code {code}\n{log}", file=sys.stderr)

    def dir_bucket(self, name="bucket"):
        return str(self.tmp / name)

    def s3(self):
        """A new bucket on the real S3 server, seen through a proxy of our own that counts and can fail."""
        bucket = s3.Bucket()
        self.cleanup.callback(bucket.close)
        return bucket

    def process(self, *command, **more):
        """Started now, killed at the end of the case."""
        process = subprocess.Popen([str(word) for word in command], **more)
        self.cleanup.callback(end_process, process)
        return process


def end_process(process):
    if process.poll() is None:
        process.kill()
    process.wait(TIMEOUT)


def make_writable(function, path, _info):
    os.chmod(os.path.dirname(path), stat.S_IRWXU)
    function(path)


def stage_for_user():
    """Program, tests and data where any user can read them; its path. The build may be in a private directory."""
    user = pwd.getpwnam(TEST_USER)
    stage = pathlib.Path(tempfile.mkdtemp(prefix="weightfs-stage-"))
    stage.chmod(0o755)
    shutil.copy2(WEIGHTFS, stage / "weightfs")
    for folder in ("integration", "interop", "golden", "suites"):
        shutil.copytree(ROOT / "tests" / folder, stage / "tests" / folder)
    shutil.copytree(DATA, stage / "tests" / "data")
    (stage / "tmp").mkdir()
    os.chown(stage / "tmp", user.pw_uid, user.pw_gid)
    return stage


def run_as_user(case):
    """Root runs the case as the test user."""
    try:
        pwd.getpwnam(TEST_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--create-home", "--home-dir", f"/var/tmp/{TEST_USER}", "--shell", "/bin/sh",
                        TEST_USER], check=True)
    stage = stage_for_user()
    script = stage / pathlib.Path(sys.argv[0]).resolve().relative_to(ROOT)
    env = {**os.environ, "WEIGHTFS": str(stage / "weightfs"), "TMPDIR": str(stage / "tmp"), "HOME": str(stage / "tmp"),
           "WEIGHTFS_TEST_DATA": str(stage / "tests" / "data"), "PYTHONDONTWRITEBYTECODE": "1"}
    if "s3" in case:
        env.update(s3.server_settings())  # only root can start the server
    try:
        os.chdir("/")
        return subprocess.run(["runuser", "-u", TEST_USER, "--", sys.executable, str(script), case], env=env, check=False).returncode
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def run_case(cases, name):
    test = Test()
    started = time.monotonic()
    try:
        with test.cleanup:
            cases[name](test)
    except BaseException:  # also Ctrl-C: the case has not passed
        test.report()
        traceback.print_exc()
        print(f"FAIL {name}")
        return 1
    print(f"ok {name} ({time.monotonic() - started:.1f} s)")
    return 0


def main(scope):
    cases = {name: body for name, body in scope.items() if name.startswith("test_")}
    args = sys.argv[1:]
    role = None
    if args[:1] == ["--as"]:
        role, args = args[1], args[2:]
    names = args or list(cases)
    # A test that is ended (by ctest's time limit, say) still cleans up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    failed = 0
    for name in names:
        if role == "user" and os.geteuid() == 0:
            failed += run_as_user(name) != 0
        elif role == "root" and os.geteuid() != 0:
            failed += subprocess.run(["sudo", "--preserve-env=WEIGHTFS,WEIGHTFS_TEST_DATA", sys.executable, sys.argv[0], name],
                                     check=False).returncode != 0
        else:
            failed += run_case(cases, name)
    sys.exit(1 if failed else 0)
