"""Many readers and publishers, gc and eviction at once, in little memory; and what is left after many mounts.

WEIGHTFS_LOAD_SECONDS (default 30) and WEIGHTFS_LOAD_ROUNDS (default 15): tests/tools/load runs 600 and 1000.
"""

import collections
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
import harness
import safetensors_file
from harness import CHAIN, Failure, expect_same_tree, wait_for

SECONDS = int(os.environ.get("WEIGHTFS_LOAD_SECONDS", "30"))
ROUNDS = int(os.environ.get("WEIGHTFS_LOAD_ROUNDS", "15"))
PUBLISHERS, READER_PROCESSES, THREADS_EACH, OPEN_FILES = 8, 8, 8, 200
KEPT = 4  # live versions of a model
SIZE = 3 << 20
MEMORY = 256 << 20
DEADLINE = 60  # seconds, of one operation, on a machine that others use, too


class Cgroup:
    """A memory cgroup, of version 1 or 2. `enter` is the beginning of a command line that runs in it."""

    def __init__(self, test, limit):
        one = pathlib.Path("/sys/fs/cgroup/memory")
        self.old = one.is_dir()
        self.path = (one if self.old else pathlib.Path("/sys/fs/cgroup")) / f"weightfs-test-{os.getpid()}"
        if not self.old:
            pathlib.Path("/sys/fs/cgroup/cgroup.subtree_control").write_text("+memory")
        self.path.mkdir()
        test.cleanup.callback(self.remove)
        (self.path / ("memory.limit_in_bytes" if self.old else "memory.max")).write_text(str(limit))
        self.enter = ["sh", "-c", f'echo $$ >{self.path}/cgroup.procs && exec "$@"', "sh"]

    def killed(self):
        name = "memory.oom_control" if self.old else "memory.events"
        return int(dict(line.split() for line in (self.path / name).read_text().splitlines())["oom_kill"])

    def remove(self):
        def gone():
            try:
                self.path.rmdir()
                return True
            except OSError:
                return False
        wait_for("end of the cgroup", gone)


