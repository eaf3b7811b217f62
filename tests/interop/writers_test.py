"""Every way in which people write checkpoints, with the real programs, unchanged: what another host gets is what was written.
Run by tests/tools/python."""

import json
import mmap
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
warnings.filterwarnings("ignore")

import harness
import safetensors.torch
import torch
from harness import CHAIN, expect_same_tree


class Writers:
    """One mount, one model; each way makes a version, and another host is asked for it."""

    def __init__(self, t, *options, settle=("200ms", "1s"), name="writer"):
        self.t, self.bucket = t, t.dir_bucket("bucket-of-" + name)
        self.host, self.reader = t.host(name), t.host("reader")
        self.mount = self.host.mount(self.bucket, "--settle", settle[0], "--settle-live", settle[1], *options)
        (self.mount / "m").mkdir()

    def path(self, name):
        return self.mount / "m" / name

    def expect(self, name, source, committed=False):
        if not committed:
            self.mount.wait_committed(f"m/{name}")
        dest = self.t.tmp / f"got-{name}"
        self.reader.ok("get", self.bucket, f"m/{name}", dest)
        expect_same_tree(dest, source)
        expect_same_tree(self.path(name), source)

    def stored(self):
        return {version["name"]: version for version in self.host.json("log", self.bucket, "m")["versions"]}


def run(*command, **more):
    done = subprocess.run(list(map(str, command)), check=False, capture_output=True, text=True, errors="replace", **more)
    assert done.returncode == 0, (command, done.stdout, done.stderr)


