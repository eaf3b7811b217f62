#include "store/drafts/completeness.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "store/base/posix.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace weightfs {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A safetensors file with one tensor of four bytes.
std::string tiny_safetensors() {
  std::string json = R"({"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  while (json.size() % 8) json.push_back(' ');
  std::string out(8, '\0');
  out[0] = static_cast<char>(json.size());
  return out + json + "abcd";
}

class CompletenessTest : public ::testing::Test {
 protected:
  TempDir dir_;
  void put(const std::string& path, const std::string& text = "x") {
    auto full = dir_ / path;
    ASSERT_OK(posix::make_dirs(full.substr(0, full.rfind('/'))));
    auto file = posix::open(full, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ASSERT_OK(file);
    ASSERT_OK(posix::write_exact(file->get(), as_bytes(text)));
  }
  void put_weights(const std::string& path = "model.safetensors") { put(path, tiny_safetensors()); }
  void link(const std::string& path, const std::string& target) {
    ASSERT_EQ(::symlink(target.c_str(), (dir_ / path).c_str()), 0);
  }
  std::vector<std::string> missing() { return what_is_missing(dir_.path()); }
};

TEST_F(CompletenessTest, AnEmptyDirectoryHasNoWeights) {
  EXPECT_THAT(missing(), ElementsAre("no weight file yet"));
  put("config.json", "{}");
  put("training_args.bin");
  put("optimizer.pt");
  put("rng_state_0.pth");
  put("scheduler.pt");
  EXPECT_THAT(missing(), ElementsAre("no weight file yet"));
}

TEST_F(CompletenessTest, OneWeightFileOfEachKindIsEnough) {
  for (auto name : {"pytorch_model.bin", "consolidated.00.pth", "model.gguf", "weights.npz", "x.ckpt", "model.onnx",
                    "flax_model.msgpack", "a/b/model.h5"}) {
    TempDir other;
    auto full = other / name;
    ASSERT_OK(posix::make_dirs(full.substr(0, full.rfind('/'))));
    ASSERT_OK(posix::write_file_durably(full, as_bytes("x")));
    EXPECT_THAT(what_is_missing(other.path()), IsEmpty()) << name;
  }
  put_weights();
  EXPECT_THAT(missing(), IsEmpty());
}

TEST_F(CompletenessTest, ATruncatedOrEmptySafetensorsIsNamed) {
  auto whole = tiny_safetensors();
  for (std::size_t length : {std::size_t{0}, std::size_t{5}, std::size_t{8}, std::size_t{20}, whole.size() - 1}) {
    put("sub/model.safetensors", whole.substr(0, length));
    EXPECT_THAT(missing(), ElementsAre(HasSubstr("'sub/model.safetensors' is not a whole safetensors file"))) << length;
  }
  put("sub/model.safetensors", whole + "more");
  EXPECT_THAT(missing(), ElementsAre(HasSubstr("'sub/model.safetensors'")));
  put("sub/model.safetensors", whole);
  EXPECT_THAT(missing(), IsEmpty());
}

TEST_F(CompletenessTest, AGitLfsPointerIsNotTheWeights) {
  put("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
  EXPECT_THAT(missing(), ElementsAre("'model.safetensors' is a git-lfs pointer, not the weights"));
}

TEST_F(CompletenessTest, EveryShardThatAnIndexNamesMustBeThere) {
  put_weights("a.safetensors");
  put("model.safetensors.index.json", R"({"metadata":{},"weight_map":{"x":"a.safetensors","y":"b.safetensors"}})");
  EXPECT_THAT(missing(), ElementsAre("'b.safetensors' is missing ('model.safetensors.index.json' names it)"));
  put_weights("b.safetensors");
  EXPECT_THAT(missing(), IsEmpty());
  put("sub/x.index.json", R"({"weight_map":{"x":"a.safetensors"}})");
  EXPECT_THAT(missing(), ElementsAre("'sub/a.safetensors' is missing ('sub/x.index.json' names it)"));
}

TEST_F(CompletenessTest, AHalfWrittenIndexIsNamedAndSomebodyElsesIsNot) {
  put_weights();
  put("model.safetensors.index.json", R"({"metadata":{},"weight_map":{"x":"a.saf)");
  EXPECT_THAT(missing(), ElementsAre(HasSubstr("'model.safetensors.index.json' is not a whole index")));
  put("model.safetensors.index.json", R"({"documents":[1,2,{"weight_map":3}]})");
  EXPECT_THAT(missing(), IsEmpty());
  put("model.safetensors.index.json", R"({"weight_map":7})");
  EXPECT_THAT(missing(), ElementsAre(HasSubstr("'model.safetensors.index.json'")));
}

TEST_F(CompletenessTest, ANameKOfNImpliesItsSiblingsWithoutAnIndex) {
  put_weights("model-00001-of-00003.safetensors");
  EXPECT_THAT(missing(), ElementsAre("'model-00002-of-00003.safetensors' is missing",
                                     "'model-00003-of-00003.safetensors' is missing"));
  put_weights("model-00003-of-00003.safetensors");
  put_weights("model-00002-of-00003.safetensors");
  EXPECT_THAT(missing(), IsEmpty());
}

TEST_F(CompletenessTest, ShardsMayCountFromZeroAndEachDirectoryCountsForItself) {
  put("a/m-0-of-2.gguf");
  EXPECT_THAT(missing(), ElementsAre("'a/m-1-of-2.gguf' is missing"));
  put("b/m-1-of-2.gguf");
  EXPECT_THAT(missing(), ElementsAre("'a/m-1-of-2.gguf' is missing", "'b/m-2-of-2.gguf' is missing"));
  put("a/m-1-of-2.gguf");
  put("b/m-2-of-2.gguf");
  EXPECT_THAT(missing(), IsEmpty());
  put("b/m-7-of-2.gguf");  // no such count
  put("b/state-of-the-art.md");
  put("b/x-1-of-99999999999999999999.bin");
  put("b/x-1-of-999999999.bin");
  put("b/-of-.bin");
  EXPECT_THAT(missing(), IsEmpty());
}

TEST_F(CompletenessTest, TemporaryFilesOfEveryWriterAreNamed) {
  put_weights();
  for (auto name : {".tmpAb3dE9", ".model.safetensors.x7Qk2b", "model.safetensors.tmp.0a1b-2c", ".metadata.tmp",
                    "x.partial", "sub/y.incomplete", "tmp-5", "tmpab3_de9x", "tmp_0123456789abcdef0123456789abcdef",
                    ".cache/huggingface/download/abc.incomplete", ".~tmp~/model.bin", "f.aria2", "f.part"}) {
    put(name);
    EXPECT_THAT(missing(), Contains(HasSubstr("is a temporary file"))) << name;
    ASSERT_OK(posix::remove_tree(dir_ / std::string(name).substr(0, std::string(name).find('/'))));
  }
  EXPECT_THAT(missing(), IsEmpty());
}

TEST_F(CompletenessTest, HiddenFilesThatStayAreNoSign) {
  put_weights();
  for (auto name :
       {".gitattributes", ".gitignore", ".cache/huggingface/.gitignore", ".cache/huggingface/download/x.lock",
        ".cache/huggingface/download/x.metadata", ".some.config", ".git/lfs/tmp/7.tmp", ".git/index.lock", "tmpl.json",
        "template.jinja", "tmp", "README.md~", ".eslintrc.json"}) {
    put(name);
  }
  EXPECT_THAT(missing(), IsEmpty());
}

TEST_F(CompletenessTest, ATemporaryFileIsNoWeightFile) {
  put("model.bin.tmp");
  put(".tmp.bin");
  EXPECT_THAT(missing(), Contains("no weight file yet"));
}

TEST_F(CompletenessTest, ADistributedCheckpointNeedsItsMetadata) {
  put("__0_0.distcp");
  put("__0_1.distcp");
  EXPECT_THAT(missing(), ElementsAre("'.metadata' is missing: the distributed checkpoint is not finished"));
  put(".metadata");
  EXPECT_THAT(missing(), IsEmpty());
}

TEST_F(CompletenessTest, LinksAreResolvedInsideTheDraftOnlyAndNeverFollowed) {
  put_weights("blobs/abc");
  ASSERT_OK(posix::make_dirs(dir_ / "snapshots/r"));
  link("snapshots/r/model.safetensors", "../../blobs/abc");
  EXPECT_THAT(missing(), IsEmpty());
  link("snapshots/r/other.safetensors", "../../blobs/gone");
  link("snapshots/r/out.bin", "/etc/passwd");
  link("snapshots/r/up.bin", "../../../../etc/passwd");
  link("snapshots/r/loop.bin", "loop.bin");
  EXPECT_EQ(missing().size(), 4u);
  EXPECT_THAT(missing(), Contains("'snapshots/r/out.bin' is a link to what is not in the draft"));
}

TEST_F(CompletenessTest, ALinkedDirectoryIsNotEnteredAndAFifoIsNotOpened) {
  put_weights();
  link("dir", "/proc");
  ASSERT_EQ(::mkfifo((dir_ / "pipe.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(missing(), IsEmpty());
}

TEST_F(CompletenessTest, TheListIsBounded) {
  put("m-1-of-900000.bin");
  EXPECT_EQ(what_is_missing(dir_.path(), 5).size(), 5u);
  for (int i = 0; i < 50; i++) put("f" + std::to_string(i) + ".tmp");
  EXPECT_EQ(what_is_missing(dir_.path(), 5).size(), 5u);
}

TEST_F(CompletenessTest, AnInodeHasItsPath) {
  put("a/b/c");
  auto stat = posix::lstat(dir_ / "a/b/c");
  ASSERT_OK(stat);
  EXPECT_EQ(path_of_inode(dir_.path(), stat->st_ino), "a/b/c");
  EXPECT_EQ(path_of_inode(dir_.path(), 1), "");
}

}  // namespace
}  // namespace weightfs
