#include "store/cache/index.h"

#include <algorithm>

#include "store/cache/draft_record.h"

namespace weightfs {
namespace {

constexpr std::int64_t kApplicationId = 0x77667331;  // "wfs1"
constexpr std::int64_t kMaxBlocks = 1 << 26;         // of one file: 64 TiB of 1 MiB blocks
constexpr std::int64_t kWholeCheckBytes = 64 << 20;  // larger files have only their small tables checked at open

// Compared with what a file has, letter by letter: no trigger, view or foreign index can hide in it.
struct Definition {
  const char* name;
  const char* sql;
};
constexpr Definition kSchemaSql[] = {
    {"facts", "CREATE TABLE facts(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID"},
    {"files",
     "CREATE TABLE files(model TEXT NOT NULL, number INTEGER NOT NULL, file INTEGER NOT NULL, size INTEGER NOT NULL, "
     "blocks INTEGER NOT NULL, present BLOB NOT NULL, used INTEGER NOT NULL, PRIMARY KEY(model, number, file)) "
     "WITHOUT ROWID"},
    {"pins",
     "CREATE TABLE pins(model TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY(model, number)) WITHOUT ROWID"},
    {"drafts", "CREATE TABLE drafts(id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID"},
    {"metadata",
     "CREATE TABLE metadata(kind INTEGER NOT NULL, key BLOB NOT NULL, length INTEGER NOT NULL, used INTEGER NOT NULL, "
     "bytes BLOB NOT NULL, PRIMARY KEY(kind, key))"},
    {"metadata_by_use", "CREATE INDEX metadata_by_use ON metadata(kind, used, length)"},
};

Status other_schema(const std::string& what) { return {Code::kCorrupt, "index: " + what}; }

std::optional<FileRow> file_row(const sqlite::Statement& row) {
  auto model = row.text(0);
  auto number = row.integer(1), file = row.integer(2), size = row.integer(3), blocks = row.integer(4);
  auto present = row.blob(5);
  auto used = row.integer(6);
  if (!model || !number || !file || !size || !blocks || !present || !used) return std::nullopt;
  if (!is_model_component(*model) || *number < 0 || static_cast<std::uint64_t>(*number) > kMaxNumber) {
    return std::nullopt;
  }
  if (*file < 0 || *file > ~std::uint32_t{0} || *size < 0 || *blocks < 0 || *blocks > kMaxBlocks) return std::nullopt;
  if (present->size() != (static_cast<std::size_t>(*blocks) + 7) / 8 || *used < 0) return std::nullopt;
  FileRow out;
  out.key = {std::string(*model), static_cast<std::uint64_t>(*number), static_cast<std::uint32_t>(*file)};
  out.size = static_cast<std::uint64_t>(*size);
  out.blocks = static_cast<std::uint64_t>(*blocks);
  out.present.assign(present->begin(), present->end());
  out.used = static_cast<std::uint64_t>(*used);
  return out;
}

Status quick_check(sqlite::Database& database, const std::string& argument) {
  auto statement = WFS_TRY(database.prepare("PRAGMA quick_check" + argument));
  bool row = WFS_TRY(statement.step());
  auto text = row ? statement.text(0) : std::nullopt;
  if (text == "ok") return {};
  std::string first(text.value_or("no answer").substr(0, 200));
  std::replace(first.begin(), first.end(), '\n', ' ');
  return other_schema("damaged: " + first);
}

}  // namespace

Result<Index> Index::open(const std::string& path, Caps caps) {
  auto database = WFS_TRY(sqlite::Database::open(path));
  // First of all: exclusive locking keeps the WAL's index in our memory (no -shm file to be mapped).
  WFS_TRY(
      database.exec("PRAGMA locking_mode=EXCLUSIVE; PRAGMA cell_size_check=ON; PRAGMA mmap_size=0; "
                    "PRAGMA cache_size=-2048; PRAGMA temp_store=MEMORY"));
  Index index(std::move(database), caps);
  auto& db = index.database_;
  auto version = WFS_TRY(db.integer("PRAGMA user_version"));
  auto id = WFS_TRY(db.integer("PRAGMA application_id"));
  auto tables = WFS_TRY(db.integer("SELECT count(*) FROM sqlite_schema"));
  bool empty = version == 0 && id == 0 && tables == 0;
  if (!empty && (version != kSchema || id != kApplicationId)) {
    return other_schema("schema " + std::to_string(version) + " of application " + std::to_string(id) +
                        ", this program has " + std::to_string(kSchema));
  }
  WFS_TRY(
      db.exec("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA wal_autocheckpoint=1000; "
              "PRAGMA journal_size_limit=8388608"));
  WFS_TRY(empty ? index.create_schema() : index.check_schema());
  WFS_TRY(index.count_metadata());
  return index;
}

Status Index::create_schema() {
  auto transaction = WFS_TRY(sqlite::Transaction::begin(database_));
  for (const auto& definition : kSchemaSql) WFS_TRY(database_.exec(definition.sql));
  WFS_TRY(database_.exec("PRAGMA application_id=" + std::to_string(kApplicationId) +
                         "; PRAGMA user_version=" + std::to_string(kSchema)));
  return transaction.commit();
}

Status Index::check_schema() {
  auto statement =
      WFS_TRY(database_.prepare("SELECT name, sql FROM sqlite_schema WHERE substr(name, 1, 7) <> 'sqlite_'"));
  std::size_t seen = 0;
  while (WFS_TRY(statement.step())) {
    auto name = statement.text(0), sql = statement.text(1);
    bool ours = std::any_of(std::begin(kSchemaSql), std::end(kSchemaSql), [&](const Definition& definition) {
      return name == definition.name && sql == definition.sql;
    });
    if (!ours) return other_schema("it has a table that is not ours");
    seen++;
  }
  if (seen != std::size(kSchemaSql)) return other_schema("a table is missing");
  auto pages = WFS_TRY(database_.integer("PRAGMA page_count"));
  auto page = WFS_TRY(database_.integer("PRAGMA page_size"));
  if (pages <= kWholeCheckBytes / std::max<std::int64_t>(page, 1)) return quick_check(database_, "");
  for (const char* table : {"facts", "files", "pins", "drafts"}) {
    WFS_TRY(quick_check(database_, "('" + std::string(table) + "')"));
  }
  return {};
}

Status Index::count_metadata() {
  for (auto kind : {Kind::kBlob, Kind::kState}) {
    auto of_kind = " FROM metadata WHERE kind=" + std::to_string(static_cast<int>(kind));
    auto smallest = WFS_TRY(database_.integer("SELECT coalesce(min(length), 0)" + of_kind));
    auto sum = WFS_TRY(database_.integer("SELECT coalesce(sum(length), 0)" + of_kind));
    auto last = WFS_TRY(database_.integer("SELECT coalesce(max(used), 0)" + of_kind));
    if (smallest < 0 || sum < 0) return other_schema("negative lengths");
    bytes_of(kind) = static_cast<std::uint64_t>(sum);
    if (last > static_cast<std::int64_t>(kMaxNumber)) {
      WFS_TRY(database_.exec("UPDATE metadata SET used=0"));
      last = 0;
    }
    tick_ = std::max({tick_, last, std::int64_t{0}});
    WFS_TRY(evict(kind));  // the cap may be a smaller one now
  }
  return {};
}

Status Index::close() {
  WFS_TRY(database_.exec("PRAGMA wal_checkpoint(TRUNCATE)"));
  return database_.close();
}

Result<Index::Contents> Index::load() {
  Contents contents;
  auto clean = WFS_TRY(database_.prepare("SELECT value FROM facts WHERE name='clean'"));
  if (WFS_TRY(clean.step())) contents.clean = clean.integer(0) == 1;
  auto files = WFS_TRY(database_.prepare("SELECT model, number, file, size, blocks, present, used FROM files"));
  while (WFS_TRY(files.step())) {
    auto row = file_row(files);
    if (row) {
      contents.files.push_back(std::move(*row));
    } else {
      contents.skipped++;
    }
  }
  auto pins = WFS_TRY(database_.prepare("SELECT model, number FROM pins"));
  while (WFS_TRY(pins.step())) {
    auto model = pins.text(0);
    auto number = pins.integer(1);
    if (model && number && is_model_component(*model) && *number >= 0 &&
        static_cast<std::uint64_t>(*number) <= kMaxNumber) {
      contents.pins.emplace_back(std::string(*model), static_cast<std::uint64_t>(*number));
    } else {
      contents.skipped++;
    }
  }
  auto drafts = WFS_TRY(database_.prepare("SELECT id, record FROM drafts"));
  while (WFS_TRY(drafts.step())) {
    auto id = drafts.text(0);
    auto record = drafts.blob(1);
    if (id && record && is_draft_id(*id)) {
      contents.drafts[std::string(*id)].assign(record->begin(), record->end());
    } else {
      contents.skipped++;
    }
  }
  return contents;
}

Status Index::set_clean(bool clean) {
  return database_.exec(std::string("INSERT OR REPLACE INTO facts VALUES('clean', ") + (clean ? "1)" : "0)"));
}

Status Index::store_files(const std::vector<FileRow>& changed, const std::vector<FileKey>& gone) {
  if (changed.empty() && gone.empty()) return {};
  auto transaction = WFS_TRY(sqlite::Transaction::begin(database_));
  auto put = WFS_TRY(database_.prepare("INSERT OR REPLACE INTO files VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)"));
  for (const auto& row : changed) {
    put.bind_text(1, row.key.model)
        .bind(2, static_cast<std::int64_t>(row.key.number))
        .bind(3, std::int64_t{row.key.file})
        .bind(4, static_cast<std::int64_t>(row.size))
        .bind(5, static_cast<std::int64_t>(row.blocks))
        .bind(6, ByteSpan(row.present))
        .bind(7, static_cast<std::int64_t>(row.used));
    WFS_TRY(put.run());
  }
  auto remove = WFS_TRY(database_.prepare("DELETE FROM files WHERE model=?1 AND number=?2 AND file=?3"));
  for (const auto& key : gone) {
    remove.bind_text(1, key.model).bind(2, static_cast<std::int64_t>(key.number)).bind(3, std::int64_t{key.file});
    WFS_TRY(remove.run());
  }
  return transaction.commit();
}

Status Index::durably(const std::function<Status()>& change) {
  WFS_TRY(database_.exec("PRAGMA synchronous=FULL"));
  auto status = change();
  WFS_TRY(database_.exec("PRAGMA synchronous=NORMAL"));
  return status;
}

Status Index::set_pin(const std::string& model, std::uint64_t number, bool pinned) {
  return durably([&]() -> Status {
    auto statement = WFS_TRY(database_.prepare(pinned ? "INSERT OR REPLACE INTO pins VALUES(?1, ?2)"
                                                      : "DELETE FROM pins WHERE model=?1 AND number=?2"));
    return statement.bind_text(1, model).bind(2, static_cast<std::int64_t>(number)).run();
  });
}

Status Index::store_draft(const std::string& id, ByteSpan record) {
  return durably([&]() -> Status {
    auto statement = WFS_TRY(database_.prepare("INSERT OR REPLACE INTO drafts VALUES(?1, ?2)"));
    return statement.bind_text(1, id).bind(2, record).run();
  });
}

Status Index::remove_draft(const std::string& id) {
  return durably([&]() -> Status {
    auto statement = WFS_TRY(database_.prepare("DELETE FROM drafts WHERE id=?1"));
    return statement.bind_text(1, id).run();
  });
}

Result<std::uint64_t> Index::stored_length(Kind kind, ByteSpan key) {
  auto statement = WFS_TRY(database_.prepare("SELECT length FROM metadata WHERE kind=?1 AND key=?2"));
  statement.bind(1, static_cast<std::int64_t>(kind)).bind(2, key);
  if (!WFS_TRY(statement.step())) return std::uint64_t{0};
  auto length = statement.integer(0);
  if (!length || *length < 0) return other_schema("bad length");
  return static_cast<std::uint64_t>(*length);
}

Result<Bytes> Index::get(Kind kind, ByteSpan key) {
  auto statement = WFS_TRY(database_.prepare("SELECT bytes FROM metadata WHERE kind=?1 AND key=?2"));
  statement.bind(1, static_cast<std::int64_t>(kind)).bind(2, key);
  if (!WFS_TRY(statement.step())) return Status(Code::kNotFound, "not cached");
  auto bytes = statement.blob(0);
  if (!bytes) return other_schema("bad value");
  Bytes out(bytes->begin(), bytes->end());
  uses_[{kind, Bytes(key.begin(), key.end())}] = ++tick_;
  return out;
}

Status Index::put(Kind kind, ByteSpan key, ByteSpan bytes) {
  if (bytes.size() > std::min(kMaxMetadataBytes, cap_of(kind))) return {Code::kNoSpace, "longer than is cached"};
  auto before = WFS_TRY(stored_length(kind, key));
  auto statement = WFS_TRY(database_.prepare("INSERT OR REPLACE INTO metadata VALUES(?1, ?2, ?3, ?4, ?5)"));
  statement.bind(1, static_cast<std::int64_t>(kind))
      .bind(2, key)
      .bind(3, static_cast<std::int64_t>(bytes.size()))
      .bind(4, ++tick_)
      .bind(5, bytes);
  WFS_TRY(statement.run());
  uses_.erase({kind, Bytes(key.begin(), key.end())});
  bytes_of(kind) += bytes.size();
  bytes_of(kind) -= std::min(bytes_of(kind), before);
  return evict(kind);
}

Status Index::evict(Kind kind) {
  if (bytes_of(kind) <= cap_of(kind)) return {};
  WFS_TRY(flush_uses());
  auto transaction = WFS_TRY(sqlite::Transaction::begin(database_));
  // Through the index by use alone: the values are not read.
  auto oldest = WFS_TRY(database_.prepare(
      "SELECT rowid, length FROM metadata INDEXED BY metadata_by_use WHERE kind=?1 ORDER BY used LIMIT 1"));
  auto remove = WFS_TRY(database_.prepare("DELETE FROM metadata WHERE rowid=?1"));
  auto left = bytes_of(kind);
  while (left > cap_of(kind)) {
    oldest.bind(1, static_cast<std::int64_t>(kind));
    bool any = WFS_TRY(oldest.step());
    auto row = any ? oldest.integer(0) : std::nullopt, length = any ? oldest.integer(1) : std::nullopt;
    if (!row || !length || *length < 0) return other_schema("lengths do not add up");
    oldest.reset();
    WFS_TRY(remove.bind(1, *row).run());
    if (database_.changes() != 1) return other_schema("its index by use does not match");
    left -= std::min(left, static_cast<std::uint64_t>(*length));
  }
  WFS_TRY(transaction.commit());
  bytes_of(kind) = left;
  return {};
}

Status Index::remove(Kind kind, ByteSpan key) {
  auto before = WFS_TRY(stored_length(kind, key));
  auto statement = WFS_TRY(database_.prepare("DELETE FROM metadata WHERE kind=?1 AND key=?2"));
  WFS_TRY(statement.bind(1, static_cast<std::int64_t>(kind)).bind(2, key).run());
  uses_.erase({kind, Bytes(key.begin(), key.end())});
  bytes_of(kind) -= std::min(bytes_of(kind), before);
  return {};
}

Result<std::vector<Bytes>> Index::keys(Kind kind, ByteSpan prefix) {
  auto statement = WFS_TRY(database_.prepare("SELECT key FROM metadata WHERE kind=?1 AND key>=?2 ORDER BY key"));
  statement.bind(1, static_cast<std::int64_t>(kind)).bind(2, prefix);
  std::vector<Bytes> out;
  while (WFS_TRY(statement.step())) {
    auto key = statement.blob(0);
    if (!key || key->size() < prefix.size() || !std::equal(prefix.begin(), prefix.end(), key->begin())) break;
    out.emplace_back(key->begin(), key->end());
  }
  return out;
}

Status Index::flush_uses() {
  if (uses_.empty()) return {};
  auto uses = std::move(uses_);
  uses_.clear();
  auto transaction = WFS_TRY(sqlite::Transaction::begin(database_));
  auto statement = WFS_TRY(database_.prepare("UPDATE metadata SET used=?3 WHERE kind=?1 AND key=?2"));
  for (const auto& [what, tick] : uses) {
    statement.bind(1, static_cast<std::int64_t>(what.first)).bind(2, ByteSpan(what.second)).bind(3, tick);
    WFS_TRY(statement.run());
  }
  return transaction.commit();
}

}  // namespace weightfs
