// The index database of a cache directory. Input: one byte that selects, then either the file itself, or values for
// rows of a sound one. Whatever it holds, the cache opens, no block counts as verified, what is returned matches its
// digest, and the draft that has a sidecar is there.
#include <spdlog/spdlog.h>
#include <sqlite3.h>
#include <unistd.h>

#include <cstdlib>

#include "fuzz.h"
#include "store/base/posix.h"
#include "store/cache/cache.h"
#include "store/cache/index.h"

using namespace weightfs;

namespace {

const std::vector<std::uint32_t> kSizes = {3000, 5000, 4192};

Bytes block_of(std::uint64_t number, std::size_t block) {
  return Bytes(kSizes[block], static_cast<std::byte>(number * 16 + block + 1));
}

// A directory with a sound index, flat files and a draft, made once; the index's bytes are kept.
struct Model {
  std::string dir;
  std::string draft;
  Bytes index;
  Model() {
    spdlog::set_level(spdlog::level::off);
    // In memory where there is such a disk: each run writes and flushes.
    auto base = std::string(*posix::exists("/dev/shm") ? "/dev/shm" : "/tmp");
    dir = base + "/weightfs-fuzz-index-" + std::to_string(::getpid());
    posix::remove_tree(dir).ignore("a new one follows");
    auto cache = Cache::open({dir, 1 << 20}).value();
    for (std::uint64_t number : {1, 2}) {
      auto file = cache->open_file({"m", number, 0}, kSizes).value();
      std::uint64_t offset = 0;
      for (std::size_t block = 0; block < kSizes.size(); offset += kSizes[block], block++) {
        WFS_CHECK(file->write(block, offset, block_of(number, block)).is_ok());
      }
    }
    draft = cache->create_draft("m", "step").value().id;
    WFS_CHECK(cache->set_pinned("m", 1, true).is_ok());
    cache->put_blob(Sha256::of(as_bytes("blob")), as_bytes("blob"));
    cache->save_state("log/m", as_bytes("state"));
    cache.reset();
    index = posix::read_file(dir + "/index.sqlite", 64 << 20).value();
    std::atexit([] { posix::remove_tree(instance().dir).ignore("best effort"); });
  }
  static Model& instance() {
    static auto* model = new Model();
    return *model;
  }
};

void write_index(const Model& model, ByteSpan bytes) {
  for (const char* suffix : {"-wal", "-journal", "-shm"}) {
    WFS_CHECK(posix::unlink_if_there(model.dir + "/index.sqlite" + suffix).is_ok());
  }
  auto fd = posix::open(model.dir + "/index.sqlite", O_WRONLY | O_CREAT | O_TRUNC).value();
  WFS_CHECK(posix::write_exact(fd.get(), bytes).is_ok());
}

// One value of any type and length, off the input.
void bind(sqlite3_stmt* statement, int at, ByteReader& in) {
  auto kind = in.u8();
  auto length = std::min<std::uint64_t>(kind >> 3, in.remaining());
  auto bytes = in.bytes(kind % 8 >= 6 ? length : 0);
  switch (kind % 8) {
    case 0:
      sqlite3_bind_null(statement, at);
      break;
    case 1:
      sqlite3_bind_double(statement, at, static_cast<double>(in.le<std::uint32_t>()));
      break;
    case 2:
      sqlite3_bind_text(statement, at, "m", 1, SQLITE_STATIC);
      break;
    case 3:
      sqlite3_bind_int64(statement, at, in.le<std::int64_t>());
      break;
    case 4:
    case 5:
      sqlite3_bind_int64(statement, at, kind >> 3);
      break;
    case 6:
      sqlite3_bind_text(statement, at, reinterpret_cast<const char*>(bytes.data()), static_cast<int>(bytes.size()),
                        SQLITE_TRANSIENT);
      break;
    default:
      sqlite3_bind_blob(statement, at, bytes.data(), static_cast<int>(bytes.size()), SQLITE_TRANSIENT);
  }
}

void add_rows(const Model& model, ByteSpan values) {
  write_index(model, model.index);
  sqlite3* handle = nullptr;
  WFS_CHECK(sqlite3_open((model.dir + "/index.sqlite").c_str(), &handle) == SQLITE_OK);
  sqlite3_exec(handle, "PRAGMA synchronous=OFF; BEGIN", nullptr, nullptr, nullptr);
  struct Table {
    const char* insert;
    int columns;
  };
  constexpr Table kTables[] = {{"INSERT OR REPLACE INTO files VALUES(?1,?2,?3,?4,?5,?6,?7)", 7},
                               {"INSERT OR REPLACE INTO metadata VALUES(?1,?2,?3,?4,?5)", 5},
                               {"INSERT OR REPLACE INTO pins VALUES(?1,?2)", 2},
                               {"INSERT OR REPLACE INTO drafts VALUES(?1,?2)", 2},
                               {"INSERT OR REPLACE INTO facts VALUES(?1,?2)", 2}};
  ByteReader in(values);
  for (int row = 0; row < 64 && in.remaining() > 0; row++) {
    const auto& table = kTables[in.u8() % std::size(kTables)];
    sqlite3_stmt* statement = nullptr;
    WFS_CHECK(sqlite3_prepare_v2(handle, table.insert, -1, &statement, nullptr) == SQLITE_OK);
    for (int at = 1; at <= table.columns; at++) bind(statement, at, in);
    sqlite3_step(statement);  // a constraint may refuse it
    sqlite3_finalize(statement);
  }
  sqlite3_exec(handle, "COMMIT; PRAGMA wal_checkpoint(TRUNCATE)", nullptr, nullptr, nullptr);
  sqlite3_close(handle);
}

void check_files(Cache& cache) {
  for (std::uint64_t number : {1, 2}) {
    auto file = cache.open_file({"m", number, 0}, kSizes);
    WFS_CHECK(file.is_ok());
    std::uint64_t offset = 0;
    for (std::size_t block = 0; block < kSizes.size(); offset += kSizes[block], block++) {
      WFS_CHECK((*file)->presence(block) != FlatFile::Presence::kVerified);
      Bytes bytes(kSizes[block]);
      WFS_CHECK((*file)->read(offset, bytes).is_ok() && bytes == block_of(number, block));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  auto& model = Model::instance();
  auto bytes = fuzz::input(data, size).subspan(1);
  if (data[0] % 2 == 0) {
    write_index(model, bytes);
  } else {
    add_rows(model, bytes);
  }
  auto opened = Cache::open({model.dir, 1 << 20});
  WFS_CHECK(opened.is_ok());
  auto cache = std::move(opened).value();
  check_files(*cache);
  WFS_CHECK(cache->drafts().size() == 1 && cache->drafts()[0].id == model.draft);
  auto blob = cache->get_blob(Sha256::of(as_bytes("blob")));
  WFS_CHECK(!blob || *blob == to_bytes("blob"));
  for (const auto& key : cache->state_keys("")) cache->load_state(key);
  cache->cached_versions("m");
  cache->put_blob(Sha256::of(as_bytes("new")), as_bytes("new"));
  cache->set_pinned("m", 2, true).ignore("the disk is in memory");
  auto usage = cache->usage();
  WFS_CHECK(usage.flat_bytes + usage.draft_bytes + usage.blob_bytes <= usage.quota);
  return 0;
}
