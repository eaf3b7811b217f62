#include "store/log/log_reader.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "store/log/state_snapshot.h"

namespace weightfs {
namespace {

constexpr std::uint64_t kWindow = 8;    // entries asked for at once where a few more are expected
constexpr std::uint64_t kProbes = 16;   // asked for at once to halve (or rather 17th) what is unknown
constexpr std::uint64_t kManyNew = 64;  // from here on a newer snapshot saves reading
constexpr std::uint64_t kMaxHintSize = 4096;
constexpr std::uint64_t kMaxNumber = std::uint64_t{1} << 62;

std::vector<std::uint64_t> numbers_between(std::uint64_t first, std::uint64_t last) {
  std::vector<std::uint64_t> out;
  for (auto number = first; number <= last; number++) out.push_back(number);
  return out;
}

bool is_snapshot(const LogEntry& entry) { return std::holds_alternative<SnapshotEntry>(entry.body); }

// The bucket itself is the trouble, not one object of it.
bool is_outage(Code code) { return code == Code::kUnavailable || code == Code::kInterrupted; }

}  // namespace

// ---- Requests

Status LogReader::fetch(std::vector<std::uint64_t> numbers, bool with_hint) {
  WFS_TRY(deadline_.check());
  std::erase_if(numbers, [&](auto number) { return present(number); });
  with_hint = with_hint && !hint_;
  std::vector<Raw> raws(numbers.size());
  std::vector<Status> results(numbers.size() + (with_hint ? 1 : 0));
  std::atomic<bool> out_of_reach = false;
  run_parallel(results.size(), parallel_, [&](std::size_t i) {
    if (out_of_reach) return;
    results[i] = i < numbers.size() ? fetch_entry(numbers[i], raws[i]) : fetch_hint();
    if (!results[i].is_ok()) out_of_reach = true;
  });
  for (auto& result : results) WFS_TRY(std::move(result));
  for (std::size_t i = 0; i < numbers.size(); i++) raws_.insert_or_assign(numbers[i], std::move(raws[i]));
  return {};
}

// Whatever is wrong with the entry itself goes into `raw`; an error is of the bucket.
Status LogReader::fetch_entry(std::uint64_t number, Raw& raw) {
  auto bytes = bucket_.get_all(log_entry_key(model_, number), kMaxLogEntry, deadline_.options());
  if (!bytes.is_ok()) {
    switch (bytes.code()) {
      case Code::kNotFound:
        raw.presence = Presence::kAbsent;
        return {};
      case Code::kPermission:
        raw.presence = Presence::kHidden;
        return {};
      case Code::kCorrupt:
      case Code::kInvalid:
        raw.presence = Presence::kPresent;
        raw.damage = {Code::kCorrupt, bytes.status().message()};
        return {};
      default:
        return std::move(bytes).status().with(name_of(number));
    }
  }
  raw.presence = Presence::kPresent;
  raw.digest = Sha256::of(*bytes);
  auto parsed = parse_log_entry(*bytes, model_, number);
  if (parsed.is_ok()) {
    raw.entry = std::move(parsed).value();
  } else {
    raw.damage = std::move(parsed).status().with(name_of(number));
  }
  return {};
}

Status LogReader::fetch_hint() {
  auto bytes = bucket_.get_all(log_hint_key(model_), kMaxHintSize, deadline_.options());
  if (!bytes.is_ok() && is_outage(bytes.code())) return std::move(bytes).status();
  hint_ = 0;
  if (!bytes.is_ok()) return {};
  auto head = parse_hint(*bytes);
  if (head.is_ok() && *head < kMaxNumber) hint_ = *head;
  return {};
}

bool LogReader::present(std::uint64_t number) const {
  auto found = raws_.find(number);
  return found != raws_.end() && found->second.presence == Presence::kPresent;
}

bool LogReader::hidden(std::uint64_t number) const {
  auto found = raws_.find(number);
  return found != raws_.end() && found->second.presence == Presence::kHidden;
}

const LogEntry* LogReader::entry(std::uint64_t number) const {
  auto found = raws_.find(number);
  return found == raws_.end() || !found->second.entry ? nullptr : &*found->second.entry;
}

std::string LogReader::name_of(std::uint64_t number) const { return log_entry_key(model_, number).str(); }

// ---- The head

// REQUIRES: entry `base` is present. The last entry of the run that begins there; `width` more are expected first.
Result<std::uint64_t> LogReader::locate(std::uint64_t base, std::uint64_t width) {
  while (true) {
    WFS_TRY(fetch(numbers_between(base + 1, base + width), width == kWindow));
    auto end = base;
    while (end < base + width && present(end + 1)) end++;
    if (end < base + width) {
      // Later ones are there: the missing one was written between the two requests, or has been deleted.
      auto last = raws_.rbegin();
      while (last->first > end && last->second.presence != Presence::kPresent) ++last;
      if (last->first <= end) return end;
      WFS_TRY(fetch({end + 1}));
      if (!present(end + 1)) return last->first;
      base = end + 1;
      continue;
    }
    base = end;
    if (hint_.value_or(0) > base + kWindow) {
      auto far = std::exchange(*hint_, 0);
      WFS_TRY(fetch({far}));
      if (present(far)) base = far;
    } else if (width == kWindow) {
      base = WFS_TRY(double_and_bisect(base));
    }
    width = kWindow;
  }
}

// REQUIRES: entry `base` is present. A present entry with less than kWindow unknown ones before an absent one.
Result<std::uint64_t> LogReader::double_and_bisect(std::uint64_t base) {
  auto low = base, high = std::uint64_t{0};
  std::vector<std::uint64_t> probes;
  for (std::uint64_t i = 0; i < kProbes; i++) probes.push_back(base + (kWindow << i));
  while (true) {
    WFS_TRY(fetch(probes));
    for (auto number : probes) {
      if (present(number)) low = std::max(low, number);
    }
    for (auto number : probes) {
      if (!present(number) && number > low && (high <= low || number < high)) high = number;
    }
    if (high <= low || high - low <= kWindow) return low;
    probes.clear();
    for (std::uint64_t i = 1; i <= kProbes; i++) probes.push_back(low + (high - low) * i / (kProbes + 1));
  }
}

// ---- States

Result<ModelStatePtr> LogReader::open() {
  WFS_TRY(fetch({1}, true));
  std::uint64_t base = present(1) ? 1 : 0;
  if (auto hint = hint_.value_or(0); hint > 1) {
    WFS_TRY(fetch(numbers_between(hint, hint + kWindow / 2)));
    if (present(hint)) base = hint;
  }
  if (base == 0) {
    if (!hidden(1)) return std::make_shared<const ModelState>(model_);
    return Status(Code::kPermission, name_of(1) + ": no such model, or no right to read it");
  }
  auto last = WFS_TRY(locate(base, kWindow / 2));
  return load(last);
}

Result<ModelStatePtr> LogReader::advance(const ModelStatePtr& from, bool check_head) {
  auto head = from->head, next = head + 1;
  if (head == 0) {
    WFS_TRY(fetch({1}));
    if (present(1)) return open();
    if (hidden(1)) return Status(Code::kPermission, name_of(1) + ": no such model, or no right to read it");
    return from;
  }
  WFS_TRY(fetch(check_head ? std::vector{head, next} : std::vector{next}));
  bool head_asked = check_head;
  if (hidden(next) && !head_asked) {
    WFS_TRY(fetch({head}));
    head_asked = true;
  }
  if (head_asked) {
    if (hidden(head)) return Status(Code::kPermission, name_of(head) + ": no right to read it");
    if (!present(head) || raws_.at(head).digest != from->head_digest) {
      return Status(Code::kCorrupt, name_of(head) + ": not the entry that was read before");
    }
  }
  if (!present(next)) {
    if (!from->broken) return from;
    return StateBuilder(*from).build();
  }
  auto last = WFS_TRY(locate(next, 1));
  if (last - head > kManyNew) {
    auto snapshot = WFS_TRY(newest_snapshot(last));
    if (snapshot > head) return load(last);
  }
  WFS_TRY(fetch(numbers_between(next, last)));
  return replay(StateBuilder(*from), last);
}

// The state after entry `last`, from the newest snapshot that is good.
Result<ModelStatePtr> LogReader::load(std::uint64_t last) {
  auto snapshot = WFS_TRY(newest_snapshot(last));
  while (snapshot > 0) {
    WFS_TRY(fetch(numbers_between(snapshot, last)));
    const auto* at = entry(snapshot);
    if (at == nullptr || !is_snapshot(*at)) {
      snapshot = WFS_TRY(newest_snapshot(snapshot - 1));
      continue;
    }
    const auto& place = std::get<SnapshotEntry>(at->body);
    auto state = read_snapshot(bucket_, model_, place, deadline_.options());
    if (state.is_ok()) {
      StateBuilder builder(std::move(*state));
      WFS_TRY(fetch(numbers_between(builder.head() + 1, last)));
      return replay(std::move(builder), last);
    }
    if (is_outage(state.code())) return std::move(state).status();
    spdlog::warn("log {}: snapshot {} is of no use, goes on with the one before: {}", model_.str(), place.object.str(),
                 state.status().to_string());
    snapshot = at->snapshot;
  }
  WFS_TRY(fetch(numbers_between(1, last)));
  return replay(StateBuilder(model_), last);
}

// The newest snapshot entry up to `last`, as the newest entry that can be read tells.
Result<std::uint64_t> LogReader::newest_snapshot(std::uint64_t last) {
  for (; last > 0; last--) {
    WFS_TRY(fetch({last}));
    if (const auto* at = entry(last)) return is_snapshot(*at) ? last : at->snapshot;
  }
  return std::uint64_t{0};
}

// REQUIRES: entries builder.head() + 1 … last were asked for.
Result<ModelStatePtr> LogReader::replay(StateBuilder builder, std::uint64_t last) {
  while (builder.head() < last) {
    auto number = builder.head() + 1;
    auto damage = damage_of(number, last);
    if (!damage) {
      const auto& raw = raws_.at(number);
      if (auto status = builder.apply(*raw.entry, raw.digest); !status.is_ok()) {
        damage = std::move(status).with(name_of(number));
      }
    }
    if (damage) return std::move(builder).build(std::move(damage));
    ids_.insert_or_assign(entry(number)->id, number);
  }
  return std::move(builder).build();
}

std::optional<Status> LogReader::damage_of(std::uint64_t number, std::uint64_t last) const {
  const auto& raw = raws_.at(number);
  if (raw.presence != Presence::kPresent) {
    return Status(Code::kCorrupt, name_of(number) + ": missing, though later entries are there");
  }
  if (!raw.entry) return raw.damage;
  // Two entries that agree with each other outvote the one before them.
  const auto* next = number + 1 < last ? entry(number + 1) : nullptr;
  const auto* after = next != nullptr ? entry(number + 2) : nullptr;
  if (after != nullptr && next->previous != raw.digest && after->previous == raws_.at(number + 1).digest) {
    return Status(Code::kCorrupt, name_of(number) + ": not the entry that the next one continues (digest)");
  }
  return std::nullopt;
}

}  // namespace weightfs