def checkpoint(t, i):
    """A step of the chain, with what else lies in checkpoints: dot files, pointers, empty, nested, linked and sparse ones."""
    source = t.tmp / f"source-{i}"
    shutil.copytree(CHAIN[i], source)
    (source / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
    (source / "optimizer.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:" + 64 * "0" + "\nsize 1234567\n")
    (source / "empty.txt").touch()
    (source / ".cache" / "hub").mkdir(parents=True)
    (source / ".cache" / "hub" / "etag").write_text(str(i))
    (source / "weights").symlink_to("model.safetensors")
    with open(source / "sparse.bin", "wb") as file:
        file.truncate(3 << 20)
        file.seek(1 << 20)
        file.write(os.urandom(5000))
    return source


def test_cp_rsync_tar_and_mv(t):
    w = Writers(t)
    source = [checkpoint(t, i) for i in range(7)]
    run("cp", "-r", source[0], w.path("cp-r"))
    w.expect("cp-r", source[0])
    run("cp", "-a", source[1], w.path("cp-a"))
    w.expect("cp-a", source[1])
    run("rsync", "-a", f"{source[2]}/", w.path("rsync"))
    w.expect("rsync", source[2])
    run("rsync", "-a", "--inplace", f"{source[3]}/", w.path("rsync-inplace"))
    w.expect("rsync-inplace", source[3])
    run("tar", "-C", source[4], "-cf", t.tmp / "x.tar", ".")
    w.path("tar").mkdir()
    run("tar", "-C", w.path("tar"), "-xf", t.tmp / "x.tar")
    w.expect("tar", source[4])
    run("cp", "-a", source[5], t.tmp / "to-move")
    run("mv", t.tmp / "to-move", w.path("mv"))
    w.expect("mv", source[5])
    # A loop of many cp is one draft.
    w.path("loop").mkdir()
    run("bash", "-c", 'for f in "$1"/* "$1"/.[!.]*; do cp -a "$f" "$2"; done', "_", source[6], w.path("loop"))
    w.expect("loop", source[6])
    stored = w.stored()
    assert set(stored) == {"cp-r", "cp-a", "rsync", "rsync-inplace", "tar", "mv", "loop"}
    w.mount.umount()


def test_rsync_updates_a_draft_in_place(t):
    w = Writers(t, settle=("1h", "1h"))
    old, new = checkpoint(t, 0), checkpoint(t, 1)
    for mode in ([], ["--inplace"], ["--inplace", "--no-whole-file"]):
        name = "v" + "".join(mode)
        run("rsync", "-a", f"{old}/", w.path(name))
        # By content: the two were made within a second, and have files of one size.
        run("rsync", "-a", "--checksum", *mode, f"{new}/", w.path(name))
        w.host.ok("commit", w.path(name))
        w.expect(name, new, committed=True)
    w.mount.umount()


def test_python_copies_and_moves(t):
    w = Writers(t)
    source = [checkpoint(t, i) for i in range(3)]
    shutil.copytree(source[0], w.path("copytree"), symlinks=True)
    w.expect("copytree", source[0])
    shutil.copytree(source[1], t.tmp / "to-move", symlinks=True)
    shutil.move(str(t.tmp / "to-move"), str(w.path("move")))
    w.expect("move", source[1])
    # As huggingface_hub downloads: to .cache/…/X.incomplete in the very directory, then moved to its name.
    target = w.path("hub")
    cache = target / ".cache" / "huggingface" / "download"
    cache.mkdir(parents=True)
    want = t.tmp / "hub"
    (want / ".cache" / "huggingface" / "download").mkdir(parents=True)
    for file in CHAIN[2].iterdir():
        partial = cache / (file.name + ".abc.incomplete")
        with open(partial, "wb") as out, open(file, "rb") as data:
            while block := data.read(1 << 16):
                out.write(block)
        shutil.move(str(partial), str(target / file.name))
        (cache / (file.name + ".metadata")).write_text("etag\n")
        (cache / (file.name + ".lock")).touch()
        shutil.copy(file, want / file.name)
        (want / ".cache" / "huggingface" / "download" / (file.name + ".metadata")).write_text("etag\n")
        (want / ".cache" / "huggingface" / "download" / (file.name + ".lock")).touch()
    w.expect("hub", want)
    w.mount.umount()


def test_dd_truncate_sparse_files_and_mappings(t):
    w = Writers(t, settle=("1h", "1h"))
    want, got = t.tmp / "want", w.path("v")
    for top in (want, got):
        top.mkdir()
        shutil.copy(CHAIN[0] / "model.safetensors", top / "model.safetensors")
        run("dd", f"if={CHAIN[1] / 'model.safetensors'}", f"of={top / 'model.safetensors'}", "bs=64k", "skip=3", "seek=3", "count=2",
            "conv=notrunc")
        run("truncate", "-s", "5M", top / "hole.bin")
        run("dd", f"if={CHAIN[1] / 'model.safetensors'}", f"of={top / 'hole.bin'}", "bs=4k", "seek=300", "count=10", "conv=notrunc")
        run("truncate", "-s", "4000001", top / "hole.bin")
        run("truncate", "-s", "0", top / "model.safetensors.bak")
        with open(top / "mapped.bin", "w+b") as file:
            file.truncate(2 << 20)
            with mmap.mmap(file.fileno(), 2 << 20) as view:
                view[100:200] = bytes(range(100))
                view.flush()
                view[1 << 20:(1 << 20) + 7] = b"written"
    w.host.ok("commit", got)
    w.expect("v", want, committed=True)
    assert stat.S_IMODE(os.stat(got / "hole.bin").st_mode) == 0o444
    w.mount.umount()


def test_torch_and_safetensors_save_in_every_way(t):
    w = Writers(t)
    states = [safetensors.torch.load_file(step / "model.safetensors") for step in CHAIN[:3]]
    ways = {"serialize": lambda path, state: (path / "model.safetensors").write_bytes(safetensors.torch.save(state, {"format": "pt"})),
            "torch": lambda path, state: torch.save(state, path / "pytorch_model.bin"),
            "both": lambda path, state: (torch.save({"step": 1}, path / "optimizer.pt"),
                                         (path / "model.safetensors").write_bytes(safetensors.torch.save(state, {"format": "pt"})))}
    for way, save in ways.items():
        for i, state in enumerate(states):
            local = t.tmp / f"{way}-{i}"
            for path in (local, w.path(f"{way}-{i}")):
                path.mkdir()
                save(path, state)
            w.expect(f"{way}-{i}", local)
    stored = w.stored()
    assert stored["serialize-1"]["stored_bytes"] < stored["serialize-1"]["plain_bytes"] / 10, stored["serialize-1"]
    w.mount.umount()


def rotate(path, step, source, keep):
    """As a trainer with save_total_limit does."""
    directory = path / f"checkpoint-{step}"
    shutil.copytree(source, directory)
    saved = sorted((p for p in path.iterdir() if p.name.startswith("checkpoint-")), key=lambda p: int(p.name[11:]))
    return [old for old in saved[:-keep]]


def test_rotation_is_refused_or_removes_the_version_for_all(t):
    w = Writers(t)
    shutil.copytree(CHAIN[0], w.path("checkpoint-0"))
    w.expect("checkpoint-0", CHAIN[0])
    try:
        shutil.rmtree(w.path("checkpoint-0"))
        raise AssertionError("a committed version was removed")
    except OSError as error:
        assert error.errno == 30, error  # EROFS
    w.mount.umount()

    w = Writers(t, "--allow-remove", name="remover")
    (w.mount / "run").mkdir()
    for step in range(4):
        for old in rotate(w.mount / "run", step, CHAIN[step], 2):
            w.mount.wait_committed(f"run/{old.name}")
            shutil.rmtree(old)
        w.mount.wait_committed(f"run/checkpoint-{step}")
    assert w.reader.versions(w.bucket, "run") == ["checkpoint-2", "checkpoint-3"]
    # The name is free again, and is another version.
    shutil.copytree(CHAIN[5], w.mount / "run" / "checkpoint-0")
    w.mount.wait_committed("run/checkpoint-0")
    dest = t.tmp / "again"
    w.reader.ok("get", w.bucket, "run/checkpoint-0", dest)
    expect_same_tree(dest, CHAIN[5])
    w.mount.umount()


def reshard(state, names, path):
    """The tensors of `state` in as many files as `names` has lists, with the index."""
    path.mkdir(parents=True)
    index = {"metadata": {}, "weight_map": {}}
    for number, part in enumerate(names, 1):
        file = f"model-{number:05d}-of-{len(names):05d}.safetensors"
        safetensors.torch.save_file({name: state[name].contiguous() for name in part}, path / file)
        index["weight_map"].update({name: file for name in part})
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def test_tensors_that_moved_are_still_deltas(t):
    w = Writers(t)
    states = [safetensors.torch.load_file(step / "model.safetensors") for step in CHAIN[:5]]
    names = sorted(states[0])
    split = lambda count: [names[i::count] for i in range(count)]
    layouts = [split(8), split(4), [names], [list(reversed(part)) for part in split(3)], split(5)]
    for i, (state, layout) in enumerate(zip(states, layouts)):
        if i == 4:  # one changed its type, one is gone, one is new, one occurs twice
            state = dict(state)
            state[names[1]] = state[names[1]].float()
            state["twice"] = state[names[2]].clone()
            state["new"] = torch.ones(1000, dtype=torch.bfloat16)
            layout = [[n for n in part if n != names[0]] for part in layout]
            layout[0] += ["twice", "new"]
        local = t.tmp / f"layout-{i}"
        reshard(state, layout, local)
        run("cp", "-r", local, w.path(f"v{i}"))
        w.expect(f"v{i}", local)
    stored = w.stored()
    full = stored["v0"]["stored_bytes"]
    for name in ("v1", "v2", "v3"):
        assert stored[name]["stored_bytes"] < full / 10, (name, stored[name], full)
    w.mount.umount()


harness.main(globals())
