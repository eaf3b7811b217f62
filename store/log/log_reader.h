// One reading of a model's log: finds its head and brings a state up to it. Inside store/log only; one use each.
//
// Entries are never deleted and each is written after the one before it, so "entry n is there" is monotonic and the
// head can be found by probing. A number is absent when the store says 404, or 403 (what S3 says of a missing key
// without list rights); who asks decides whether a 403 can mean that.
//
// Round trips of a fresh reading: hint ‖ entry 1; the hint's entry ‖ the few after it; the newest snapshot's entry ‖
// the entries since; the snapshot's object. Of a poll: the next entry; when it is there, the one after it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "store/log/model_state.h"
#include "store/log/parallel.h"
#include "store/log/state_builder.h"

namespace weightfs {

class LogReader {
 public:
  LogReader(Bucket& bucket, const ModelName& model, const Deadline& deadline, std::size_t parallel)
      : bucket_(bucket), model_(model), deadline_(deadline), parallel_(parallel) {}

  // What the log has now, with nothing known before.
  Result<ModelStatePtr> open();
  // What the log has after `from`. With `check_head` it is first asked whether the bucket's entry `from->head` is the
  // one that `from` knows; kCorrupt when it is not: this state is of another log.
  Result<ModelStatePtr> advance(const ModelStatePtr& from, bool check_head);

  // Commit ids of the entries that this reading added to a state.
  const std::map<std::string, std::uint64_t>& ids() const { return ids_; }

 private:
  enum class Presence : std::uint8_t { kPresent, kAbsent, kHidden };
  struct Raw {
    Presence presence = Presence::kAbsent;
    Sha256 digest;                  // of the bytes, when present
    std::optional<LogEntry> entry;  // when they parse
    Status damage;                  // why they do not
  };

  Status fetch(std::vector<std::uint64_t> numbers, bool with_hint = false);
  Status fetch_entry(std::uint64_t number, Raw& raw);
  Status fetch_hint();
  bool present(std::uint64_t number) const;
  bool hidden(std::uint64_t number) const;
  const LogEntry* entry(std::uint64_t number) const;

  Result<std::uint64_t> locate(std::uint64_t base, std::uint64_t width);
  Result<std::uint64_t> double_and_bisect(std::uint64_t base);
  Result<ModelStatePtr> load(std::uint64_t last);
  Result<std::uint64_t> newest_snapshot(std::uint64_t last);
  Result<ModelStatePtr> replay(StateBuilder builder, std::uint64_t last);
  std::optional<Status> damage_of(std::uint64_t number, std::uint64_t last) const;
  std::string name_of(std::uint64_t number) const;

  Bucket& bucket_;
  const ModelName& model_;
  const Deadline& deadline_;
  const std::size_t parallel_;
  std::map<std::uint64_t, Raw> raws_;
  std::optional<std::uint64_t> hint_;  // 0: there is none that is of use
  std::map<std::string, std::uint64_t> ids_;
};

}  // namespace weightfs
