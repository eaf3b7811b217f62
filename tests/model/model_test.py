"""Random sequences of filesystem calls and commands on two mounts of one bucket, against the model in oracle.py.

Prints its seed; WEIGHTFS_MODEL_SEED repeats it. A sequence that fails is cut down to a short one that fails, too, and printed as a
script. `model_test.py --seconds N [SEED]` goes on with new sequences for N seconds; ctest runs a few.
"""

import mmap
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
import harness
import safetensors_file
from harness import Failure, wait_for
from oracle import OK, Refused, World, is_temporary

MODELS = ["m", "n"]
FINAL = ["v1", "v2", "v3"]
NAMES = FINAL + [".t", ".u", "x.tmp", "latest"]
PATHS = ["a", "b", "d", "d/c", "d/e", "d/e/f", "model.safetensors"]
FILES = ["a", "b", "d/c", "d/e/f", "model.safetensors"]
OPTIONS = ("--settle", "1h", "--settle-live", "1h", "--poll", "100ms")
CI_SEQUENCES, CI_LENGTH = 2, 120
LENGTH = 250


def blob(seed, size):
    return random.Random(seed).randbytes(size)


def weights(seed):
    """A safetensors file: tensors that differ in few elements from seed to seed."""
    out = bytearray(random.Random(0).randbytes(60_000))
    rng = random.Random(seed)
    for _ in range(200):
        at = rng.randrange(30_000) * 2
        out[at] ^= 1
    path = pathlib.Path(f"/tmp/wfs-model-{os.getpid()}.safetensors")
    safetensors_file.write(path, {"a": bytes(out[:40_000]), "b": bytes(out[40_000:])})
    data = path.read_bytes()
    path.unlink()
    return data


WEIGHTS = {"make_draft": 5, "write": 14, "save": 9, "pwrite": 8, "map": 3, "truncate": 4, "chmod": 3, "unlink": 5, "mkdir": 11, "rmdir": 2,
           "symlink": 2, "link": 4, "rename": 8, "rename_draft": 4, "remove_draft": 1, "commit": 4, "remove_version": 3, "gc": 2,
           "remount": 2, "kill": 2, "look": 4, "get": 2, "fsync": 2, "compact": 1}


def make_step(rng, kind, where, there):
    """`there`: paths that are in that draft."""
    if kind in ("gc", "remount", "kill", "look", "compact"):
        return (kind, rng.randrange(2))
    if kind in ("remove_version", "get"):
        return (kind, rng.randrange(2), rng.choice(MODELS), rng.choice(FINAL))
    if kind == "make_draft":
        return (kind, rng.randrange(2), rng.choice(MODELS), rng.choice(NAMES))
    old = rng.choice(there) if there and rng.random() < 0.75 else rng.choice(PATHS)
    file = rng.choice(FILES if rng.random() < 0.8 else PATHS)
    more = {
        "remove_draft": (), "commit": (),
        "rename_draft": (rng.choice(NAMES[:-1]),),
        "write": (file, rng.randrange(1 << 20), rng.choice([0, 1, 5000, 70_000, 1_200_000])),
        "save": (rng.choice(["model.safetensors", "d/c", "a"]), rng.randrange(8)),
        "pwrite": (file, rng.randrange(1 << 20), rng.randrange(100_000), rng.randrange(1, 9000)),
        "map": (file, rng.randrange(1 << 20), rng.randrange(100_000), rng.randrange(1, 9000)),
        "truncate": (old, rng.randrange(100_000)),
        "chmod": (old, rng.random() < 0.5),
        "link": (old, rng.choice(PATHS)),
        "rename": (old, rng.choice([path for path in PATHS if path != old])),
        "mkdir": (rng.choice(["d", "d", "d/e", rng.choice(PATHS)]),),
        "symlink": (rng.choice(PATHS), rng.choice(["nowhere", "../x", "/nowhere"])),
    }
    return (kind, *where, *more.get(kind, (old,)))


