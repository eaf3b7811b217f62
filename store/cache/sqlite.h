// SQLite's handles as types that close themselves, and its codes as Statuses: here and nowhere else. One thread uses a
// Database and its Statements at a time.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "store/base/bytes.h"
#include "store/base/status.h"

namespace weightfs::sqlite {

// kCorrupt: damaged, not a database, or not with our tables. kNoSpace, kReadOnly, kIo: the disk. kBusy: another owner.
Status from_code(int code, const char* message, std::string_view what);

class Statement {
 public:
  // Parameters are numbered from 1. The bytes must live until the next reset.
  Statement& bind(int index, std::int64_t value);
  Statement& bind(int index, ByteSpan bytes);
  Statement& bind_text(int index, std::string_view text);
  // True: a row is there. False: done.
  Result<bool> step();
  Status run();  // steps to the end, then resets for the next use
  void reset();

  // Columns of the current row, from 0. Nothing when the value is of another type: contents of a file are hostile.
  std::optional<std::int64_t> integer(int column) const;
  std::optional<ByteSpan> blob(int column) const;          // valid until the next step
  std::optional<std::string_view> text(int column) const;  // likewise
  bool is_null(int column) const;

 private:
  friend class Database;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
  };
  explicit Statement(sqlite3_stmt* statement) : statement_(statement) {}
  void note(int code);
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  int bind_error_ = SQLITE_OK;
};

class Database {
 public:
  static constexpr int kMaxValueBytes = 80 << 20;  // of one value or row, whatever a file claims

  // Opens or creates; ":memory:" too. Never through a symlink.
  static Result<Database> open(const std::string& path);
  Status exec(const std::string& sql);
  Result<Statement> prepare(std::string_view sql);
  Result<std::int64_t> integer(std::string_view sql);  // of the first column of the first row
  int changes() const { return sqlite3_changes(handle_.get()); }
  // Closes and says whether that went well.
  Status close();

 private:
  struct Close {
    void operator()(sqlite3* handle) const { sqlite3_close_v2(handle); }
  };
  explicit Database(sqlite3* handle) : handle_(handle) {}
  std::unique_ptr<sqlite3, Close> handle_;
};

// BEGIN IMMEDIATE … COMMIT; what is not committed when it is destroyed is rolled back.
class Transaction {
 public:
  static Result<Transaction> begin(Database& database);
  ~Transaction();
  Transaction(Transaction&& other) noexcept : database_(std::exchange(other.database_, nullptr)) {}
  Transaction& operator=(Transaction&&) = delete;
  Status commit();

 private:
  explicit Transaction(Database* database) : database_(database) {}
  Database* database_;
};

}  // namespace weightfs::sqlite
