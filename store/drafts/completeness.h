// Is a draft's directory a whole checkpoint, as far as its files can tell? Nothing a writer does says "done"; these are
// the signs that it is not:
//   - no weight file at all. One is a regular, not temporary file that ends in .safetensors .gguf .ggml .bin .pt .pth
//     .ckpt .distcp .npz .npy .h5 .hdf5 .keras .onnx .msgpack .pdparams .tflite .mlmodel, and is not the state of a
//     trainer beside the weights (training_args.bin, optimizer*, scheduler*, rng_state*, random_states*, scaler*,
//     sampler*)
//   - a shard that an `*.index.json` with a "weight_map" names is not there, or such an index is half a JSON
//   - of a name `…-K-of-N.…` not all N siblings (0-based when there is a 0) are there
//   - a `*.safetensors` whose header does not parse or does not fit the file's size
//   - a directory with `*.distcp` but without `.metadata`, which torch's distributed checkpoint writes last
//   - a temporary file (is_unfinished_name), or anything in a temporary directory
// Other hidden files (.gitattributes, .cache/) and lock files that stay behind (*.lock) are no sign; what is below .git
// is not looked at.
// Symlinks are never followed on disk; a shard may be one to a file of the same draft.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "store/base/status.h"

namespace weightfs {

// What is missing, each in words that name the file; empty: complete. Reads directories, indexes and headers only.
// Disk: not on a FUSE thread. A file that cannot be read is missing, too. At most `limit` items.
std::vector<std::string> what_is_missing(const std::string& root, std::size_t limit = 20);

// Names of files that a writer will rename or remove when it is done: *.tmp *.partial *.incomplete *.part *.aria2,
// tmp-* and *.tmp.* (fastsafetensors), .tmp* (safetensors), tmpXXXXXXXX and tmp_UUID (Python's tempfile), .NAME.XXXXXX
// (rsync; at least one digit or capital among the six, so that .some.config is none), .~tmp~ (rsync --delay-updates).
bool is_unfinished_name(std::string_view leaf);

// The path below `root` of the file with this inode number, "" when there is none. Disk.
std::string path_of_inode(const std::string& root, std::uint64_t inode);

}  // namespace weightfs