def make_sequence(rng, length):
    """Concrete steps, so that each part of a sequence can be run, too. Most go where there is something."""
    steps, world = [], World(2)
    for _ in range(length):
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        drafts = [(host, *key) for host in range(2) for key in world.drafts[host]]
        versions = [(rng.randrange(2), model, name) for model in MODELS for name in world.versions(model)]
        if not drafts and rng.random() < 0.7:
            kind = "make_draft"
        chance = rng.random()
        if drafts and chance < 0.85:
            where = rng.choice(drafts)
        elif versions and chance < 0.95:
            where = rng.choice(versions)
        else:
            where = (rng.randrange(2), rng.choice(MODELS), rng.choice(NAMES[:-1]))
        tree = world.drafts[where[0]].get(where[1:])
        steps.append(make_step(rng, kind, where, sorted(tree.nodes) if tree else []))
        imagine(world, steps[-1])
    return steps


def imagine(world, step):
    kind, host, *args = step
    try:
        if kind == "remove_version":
            world.remove_version(*args)
        elif kind in ("write", "save"):
            world.write(host, *args[:3], 0, b"", True)
        elif kind in ("pwrite", "map"):
            world.write(host, *args[:3], 0, b"x", False)
        elif hasattr(world, kind):
            getattr(world, kind)(host, *args)
    except Refused:
        pass