def weights(model, step):
    """Tensors of a model at a step: each step changes a hundredth of the elements."""
    rng = random.Random(f"{model}")
    data = bytearray(rng.randbytes(SIZE))
    for done in range(step):
        rng = random.Random(f"{model} {done}")
        for _ in range(SIZE // 200):
            data[rng.randrange(SIZE // 2) * 2] ^= 1
    return bytes(data)


def publish(host, mount, bucket, sources, number, stop, errors):
    """Publishes step after step of one model, and removes the oldest."""
    model, live, data = f"p{number}", collections.deque(), bytearray(weights(number, 0))
    try:
        step = 0
        while not stop.is_set():
            name = f"s{step:05d}"
            rng = random.Random(f"{model} {step}")
            for _ in range(SIZE // 200):
                data[rng.randrange(SIZE // 2) * 2] ^= 1
            source = sources / model / f".{name}"
            source.mkdir(parents=True)
            half = SIZE // 2
            safetensors_file.write(source / "model.safetensors", {"a": bytes(data[:half]), "b": bytes(data[half:])})
            (source / "config.json").write_text(json.dumps({"step": step}))
            shutil.copytree(source, mount / model / name)
            host.ok("commit", mount / model / name, timeout=4 * DEADLINE)
            source.rename(sources / model / name)
            live.append(name)
            if len(live) > KEPT:
                old = live.popleft()
                (sources / model / old).rename(sources / model / f".{old}")
                host.ok("rm", bucket, f"{model}/{old}", timeout=4 * DEADLINE)
            step += 1
    except BaseException as error:
        errors.append(f"publisher {number}: {error!r}")
    errors.append(None)


class Reader:
    """Reads at random of files that stay open and of new ones, compares, and times each operation."""

    def __init__(self, mount, sources, seed, open_files, stop):
        self.mount, self.sources, self.rng, self.stop = mount, sources, random.Random(seed), stop
        self.most, self.open, self.longest, self.bytes, self.reads, self.errors = open_files, [], 0.0, 0, 0, []

    def timed(self, call, *args):
        started = time.monotonic()
        try:
            return call(*args)
        finally:
            self.longest = max(self.longest, time.monotonic() - started)

    def new_file(self):
        models = [path for path in self.sources.iterdir()]
        versions = [path for path in self.rng.choice(models).iterdir() if not path.name.startswith(".")] if models else []
        if not versions:
            return
        version = self.rng.choice(versions)
        try:
            local = os.open(version / "model.safetensors", os.O_RDONLY)
        except FileNotFoundError:
            return  # removed just now
        path = self.mount / version.relative_to(self.sources) / "model.safetensors"
        for attempt in range(100):  # the reading host hears of it by its poll
            try:
                self.open.append((version, local, self.timed(os.open, path, os.O_RDONLY)))
                return
            except OSError as error:
                if not version.exists():
                    break
                if attempt == 99:
                    self.errors.append(f"open {path}: {error}")
                time.sleep(0.1)
        os.close(local)

    def drop(self, at):
        _, local, remote = self.open.pop(at)
        os.close(local)
        os.close(remote)

    def read(self):
        at = self.rng.randrange(len(self.open))
        version, local, remote = self.open[at]
        offset = self.rng.randrange(SIZE)
        length = self.rng.choice([100, 5000, 70_000, 1 << 20])
        want = os.pread(local, length, offset)
        got = b""
        try:
            while len(got) < len(want):  # a read that meets an error half way is short; the next one has the error
                more = self.timed(os.pread, remote, length - len(got), offset + len(got))
                got += more
                if not more:
                    break
        except OSError as error:
            if version.exists():
                self.errors.append(f"read {version} {offset}+{length}: {error}")
            if want[: len(got)] != got:
                self.errors.append(f"{version}: wrong bytes at {offset}+{len(got)}")
            return self.drop(at)  # removed, and collected
        self.bytes += len(got)
        self.reads += 1
        if got != want:
            self.errors.append(f"{version}: wrong bytes at {offset}+{length}")

    def run(self):
        while not self.stop.is_set() and not self.errors:
            if len(self.open) < self.most or self.rng.random() < 0.03:
                if len(self.open) >= self.most:
                    self.drop(self.rng.randrange(len(self.open)))
                self.new_file()
            if self.open:
                self.read()
            else:
                time.sleep(0.05)
        while self.open:
            self.drop(0)


def read_many(mount, sources, process, stop, results):
    """Readers of one process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    share = OPEN_FILES // READER_PROCESSES // THREADS_EACH + 1
    readers = [Reader(mount, sources, process * 100 + i, share, stop) for i in range(THREADS_EACH)]
    threads = [threading.Thread(target=reader.run) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put((max(r.longest for r in readers), sum(r.bytes for r in readers), sum(r.reads for r in readers),
                 [error for r in readers for error in r.errors]))


def collect(host, bucket, stop, errors):
    while not stop.wait(2):
        done = host.run("gc", bucket, "--grace", "5s", timeout=4 * DEADLINE)
        if done.returncode != 0:
            errors.append(f"gc: {done.stderr}")


def test_everything_at_once_in_256_megabytes(t):
    bucket, sources = t.dir_bucket(), t.tmp / "sources"
    sources.mkdir()
    group = Cgroup(t, MEMORY)
    trainer, server, cleaner = t.host("trainer"), t.host("server"), t.host("cleaner")
    common = ("--memory", "256M", "--poll", "200ms")
    writing = trainer.mount(bucket, *common, "--settle", "1h", "--settle-live", "1h")
    reading = server.mount(bucket, *common, "--cache-size", "48M", wrap=group.enter)
    stop_writing, stop_reading, errors = threading.Event(), multiprocessing.Event(), []
    results = multiprocessing.Queue()
    readers = [multiprocessing.Process(target=read_many, args=(reading.dir, sources, i, stop_reading, results)) for i in range(READER_PROCESSES)]
    for reader in readers:
        reader.start()
        t.cleanup.callback(reader.kill)
    for number in range(PUBLISHERS):
        (writing / f"p{number}").mkdir()
    writers = [threading.Thread(target=publish, args=(trainer, writing, bucket, sources, i, stop_writing, errors)) for i in range(PUBLISHERS)]
    writers.append(threading.Thread(target=collect, args=(cleaner, bucket, stop_writing, errors)))
    for writer in writers:
        writer.start()
    end, resident = time.monotonic() + SECONDS, 0
    try:
        while time.monotonic() < end and not any(errors):
            resident = max(resident, server.json("stats", reading.dir)["resident_bytes"])
            time.sleep(1)
    finally:
        stop_writing.set()
        for writer in writers:
            writer.join()
        stop_reading.set()
        reports = [results.get(timeout=4 * DEADLINE) for _ in readers]
    errors += [error for report in reports for error in report[3]]
    counters = server.json("stats", reading.dir)
    longest, read, reads = max(r[0] for r in reports), sum(r[1] for r in reports), sum(r[2] for r in reports)
    versions = len(list(sources.glob("*/*"))) + len(list(sources.glob("*/.s*")))
    print(f"{reads} reads, {read >> 20} MiB compared, {versions} versions published, longest operation {longest:.2f} s, "
          f"resident at most {resident >> 20} MiB, cache {counters['cache_bytes'] >> 20} MiB")
    assert not any(errors), [error for error in errors if error][:10]
    assert group.killed() == 0 and 0 < resident <= MEMORY
    assert longest < DEADLINE, longest
    assert counters["cache_bytes"] <= 48 << 20
    assert reads > 100 and versions > PUBLISHERS
    for mount in (writing, reading):
        mount.umount()
    cleaner.ok("verify", bucket, "--deep", timeout=600)


def of_process(pid):
    """(open files, threads, resident KiB)"""
    status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]), int(status["VmRSS"].split()[0])


def test_rounds_of_mounting_and_publishing_leave_nothing_behind(t):
    """A daemon that stays sees another mount, publish and unmount again and again; neither it nor the disk keeps anything."""
    bucket = t.dir_bucket()
    stays = t.host("stays").mount(bucket, "--poll", "100ms")
    host, first = t.host("comes"), None
    leftovers = lambda: sorted(str(path.relative_to(host.cache)) for path in host.cache.rglob("*") if "/files/" not in str(path))
    for number in range(ROUNDS):
        mount = host.mount(bucket, "--poll", "100ms", "--cache-size", "64M")
        source = CHAIN[number % len(CHAIN)]
        shutil.copytree(source, mount / f"m/v{number}")
        host.ok("commit", mount / f"m/v{number}")
        expect_same_tree(mount / f"m/v{number}", source)
        seen = stays / f"m/v{number}"
        wait_for("the version", seen.is_dir)
        expect_same_tree(seen, source)
        mount.umount()
        if number >= 3:
            host.ok("rm", bucket, f"m/v{number - 3}")
            wait_for("its end", lambda: not (stays / f"m/v{number - 3}").exists())
        if number == min(ROUNDS // 2, 20):
            first, files = of_process(stays.daemon.pid), leftovers()
    last = of_process(stays.daemon.pid)
    print(f"{ROUNDS} rounds; open files, threads, resident KiB of the daemon that stays: {first} -> {last}")
    assert last[0] <= first[0] + 2 and last[1] <= first[1] + 2, (first, last)
    assert last[2] <= first[2] * 1.3 + 8192 + 16 * ROUNDS, (first, last)  # a version's record stays in the log: some KiB each
    assert leftovers() == files
    stays.umount()


harness.main(globals())
