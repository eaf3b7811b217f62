"""Real writers and loaders, unchanged, on real mounts: safetensors, transformers, numpy. Run by tests/tools/python."""

import os
import pathlib
import subprocess
import sys
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "integration"))
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")

import harness
import ml_dtypes  # first: safetensors' numpy loader finds bfloat16 through it
import safetensors.numpy
import safetensors.torch
import torch
import transformers
from harness import CHAIN, SHARDED, expect_same_tree
from safetensors import safe_open

assert ml_dtypes.bfloat16


def tensors_equal(got, want):
    assert got.keys() == want.keys()
    for name, tensor in want.items():
        assert got[name].dtype == tensor.dtype and torch.equal(got[name], tensor), name


def tiny_model(steps):
    """A transformer that has been trained so many steps."""
    torch.manual_seed(7)
    config = transformers.BertConfig(vocab_size=512, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
                                     intermediate_size=256, max_position_embeddings=64)
    model = transformers.BertModel(config).to(torch.bfloat16)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for parameter in model.parameters():
                mask = torch.rand(parameter.shape, generator=generator) < 0.01
                parameter[mask] *= 1.01
    return model


def check_loaders(directory, source):
    """Every way in which the libraries read a checkpoint gives what the original gives."""
    file, original = directory / "model.safetensors", source / "model.safetensors"
    want = safetensors.torch.load_file(original)
    tensors_equal(safetensors.torch.load_file(file), want)
    tensors_equal(safetensors.torch.load(file.read_bytes()), want)
    with safe_open(file, "pt") as got:
        assert set(got.keys()) == set(want)
        for name in got.keys():
            assert torch.equal(got.get_tensor(name), want[name])
            if want[name].dim() == 2:
                assert torch.equal(got.get_slice(name)[1:3], want[name][1:3])
    numpy_want = safetensors.numpy.load_file(original)
    for name, array in safetensors.numpy.load_file(file).items():
        assert array.tobytes() == numpy_want[name].tobytes()


def check_from_pretrained(directory, source, **more):
    got = transformers.BertModel.from_pretrained(directory, torch_dtype=torch.bfloat16, **more)
    want = transformers.BertModel.from_pretrained(source, torch_dtype=torch.bfloat16, **more)
    written = safetensors.torch.load_file(source / "model.safetensors") if (source / "model.safetensors").exists() else want.state_dict()
    # What is not in the checkpoint (a slice of a model) is made up at random each time.
    for name, tensor in got.state_dict().items():
        if name in written:
            assert torch.equal(tensor, want.state_dict()[name]), name


def every_way(t, bucket, env=None):
    """Versions written in each way; each read in every way from a mount with an empty cache."""
    host = t.host("writer", env)
    mount = host.mount(bucket, "--settle", "200ms", "--settle-live", "1s", "--poll", "1s")
    sources = {}

    def expect(name, source):
        mount.wait_committed(name)
        sources[name] = source

    # The model directory appears by cp -r; by publish beside the mount, through its daemon.
    (mount / "chain").mkdir()
    for i, step in enumerate(CHAIN):
        if i % 2 == 0:
            subprocess.run(["cp", "-r", step, mount / f"chain/step-{i}"], check=True)
        else:
            host.ok("publish", step, bucket, f"chain/step-{i}")
        expect(f"chain/step-{i}", step)

    # save_file straight into the mount: a temporary file of mode 0600, renamed while it is open.
    (mount / "saved").mkdir()
    for i, step in enumerate(CHAIN[:3]):
        local = t.tmp / f"saved-{i}"
        for directory in (local, mount / f"saved/step-{i}"):
            directory.mkdir()
            safetensors.torch.save_file(safetensors.torch.load_file(step / "model.safetensors"), directory / "model.safetensors",
                                        metadata={"format": "pt"})  # two keys would come in an order of their own
        expect(f"saved/step-{i}", local)

    # save_pretrained, whole and in shards.
    (mount / "trained").mkdir()
    for steps in range(3):
        for kind, options in (("whole", {}), ("shards", {"max_shard_size": "200KB"})):
            local = t.tmp / f"{kind}-{steps}"
            tiny_model(steps).save_pretrained(local, **options)
            tiny_model(steps).save_pretrained(mount / f"trained/{kind}-{steps}", **options)
            expect(f"trained/{kind}-{steps}", local)

    # A checkpoint in shards, copied.
    (mount / "sharded").mkdir()
    for i, step in enumerate(SHARDED):
        subprocess.run(["cp", "-r", step, mount / f"sharded/step-{i}"], check=True)
        expect(f"sharded/step-{i}", step)

    for name, source in sources.items():
        reader = t.host("reader-" + name.replace("/", "-"), env).mount(bucket)
        directory = reader / name
        if (source / "model.safetensors").exists():
            check_loaders(directory, source)
        if name.startswith("trained"):
            check_from_pretrained(directory, source)
            steps = int(name[-1])
            for parameter, other in zip(transformers.BertModel.from_pretrained(directory, torch_dtype=torch.bfloat16).parameters(),
                                        tiny_model(steps).parameters()):
                assert torch.equal(parameter, other)
        elif name.startswith("chain"):
            check_from_pretrained(directory, source, vocab_size=128)
        expect_same_tree(directory, source)
        reader.umount()
    mount.umount()

    log = host.json("log", bucket, "trained")["versions"]
    assert all(version["stored_bytes"] < version["plain_bytes"] / 10 for version in log if version["name"] == "whole-2"), log


def test_every_writer_and_loader(t):
    every_way(t, t.dir_bucket())


def test_every_writer_and_loader_s3(t):
    bucket = t.s3()
    every_way(t, bucket.url, bucket.env)


def test_a_loaded_model_computes_on_mapped_weights(t):
    bucket = t.dir_bucket()
    source = t.tmp / "source"
    tiny_model(1).float().save_pretrained(source)
    t.host("writer").ok("publish", source, bucket, "m/v")
    mount = t.host("reader").mount(bucket)
    got = transformers.BertModel.from_pretrained(mount / "m/latest")
    want = transformers.BertModel.from_pretrained(source)
    tokens = torch.arange(32).reshape(1, 32)
    with torch.no_grad():
        assert torch.equal(got.eval()(tokens).last_hidden_state, want.eval()(tokens).last_hidden_state)
    del got
    mount.umount()


def test_rsync_and_tar_write_versions(t):
    bucket, host = t.dir_bucket(), t.host("writer")
    mount = host.mount(bucket, "--settle", "200ms", "--settle-live", "1s")
    (mount / "m").mkdir()
    subprocess.run(["rsync", "-a", f"{CHAIN[0]}/", mount / "m/by-rsync"], check=True)
    mount.wait_committed("m/by-rsync")
    archive = subprocess.run(["tar", "c", "-C", CHAIN[1], "."], check=True, capture_output=True).stdout
    (mount / "m/by-tar").mkdir()
    subprocess.run(["tar", "x", "-C", mount / "m/by-tar"], input=archive, check=True)
    mount.wait_committed("m/by-tar")
    reader = t.host("reader").mount(bucket)
    expect_same_tree(reader / "m/by-rsync", CHAIN[0])
    expect_same_tree(reader / "m/by-tar", CHAIN[1])
    for mounted in (mount, reader):
        mounted.umount()


harness.main(globals())