class Run:
    """One sequence on fresh mounts."""

    def __init__(self, test):
        self.test, self.bucket, self.world = test, test.dir_bucket(), World(2)
        self.hosts = [test.host(f"h{i}") for i in range(2)]
        self.mounts = [host.mount(self.bucket, *OPTIONS) for host in self.hosts]
        self.reader = test.host("reader")
        self.tally = {"done": 0, "refused": 0, "published": 0}

    def at(self, host, model, name, path=None):
        base = self.mounts[host].dir / model / name
        return base if path is None else base / path

    # Real calls. Each returns nothing or raises OSError; those of one draft's files come with the model's as well.

    def real_make_draft(self, host, model, name):
        os.makedirs(self.mounts[host].dir / model, exist_ok=True)
        os.mkdir(self.at(host, model, name))

    def real_remove_draft(self, host, model, name):
        os.rmdir(self.at(host, model, name))

    def real_rename_draft(self, host, model, old, new):
        os.rename(self.at(host, model, old), self.at(host, model, new))

    def real_write(self, host, model, name, path, offset, data, truncate):
        flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | (os.O_TRUNC if truncate else 0)
        fd = os.open(self.at(host, model, name, path), flags, 0o644)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:], offset + done)
        finally:
            os.close(fd)

    def real_map(self, host, model, name, path, offset, data, _truncate):
        fd = os.open(self.at(host, model, name, path), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o644)
        try:
            if os.fstat(fd).st_size < offset + len(data):
                os.ftruncate(fd, offset + len(data))
            with mmap.mmap(fd, 0) as view:
                view[offset:offset + len(data)] = data
        finally:
            os.close(fd)

    def real_truncate(self, host, model, name, path, size):
        fd = os.open(self.at(host, model, name, path), os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.ftruncate(fd, size)
        finally:
            os.close(fd)

    def real_chmod(self, host, model, name, path, executable):
        fd = os.open(self.at(host, model, name, path), os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.fchmod(fd, 0o755 if executable else 0o644)
        finally:
            os.close(fd)

    def real_unlink(self, host, model, name, path):
        os.unlink(self.at(host, model, name, path))

    def real_mkdir(self, host, model, name, path):
        os.mkdir(self.at(host, model, name, path))

    def real_rmdir(self, host, model, name, path):
        os.rmdir(self.at(host, model, name, path))

    def real_symlink(self, host, model, name, path, target):
        os.symlink(target, self.at(host, model, name, path))

    def real_link(self, host, model, name, old, new):
        os.link(self.at(host, model, name, old), self.at(host, model, name, new), follow_symlinks=False)

    def real_rename(self, host, model, name, old, new):
        os.rename(self.at(host, model, name, old), self.at(host, model, name, new))

    def both(self, call, *args, model_call=None):
        """The model's answer and the mount's must be the same; returns the model's value."""
        value, allowed = None, None
        try:
            value = getattr(self.world, model_call or call)(*args)
        except Refused as refused:
            allowed = refused.codes
        try:
            getattr(self, "real_" + call)(*args)
            got = OK
        except OSError as error:
            got = error.errno
        if (got is OK) != (allowed is None) or (got is not OK and got not in allowed):
            name = lambda code: os.strerror(code) if code else "done"
            raise Failure(f"{call}{args[:4]}: {name(got)}; the model says {' or '.join(map(name, allowed)) if allowed else 'done'}")
        self.tally["done" if got is OK else "refused"] += 1
        return value if allowed is None else None

    # Steps

    def step(self, kind, host, *args):
        self.see(host)
        act = getattr(self, "do_" + kind, None)
        if act:
            act(host, *args)
        else:
            self.both(kind, host, *args)

    def see(self, host):
        """Waits until the mount lists what it must, for another host's commits come with the poll."""
        for model in MODELS:
            want = self.world.shown(host, model)
            latest = self.world.latest(model)
            def same():
                try:
                    names = set(os.listdir(self.mounts[host].dir / model))
                    link = os.readlink(self.mounts[host].dir / model / "latest") if "latest" in names else None
                except FileNotFoundError:
                    names, link = set(), None
                self.seen = (names, link)
                return names == want | ({"latest"} if latest else set()) and link == latest
            try:
                wait_for("listing", same, timeout=20)
            except Failure:
                raise Failure(f"host {host} lists {model}/ as {self.seen}, not {want} with latest {latest}") from None

    def do_write(self, host, model, name, path, seed, size):
        self.both("write", host, model, name, path, 0, blob(seed, size), True)

    def do_save(self, host, model, name, path, seed):
        self.both("write", host, model, name, path, 0, weights(seed), True)

    def do_pwrite(self, host, model, name, path, seed, offset, size):
        self.both("write", host, model, name, path, offset, blob(seed, size), False)

    def do_map(self, host, model, name, path, seed, offset, size):
        self.both("map", host, model, name, path, offset, blob(seed, size), False, model_call="write")

    def do_fsync(self, host, model, name, path):
        try:
            fd = os.open(self.at(host, model, name, path), os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            return
        os.fsync(fd)
        os.close(fd)

    def do_rename_draft(self, host, model, old, new):
        was = self.world.failed[host] | {key for key in self.world.drafts[host] if is_temporary(key[1])}
        self.both("rename_draft", host, model, old, new)
        if (model, old) in was and not is_temporary(new):
            self.outcome(host, model, new)

    def outcome(self, host, model, name):
        """Publishing has ended as the model says."""
        if name in self.world.versions(model) and (model, name) not in self.world.drafts[host]:
            self.mounts[host].wait_committed(f"{model}/{name}", timeout=30)
            self.tally["published"] += 1
        elif (model, name) in self.world.failed[host]:
            wait_for("failed", lambda: (self.mounts[host].state(f"{model}/{name}") or "").startswith("failed"), timeout=30)

    def do_commit(self, host, model, name):
        want = self.world.commit(host, model, name)
        done = self.hosts[host].run("commit", self.at(host, model, name))
        if (done.returncode == 0) != want:
            raise Failure(f"commit {model}/{name}: exit {done.returncode}, the model says {want}: {done.stderr}")
        self.outcome(host, model, name)

    def command(self, host, want, *words):
        done = self.hosts[host].run(*words)
        if done.returncode != (0 if want else 1):
            raise Failure(f"{words}: exit {done.returncode}, the model says {want}: {done.stderr}")

    def do_remove_version(self, host, model, name):
        self.command(host, self.world.remove_version(model, name), "rm", self.bucket, f"{model}/{name}")
        self.see(host)

    def do_gc(self, host):
        self.command(host, True, "gc", self.bucket, "--grace", "0s")

    def do_compact(self, host):
        self.command(host, True, "compact", self.bucket)

    def do_get(self, host, model, name):
        target = self.test.tmp / "got"
        shutil.rmtree(target, ignore_errors=True)
        there = name in self.world.versions(model)
        self.command(host, there, "get", self.bucket, f"{model}/{name}", target)
        if there:
            self.compare(target, self.world.versions(model)[name], f"get {model}/{name}")

    def do_remount(self, host):
        self.mounts[host].umount()
        self.mounts[host] = self.hosts[host].mount(self.bucket, *OPTIONS)

    def do_kill(self, host):
        self.mounts[host].kill9()
        self.mounts[host] = self.hosts[host].mount(self.bucket, *OPTIONS)

    def do_look(self, host):
        for model in MODELS:
            for name in sorted(self.world.shown(host, model)):
                self.compare(self.at(host, model, name), self.world.shown_tree(host, model, name), f"host {host}: {model}/{name}")

    def compare(self, top, want, what):
        got = {}
        for path, content in harness.tree(top).items():
            got[path] = (content, os.stat(top / path).st_mode & 0o100 != 0) if isinstance(content, bytes) else content
        if set(got) != set(want):
            raise Failure(f"{what} has {sorted(got)}, not {sorted(want)}")
        for path, content in want.items():
            if got[path] != content:
                raise Failure(f"{what}: '{path}' differs from what was written")

    def finish(self):
        """At the end of all steps: both mounts, and who has never seen any of it."""
        for host in range(2):
            self.see(host)
            self.do_look(host)
        for model in MODELS:
            for name, tree in self.world.versions(model).items():
                target = self.test.tmp / "fresh"
                shutil.rmtree(target, ignore_errors=True)
                self.reader.ok("get", self.bucket, f"{model}/{name}", target)
                self.compare(target, tree, f"a fresh get of {model}/{name}")
        if self.world.live:
            self.reader.ok("verify", self.bucket, "--deep")
        for mount in self.mounts:
            mount.umount()
        print(f"  {self.tally}")


def run(steps):
    """None, or how it failed: (kind of step, text, steps until then)."""
    test = harness.Test()
    kind, count = "start", 0
    try:
        with test.cleanup:
            this = Run(test)
            for step in steps:
                kind, count = step[0], count + 1
                this.step(*step)
            kind = "end"
            this.finish()
    except (Failure, AssertionError, OSError, subprocess.TimeoutExpired) as error:
        logs = "".join(f"--- daemon of {mount}, exit code {code}\n{log}" for mount, code, log in test.mounts)
        return kind, f"{error}\n{traceback.format_exc(limit=-3)}\n{logs}", count
    return None


def shrink(steps, kind, budget=180):
    """Fewer steps that fail in the same kind of step, as far as that is found within `budget` seconds."""
    deadline, size = time.monotonic() + budget, len(steps) // 2
    while size and time.monotonic() < deadline:
        at = 0
        while at < len(steps) and time.monotonic() < deadline:
            fewer = steps[:at] + steps[at + size:]
            failed = run(fewer)
            if failed and failed[0] == kind:
                steps = fewer
            else:
                at += size
        size //= 2
    return steps


def check(seed, length):
    print(f"seed {seed}, {length} steps", flush=True)
    steps = make_sequence(random.Random(seed), length)
    failed = run(steps)
    if failed:
        print(f"failed at step {failed[2]}: {failed[1].splitlines()[0]}\nlooking for a shorter sequence", flush=True)
        steps = shrink(steps[:failed[2]], failed[0])
        again = run(steps) or failed
        script = "\n".join(f"    {step}" for step in steps)
        raise Failure(f"seed {seed} fails:\n{failed[1]}\nThese steps do, too:\n{script}\n{again[1]}")


def test_two_mounts_do_what_the_model_says(t):
    first = os.environ.get("WEIGHTFS_MODEL_SEED")
    for i in range(CI_SEQUENCES if first is None else 1):
        check(int(first) if first is not None else 20261201 + i, CI_LENGTH)


def for_long(seconds, seed):
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        check(seed + count, LENGTH)
        count += 1
    print(f"{count} sequences of {LENGTH} steps did what the model says")


if sys.argv[1:2] == ["--seconds"]:
    for_long(int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else time.time_ns() % 1_000_000_000)
else:
    harness.main(globals())
