#include "store/cache/sqlite.h"

namespace weightfs::sqlite {

Status from_code(int code, const char* message, std::string_view what) {
  auto as = [&] {
    switch (code & 0xff) {
      case SQLITE_CORRUPT:
      case SQLITE_NOTADB:
      case SQLITE_ERROR:  // our statements are fixed: what they name is missing or of another kind
      case SQLITE_SCHEMA:
      case SQLITE_FORMAT:
      case SQLITE_MISMATCH:
      case SQLITE_CONSTRAINT:
      case SQLITE_EMPTY:
        return Code::kCorrupt;
      case SQLITE_FULL:
        return Code::kNoSpace;
      case SQLITE_READONLY:
        return Code::kReadOnly;
      case SQLITE_BUSY:
      case SQLITE_LOCKED:
      case SQLITE_PROTOCOL:
        return Code::kBusy;
      case SQLITE_PERM:
      case SQLITE_AUTH:
        return Code::kPermission;
      case SQLITE_NOMEM:
        return Code::kUnavailable;
      case SQLITE_INTERRUPT:
      case SQLITE_ABORT:
        return Code::kInterrupted;
      case SQLITE_TOOBIG:
      case SQLITE_RANGE:
      case SQLITE_MISUSE:
        return Code::kInvalid;
      default:
        return Code::kIo;
    }
  }();
  std::string text = std::string(what) + ": " + (message != nullptr ? message : sqlite3_errstr(code));
  return {as, text + " (SQLite " + std::to_string(code) + ")"};
}

void Statement::note(int code) {
  if (code != SQLITE_OK && bind_error_ == SQLITE_OK) bind_error_ = code;
}

Statement& Statement::bind(int index, std::int64_t value) {
  note(sqlite3_bind_int64(statement_.get(), index, value));
  return *this;
}

Statement& Statement::bind(int index, ByteSpan bytes) {
  static constexpr char kNothing = 0;  // a null pointer would bind NULL
  const void* data = bytes.empty() ? static_cast<const void*>(&kNothing) : bytes.data();
  note(sqlite3_bind_blob64(statement_.get(), index, data, bytes.size(), SQLITE_STATIC));
  return *this;
}

Statement& Statement::bind_text(int index, std::string_view text) {
  const char* data = text.empty() ? "" : text.data();
  note(sqlite3_bind_text64(statement_.get(), index, data, text.size(), SQLITE_STATIC, SQLITE_UTF8));
  return *this;
}

Result<bool> Statement::step() {
  if (bind_error_ != SQLITE_OK) return from_code(bind_error_, nullptr, "index");
  int code = sqlite3_step(statement_.get());
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return from_code(sqlite3_extended_errcode(sqlite3_db_handle(statement_.get())),
                   sqlite3_errmsg(sqlite3_db_handle(statement_.get())), "index");
}

Status Statement::run() {
  while (true) {
    auto row = step();
    if (!row.is_ok()) {
      reset();
      return std::move(row).status();
    }
    if (!*row) break;
  }
  reset();
  return {};
}

void Statement::reset() {
  sqlite3_reset(statement_.get());
  bind_error_ = SQLITE_OK;
}

std::optional<std::int64_t> Statement::integer(int column) const {
  if (sqlite3_column_type(statement_.get(), column) != SQLITE_INTEGER) return std::nullopt;
  return sqlite3_column_int64(statement_.get(), column);
}

std::optional<ByteSpan> Statement::blob(int column) const {
  if (sqlite3_column_type(statement_.get(), column) != SQLITE_BLOB) return std::nullopt;
  const auto* data = static_cast<const std::byte*>(sqlite3_column_blob(statement_.get(), column));
  auto size = static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column));
  if (data == nullptr && size != 0) return std::nullopt;  // out of memory
  return ByteSpan(data, size);
}

std::optional<std::string_view> Statement::text(int column) const {
  if (sqlite3_column_type(statement_.get(), column) != SQLITE_TEXT) return std::nullopt;
  const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
  if (data == nullptr) return std::nullopt;
  return std::string_view(data, static_cast<std::size_t>(sqlite3_column_bytes(statement_.get(), column)));
}

bool Statement::is_null(int column) const { return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL; }

Result<Database> Database::open(const std::string& path) {
  sqlite3* handle = nullptr;
  int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  if (path != ":memory:") flags |= SQLITE_OPEN_NOFOLLOW;
  int code = sqlite3_open_v2(path.c_str(), &handle, flags, nullptr);
  Database database(handle);  // a handle comes also with an error
  if (code != SQLITE_OK) return from_code(code, handle != nullptr ? sqlite3_errmsg(handle) : nullptr, path);
  sqlite3_limit(handle, SQLITE_LIMIT_LENGTH, kMaxValueBytes);
  sqlite3_limit(handle, SQLITE_LIMIT_ATTACHED, 0);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  return database;
}

Status Database::exec(const std::string& sql) {
  int code = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (code == SQLITE_OK) return {};
  return from_code(sqlite3_extended_errcode(handle_.get()), sqlite3_errmsg(handle_.get()), "index");
}

Result<Statement> Database::prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  int code = sqlite3_prepare_v2(handle_.get(), sql.data(), static_cast<int>(sql.size()), &statement, nullptr);
  if (code != SQLITE_OK) return from_code(code, sqlite3_errmsg(handle_.get()), "index");
  return Statement(statement);
}

Result<std::int64_t> Database::integer(std::string_view sql) {
  auto statement = WFS_TRY(prepare(sql));
  bool row = WFS_TRY(statement.step());
  auto value = row ? statement.integer(0) : std::nullopt;
  if (!value) return Status(Code::kCorrupt, "index: no number from: " + std::string(sql));
  return *value;
}

Status Database::close() {
  if (handle_ == nullptr) return {};
  int code = sqlite3_close(handle_.get());
  if (code != SQLITE_OK) return from_code(code, sqlite3_errmsg(handle_.get()), "close index");
  handle_.release();
  return {};
}

Result<Transaction> Transaction::begin(Database& database) {
  WFS_TRY(database.exec("BEGIN IMMEDIATE"));
  return Transaction(&database);
}

Transaction::~Transaction() {
  if (database_ == nullptr) return;
  database_->exec("ROLLBACK").ignore("an error before it may have rolled back already");
}

Status Transaction::commit() {
  WFS_TRY(database_->exec("COMMIT"));
  database_ = nullptr;
  return {};
}

}  // namespace weightfs::sqlite
