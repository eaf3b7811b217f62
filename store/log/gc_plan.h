// What gc would collect, as a pure function of the logs and a listing. Inside store/log only.
#pragma once

#include <map>
#include <set>

#include "store/log/gc.h"

namespace weightfs {

// What gc knows besides the model's own state. The listing is older than every state, and `now` older than the listing.
struct GcFacts {
  WallTime now;  // by the server's clock
  Duration grace{};
  std::map<ObjectKey, ObjectInfo> listed;  // everything below the model's prefix
  std::uint64_t snapshot = 0;              // the newest one's entry when these were the newest two:
  std::set<ObjectKey> kept_snapshots;
  StateResolver resolve;  // of the other models: bases and children

  // False for what is not listed: it came later, so it is younger than anything.
  bool is_older(const ObjectKey& key, Duration age) const;
};

struct GcPlan {
  CollectEntry entry;                 // at most kMaxCollected objects; more are left for another round
  std::vector<GcItem> items;          // kCollected, one for each object of the entry
  std::vector<ObjectKey> heartbeats;  // to be deleted at once: they protect nothing (any more)
  std::uint64_t kept_objects = 0, kept_bytes = 0;
};
inline constexpr std::size_t kMaxCollected = 40'000;

// kCorrupt: a live or held version cannot be rebuilt.
Result<GcPlan> plan_gc(const ModelState& state, const GcFacts& facts);

// Whether the log needs the object now: a guard before each deletion, whatever a collect entry says.
class UsedObjects {
 public:
  explicit UsedObjects(const ModelState& state);
  bool contains(const ObjectKey& key) const;

 private:
  std::set<std::string, std::less<>> packs_;  // keys without "-<n>"
  std::set<ObjectKey> manifests_;
};

}  // namespace weightfs
