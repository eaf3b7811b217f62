"""What reads fetch, hold and survive: counted at the S3 server, at the cache's disk and at the daemon's memory."""

import concurrent.futures
import json
import mmap
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request

import harness
import s3
import safetensors_file
from harness import WEIGHTFS

MIB = 1 << 20
BENCH = pathlib.Path(WEIGHTFS).parent / "tools" / "bench"
WATCHDOG = 120  # seconds, of what takes a few


def probe_command(*words):
    return [str(BENCH / "weightfs_bench_probe"), *map(str, words)]


def probe(*words):
    done = subprocess.run(probe_command(*words), capture_output=True, text=True, check=False, timeout=WATCHDOG)
    if done.returncode != 0:
        raise harness.Failure(f"probe {words}: {done.stderr}")
    return json.loads(done.stdout)


class Link:
    """All connections to the S3 server over one link (tools/bench/link.cc), which counts."""

    def __init__(self, t, bucket, rate=0, trip_ms=0):
        port = urllib.parse.urlsplit(s3.server_settings()["S3_ENDPOINT"]).port
        self.process = t.process(BENCH / "weightfs_bench_link", port, rate, trip_ms, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        port = json.loads(self.process.stdout.readline())["port"]
        self.env = {**bucket.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


class FaultyLink:
    """The S3 server through tests/fault/fault_proxy.py, going wrong as `rules` say."""

    def __init__(self, t, bucket, rules):
        upstream = s3.server_settings()["S3_ENDPOINT"]
        (t.tmp / "rules.json").write_text(json.dumps(rules))
        script = harness.ROOT / "tests" / "fault" / "fault_proxy.py"
        self.process = t.process(sys.executable, script, "--upstream", upstream, "--rules", t.tmp / "rules.json", stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, text=True)
        ports = json.loads(self.process.stdout.readline())
        self.control = f"http://127.0.0.1:{ports['control']}"
        self.env = {**bucket.env, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['port']}"}

    def sent(self):
        """Bytes of bodies that clients got."""
        with urllib.request.urlopen(self.control + "/counters") as answer:
            return json.load(answer)["sent"]


def checkpoint(t, name, shards=1, tensors=4, size=4 * MIB):
    """Shards of bf16 noise with an index: hardly compressible."""
    path = t.tmp / name
    path.mkdir()
    names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    weight_map = {}
    for at, shard in enumerate(names):
        values = {f"layer.{at}.{i}.weight": os.urandom(size) for i in range(tensors)}
        weight_map.update({key: shard for key in values})
        safetensors_file.write(path / shard, values)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path, names


def rss_peak(pid):
    return int(re.search(r"VmHWM:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1)) * 1024


def on_disk(cache):
    total = 0
    for folder, _, files in os.walk(cache):
        for name in files if "/files" in folder else []:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                pass  # evicted meanwhile
    return total


def test_64_readers_of_one_cold_shard_fetch_it_once_s3(t):
    bucket = t.s3()
    source, names = checkpoint(t, "v")
    sent = t.host("writer", bucket.env).json("publish", source, bucket.url, "m/v0")["sent_bytes"]
    mount = t.host("reader", bucket.env).mount(bucket.url, "--poll", "10m")
    bucket.proxy.reset_counts()
    got = probe("readers", 64, mount / "m/v0" / names[0])
    moved = bucket.proxy.received
    assert got["sum"] == probe("read", source / names[0])["sum"]
    print(f"64 readers: {sent} encoded, {moved} moved")
    assert moved <= 1.02 * sent + 16 * 1024, (moved, sent)
    mount.umount()


def test_a_whole_load_moves_what_is_encoded_and_nothing_more_s3(t):
    bucket = t.s3()
    source, names = checkpoint(t, "v", shards=4)
    sent = t.host("writer", bucket.env).json("publish", source, bucket.url, "m/v0")["sent_bytes"]
    for how in (["read"], ["map", 1], ["map", 8]):
        host = t.host("-".join(map(str, how)), bucket.env)
        mount = host.mount(bucket.url, "--poll", "10m")
        bucket.proxy.reset_counts()
        got = probe(*how, *[mount / "m/v0" / name for name in names])
        moved = bucket.proxy.received
        assert got["sum"] == probe("read", *[source / name for name in names])["sum"]
        print(f"{how}: {sent} encoded, {moved} moved in {bucket.proxy.requests} requests")
        assert moved <= 1.02 * sent + 16 * 1024, (how, moved, sent)
        mount.umount()


def test_the_next_shard_is_on_its_way_when_a_reader_comes_to_it_s3(t):
    bucket = t.s3()
    source, names = checkpoint(t, "v", shards=2)
    t.host("writer", bucket.env).ok("publish", source, bucket.url, "m/v0")
    host = t.host("reader", bucket.env)
    mount = host.mount(bucket.url, "--poll", "10m")
    probe("read", mount / "m/v0" / names[0])
    # Nobody has touched the second one.
    harness.wait_for("blocks of the next shard", lambda: on_disk(host.cache) > 16 * MIB + 4 * MIB)
    mount.umount()


def test_one_tensor_is_one_round_trip_for_its_frames_s3(t):
    bucket = t.s3()
    source, names = checkpoint(t, "v", shards=2, tensors=8)
    sent = t.host("writer", bucket.env).json("publish", source, bucket.url, "m/v0")["sent_bytes"]
    link = Link(t, bucket)
    mount = t.host("reader", link.env).mount(bucket.url, "--poll", "10m")
    path = mount / "m/v0" / names[0]
    places = list(safetensors_file.places(path).values())  # the header is read through the mount, as by every loader
    # Connections are open, the metadata is here.
    probe("map", 8, mount / "m/v0" / names[1])
    probe("piece", places[2][0] + MIB, 4096, path)
    trip = 700
    link.ask(f"link 0 {trip}")
    page = probe("piece", places[6][0] + 2 * MIB, 4096, path)["seconds"]  # one block
    link.ask("reset")
    offset, length = places[4]
    got = probe("piece", offset, length, path)
    moved = link.ask("counts")
    print(f"a block {page:.2f} s, a tensor of {length} bytes {got['seconds']:.2f} s, {moved}")
    # Not two: the round trip is what takes time.
    assert got["seconds"] < 1.8 * page, (got, page)
    # The kernel's pages reach into the blocks before and behind it.
    assert moved["received"] < sent / 16 + 2 * MIB + 64 * 1024, moved
    link.ask("link 0 0")
    mount.umount()


def test_a_complete_file_is_passed_through_and_all_its_handles_agree(t):
    bucket = t.dir_bucket()
    source, names = checkpoint(t, "v", tensors=2)
    t.host("writer").ok("publish", source, bucket, "m/v0")
    mount = t.host("reader").mount(bucket, "--poll", "10m")
    path, want = mount / "m/v0" / names[0], (source / names[0]).read_bytes()
    can = mount.host.json("status", mount.dir)["passthrough"]
    print(f"passthrough: {can}")
    assert can == "on" or os.geteuid() != 0 or tuple(map(int, os.uname().release.split(".")[:2])) < (6, 9)
    passed = lambda: mount.host.json("stats", mount.dir)["reads_passthrough"]

    def opened_and_read(flags=0):
        descriptor = os.open(path, os.O_RDONLY | flags)
        try:
            buffer = mmap.mmap(-1, 1 << 20)
            at = 0
            while got := os.preadv(descriptor, [buffer], at):
                assert buffer[:got] == want[at:at + got]
                at += got
            assert at == len(want)
            with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
                assert mapped[:] == want
        finally:
            os.close(descriptor)

    with open(path, "rb") as first:
        assert first.read() == want  # now it is complete, but this handle is the daemon's
        opened_and_read()
        opened_and_read(os.O_DIRECT)
        assert passed() == 0
    if can == "on":
        # RELEASE comes some time after close.
        harness.wait_for("a passed through open", lambda: opened_and_read() or passed() > 0)
    with open(path, "rb") as held:  # by the kernel, or not: the others are as this one is
        before = passed()
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            for done in [pool.submit(opened_and_read, flags) for flags in [0, os.O_DIRECT] * 32]:
                done.result()
        assert held.read() == want
        assert passed() == (before + 64 if can == "on" else 0)
    mount.umount()


def test_a_silent_and_a_crawling_answer_are_asked_for_again_from_where_they_stopped_s3(t):
    bucket = t.s3()
    source, names = checkpoint(t, "v", tensors=16)
    sent = t.host("writer", bucket.env).json("publish", source, bucket.url, "m/v0")["sent_bytes"]
    for name, nth, fault in (("silent", 2, {"do": "stall", "when": "body", "after": 300_000}), ("crawling", 7, {"do": "drip", "rate": 2000})):
        link = FaultyLink(t, bucket, [{"method": "GET", "key": "packs/.*-0$", "nth": nth, **fault}])
        mount = t.host(name, link.env).mount(bucket.url, "--poll", "10m")
        begin = time.monotonic()
        got = probe("read", mount / "m/v0" / names[0])
        seconds = time.monotonic() - begin
        assert got["sum"] == probe("read", source / names[0])["sum"]
        retries = mount.host.json("stats", mount.dir)["bucket_retries"]
        print(f"{name}: {seconds:.1f} s, {retries} asked again")
        # A server may be silent for 30 s before that is an error, and the crawling answer would take minutes.
        assert retries >= 1 and seconds < 25, (name, seconds, retries)
        assert link.sent() < sent + MIB, "what had come was fetched again"
        mount.umount()


def test_the_quota_holds_while_more_than_fits_is_read(t):
    host, bucket = t.host("a"), t.dir_bucket()
    source, names = checkpoint(t, "v", shards=6)
    t.host("writer").ok("publish", source, bucket, "m/v0")
    quota, blocks_in_flight = 40 * MIB, os.cpu_count() * MIB
    mount = host.mount(bucket, "--cache-size", "40M", "--poll", "10m")
    largest, ended = 0, threading.Event()

    def watch():
        nonlocal largest
        while not ended.wait(0.01):
            largest = max(largest, on_disk(host.cache))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for _ in range(2):
            got = probe("read", *[mount / "m/v0" / name for name in names])
            assert got["sum"] == probe("read", *[source / name for name in names])["sum"]
    finally:
        ended.set()
        watcher.join()
    print(f"quota {quota}, at most {largest} on disk")
    assert 16 * MIB < largest <= quota + blocks_in_flight, largest
    mount.umount()


def small_disk(t, size):
    """A mounted tmpfs of `size` bytes, unmounted at the end."""
    path = t.tmp / "small-disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "weightfs-test", str(path)], check=True)
    t.cleanup.callback(lambda: subprocess.run(["umount", "-l", str(path)], check=True))
    return path


def test_reads_go_on_from_memory_when_the_cache_disk_is_full_or_read_only(t):
    bucket = t.dir_bucket()
    source, names = checkpoint(t, "v", shards=3)
    t.host("writer").ok("publish", source, bucket, "m/v0")
    want = probe("read", *[source / name for name in names])["sum"]
    disk = small_disk(t, 24 * MIB)
    mount = t.host("reader", {"WEIGHTFS_CACHE": str(disk / "cache")}).mount(bucket, "--poll", "10m")
    paths = [mount / "m/v0" / name for name in names]
    (disk / "filler").write_bytes(bytes(16 * MIB))
    assert probe("read", *paths)["sum"] == want
    assert probe("map", 4, *paths)["sum"] == want
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=False)  # refused while files are open for writing
    assert probe("direct", *paths)["sum"] == want
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    mount.umount()


def memory_cgroup(t, limit):
    """A memory cgroup of `limit` bytes (version 1 or 2): the file whose writers join it."""
    for top, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = pathlib.Path(top) / f"weightfs-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        t.cleanup.callback(group.rmdir)
        if (group / name).exists():
            (group / name).write_text(str(limit))
            return group / "cgroup.procs"
    return None


def test_the_memory_option_bounds_the_daemon_in_a_cgroup(t):
    bucket = t.dir_bucket()
    source, names = checkpoint(t, "v", shards=4, tensors=8)  # 128 MiB
    t.host("writer").ok("publish", source, bucket, "m/v0")
    group = memory_cgroup(t, 96 * MIB)  # pages of the cache count there, too, and are given back under pressure
    mount = t.host("reader").mount(bucket, "--memory", "64M", "--poll", "10m")
    if group:
        group.write_text(str(mount.daemon.pid))
    paths = [mount / "m/v0" / name for name in names]
    assert probe("map", 8, *paths)["sum"] == probe("read", *[source / name for name in names])["sum"]
    peak = rss_peak(mount.daemon.pid)
    print(f"128 MiB read, resident at most {peak / MIB:.0f} MiB{'' if group else ', no cgroup here'}")
    assert peak <= 64 * MIB, peak
    if group:
        (group.parent.parent / "cgroup.procs").write_text(str(mount.daemon.pid))
    mount.umount()


def test_nothing_hangs_while_pages_are_faulted_versions_come_and_files_are_evicted(t):
    """32 threads fault pages, one lists, one publishes, the cache is too small; then the mount is taken away. Every wait has a
    watchdog, and every reader dies of SIGKILL at once."""
    writer, bucket = t.host("writer"), t.dir_bucket()
    source, names = checkpoint(t, "v", shards=2, tensors=2)
    writer.ok("publish", source, bucket, "m/v0")
    want = probe("read", *[source / name for name in names])["sum"]
    mount = t.host("reader").mount(bucket, "--cache-size", "24M", "--poll", "1s")
    ended = threading.Event()
    failures = []

    def repeatedly(act):
        def body():
            while not ended.is_set():
                try:
                    act()
                except BaseException as error:  # told to the test's own thread
                    failures.append(error)
                    return
        thread = threading.Thread(target=body)
        thread.start()
        return thread

    def read():
        version = max(name for name in os.listdir(mount / "m") if name.startswith("v"))
        got = probe("map", 32, *[mount / "m" / version / name for name in names])
        assert got["sum"] == want, "wrong bytes"

    def list_all():
        subprocess.run(["ls", "-lR", str(mount.dir)], check=True, stdout=subprocess.DEVNULL, timeout=WATCHDOG)

    threads = [repeatedly(read), repeatedly(read), repeatedly(list_all)]
    for i in range(1, 5):
        writer.ok("publish", source, bucket, f"m/v{i}", "--no-parent", timeout=WATCHDOG)
        harness.wait_for(f"v{i} in the mount", (mount / f"m/v{i}").is_dir, WATCHDOG)
    ended.set()
    for thread in threads:
        thread.join(WATCHDOG)
        assert not thread.is_alive(), "a reader hangs"
    assert not failures, failures
    # Killed in the middle of faults, with the mount going away under it.
    reader = subprocess.Popen(probe_command("map", 32, *[mount / "m/v0" / name for name in names]), stdout=subprocess.DEVNULL)
    mount.daemon.send_signal(signal.SIGTERM)
    reader.kill()
    begin = time.monotonic()
    reader.wait(WATCHDOG)
    assert time.monotonic() - begin < 5, "a task survived SIGKILL"
    mount.daemon.wait(WATCHDOG)


def test_many_versions_and_many_blocks_take_little_memory_and_few_requests(t):
    """The small form of tools/bench/scale."""
    out = t.tmp / "rows.json"
    subprocess.run([harness.ROOT / "tools" / "bench" / "scale", "--models", "10", "--versions", "100", "--blocks", "100000", "--json",
                    str(out)], check=True, timeout=WATCHDOG)
    rows = {row["what"]: row for row in json.loads(out.read_text())}
    assert max(row["rss_peak_mib"] for row in rows.values()) < 100, rows
    assert rows["ls of the bucket"]["requests"] < 10, rows
    # The snapshot, what came since, and where the log ends.
    assert rows["ls of a model"]["requests"] < 32 + 16, rows
    assert rows["first read of its newest version"]["requests"] <= 3, rows
    assert rows["first read of its last file"]["requests"] <= 3, rows


harness.main(globals())
