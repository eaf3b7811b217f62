#include "explorer.h"

#include <fmt/format.h>

#include <algorithm>

#include "step_bucket.h"

namespace weightfs::testing {
namespace {

struct Choice {
  std::size_t actor = 0;  // from the number of actors on: the network, with that actor's late request
  Twist twist = Twist::kNone;
};

std::string_view to_string(Twist twist) {
  switch (twist) {
    case Twist::kNone:
      return "";
    case Twist::kLostBefore:
      return " (lost, not done)";
    case Twist::kLostAfter:
      return " (done, answer lost)";
    case Twist::kLate:
      return " (arrives later)";
    case Twist::kCrash:
      return " (dies before)";
  }
  return "";
}

// Running hash of what an actor has seen.
class History {
 public:
  void add(ByteSpan bytes) {
    Bytes both(digest_.bytes.begin(), digest_.bytes.end());
    both.insert(both.end(), bytes.begin(), bytes.end());
    digest_ = Xxh128::of(both);
  }
  void add(std::string_view text) { add(as_bytes(text)); }
  void add(std::uint64_t number) { add(std::to_string(number)); }
  const Xxh128& digest() const { return digest_; }

 private:
  Xxh128 digest_;
};

// Time stands still: pauses only tell the scheduler nothing new, and would make equal states differ.
class StillClock final : public Clock {
 public:
  explicit StillClock(FakeClock& clock) : clock_(clock) {}
  SteadyTime now() const override { return clock_.now(); }
  WallTime wall() const override { return clock_.wall(); }
  void sleep_for(Duration) override {}

 private:
  FakeClock& clock_;
};

class Run {
 public:
  Run(const World& world, const std::vector<Actor>& actors) {
    clock_.set_wall(world.now);
    objects_ = std::make_shared<MemoryObjects>(clock_);
    for (const auto& [key, object] : world.objects) {
      objects_->set_contents(key, object.bytes);
      objects_->set_modified(key, object.modified);
    }
    for (std::size_t i = 0; i < actors.size(); i++) hosts_.push_back(std::make_unique<Host>(*this, actors[i], i));
    for (auto& host : hosts_) host->start();
  }
  ~Run() {
    for (auto& host : hosts_) {
      host->bucket->dead = true;
      while (!host->fiber->done()) host->fiber->resume();
    }
  }

  bool done() const {
    return std::all_of(hosts_.begin(), hosts_.end(),
                       [](const auto& host) { return host->fiber->done() && !host->bucket->late; });
  }

  std::vector<Choice> choices() const {
    std::vector<Choice> out;
    for (std::size_t i = 0; i < hosts_.size(); i++) {
      if (!hosts_[i]->fiber->done() && nobody_minds(hosts_[i]->bucket->next)) return {{i, Twist::kNone}};
    }
    for (std::size_t i = 0; i < hosts_.size(); i++) {
      if (!hosts_[i]->fiber->done()) out.push_back({i, Twist::kNone});
    }
    for (std::size_t i = 0; i < hosts_.size(); i++) {
      if (hosts_[i]->bucket->late) out.push_back({hosts_.size() + i, Twist::kNone});
    }
    if (twisted_) return out;
    for (std::size_t i = 0; i < hosts_.size(); i++) {
      const auto& host = *hosts_[i];
      if (host.fiber->done()) continue;
      const auto& next = host.bucket->next;
      bool commits = next.op == BucketOp::kPut && next.if_exists == IfExists::kFail;
      for (auto twist : host.actor.twists) {
        // Dying before a read is dying before the next write.
        if (twist == Twist::kCrash ? is_write(next.op) : commits) out.push_back({i, twist});
      }
    }
    return out;
  }

  void step(const Choice& choice) {
    if (choice.actor >= hosts_.size()) {  // the network brings what it had kept
      auto late = std::exchange(hosts_[choice.actor - hosts_.size()]->bucket->late, nullptr);
      late();
      schedule_.emplace_back(Choice{choice.actor - hosts_.size(), Twist::kNone}, "late put arrives");
      return;
    }
    auto& host = *hosts_[choice.actor];
    schedule_.emplace_back(choice, host.bucket->next.str());
    remember(host, choice.twist);
    twisted_ = twisted_ || choice.twist != Twist::kNone;
    if (choice.twist == Twist::kCrash) {
      host.bucket->dead = host.crashed = true;
      while (!host.fiber->done()) host.fiber->resume();
      return;
    }
    faulted_ = faulted_ || choice.twist != Twist::kNone;
    host.bucket->twist = choice.twist;
    host.fiber->resume();
  }

  // What a check can see.
  Xxh128 outcome(const Ending& ending) const {
    History all = contents();
    for (const auto& result : ending.results) all.add(result.to_string());
    for (bool crashed : ending.crashed) all.add(crashed ? 1u : 0u);
    all.add(ending.faulted ? 1u : 0u);
    return all.digest();
  }

  Xxh128 state() const {
    History all = contents();
    for (const auto& host : hosts_) {
      all.add(host->history.digest().bytes);
      all.add((host->fiber->done() ? 1u : 0u) + (host->bucket->late ? 2u : 0u));
    }
    return all.digest();
  }

  Ending ending() {
    Ending out{
        .objects = *objects_, .clock = clock_, .results = {}, .crashed = {}, .faulted = faulted_, .schedule = {}};
    for (const auto& host : hosts_) {
      out.results.push_back(host->result);
      out.crashed.push_back(host->crashed);
      out.schedule += fmt::format("{}: {}\n", host->actor.name, host->crashed ? "died" : host->result.to_string());
    }
    for (const auto& [choice, call] : schedule_) {
      out.schedule += fmt::format("  {} {}{}\n", hosts_[choice.actor]->actor.name, call, to_string(choice.twist));
    }
    return out;
  }

 private:
  struct Host {
    Host(Run& run, const Actor& an_actor, std::size_t index)
        : actor(an_actor),
          bucket(std::make_unique<StepBucket>(run.objects_)),
          logs(
              *bucket, run.still_, nullptr,
              {.parallel = 1, .new_id = [this, index] { return id_of(fmt::format("host {} id {}", index, drawn++)); }}),
          fiber(std::make_unique<Fiber>([this] { result = actor.act(logs); })) {
      for (const auto& model : actor.warm) EXPECT_OK(logs.get(model).refresh());
    }
    void start() {
      bucket->active = true;
      fiber->resume();
    }
    const Actor& actor;
    std::unique_ptr<StepBucket> bucket;
    int drawn = 0;
    ModelLogs logs;
    Status result;
    History history;
    bool crashed = false;
    std::unique_ptr<Fiber> fiber;
  };

  History contents() const {
    History all;
    for (const auto& key : objects_->keys()) {
      all.add(key);
      all.add(objects_->contents(key));
    }
    return all;
  }

  // The answer is the same whenever it is made, and it changes nothing: the order of this call does not matter.
  bool nobody_minds(const BucketCall& call) const {
    if (call.op == BucketOp::kServerTime) return true;  // time stands still
    bool reads = call.op == BucketOp::kGetAll || call.op == BucketOp::kHead;
    return reads && call.key.find("/log/0") != std::string::npos &&
           objects_->has(call.key);  // never changed or deleted
  }

  // What the call is going to answer, by what it looks at.
  void remember(Host& host, Twist twist) {
    host.history.add(host.bucket->next.str());
    host.history.add(static_cast<std::uint64_t>(twist));
    if (host.bucket->next.op == BucketOp::kList) {
      for (const auto& key : objects_->keys()) host.history.add(key);
    } else if (objects_->has(host.bucket->next.key)) {
      host.history.add(objects_->contents(host.bucket->next.key));
    }
  }

  FakeClock clock_;
  StillClock still_{clock_};
  std::shared_ptr<MemoryObjects> objects_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::pair<Choice, std::string>> schedule_;
  bool twisted_ = false, faulted_ = false;
};

}  // namespace

World make_world(const std::function<void(ModelLogs&, Bucket&, FakeClock&)>& fill) {
  static int worlds = 0;  // a world made from another may not draw its ids again
  worlds++;
  FakeClock clock;
  MemoryBucket bucket(clock);
  int drawn = 0;
  ModelLogs logs(bucket, clock, nullptr,
                 {.parallel = 1, .new_id = [&drawn] { return id_of(fmt::format("world {} id {}", worlds, drawn++)); }});
  fill(logs, bucket, clock);
  World world;
  for (const auto& key : bucket.objects().keys()) {
    auto info = bucket.objects().head(ObjectKey::of(key));
    world.objects[key] = {bucket.objects().contents(key), info->modified};
  }
  world.now = clock.wall();
  return world;
}

Explored explore(const World& world, const std::vector<Actor>& actors,
                 const std::function<void(Ending& ending)>& check) {
  Explored counts;
  std::set<Xxh128> seen, endings;
  std::vector<std::vector<Choice>> open{{}};
  while (!open.empty()) {
    auto prefix = std::move(open.back());
    open.pop_back();
    Run run(world, actors);
    counts.runs++;
    for (const auto& choice : prefix) run.step(choice);
    while (true) {
      counts.steps++;
      if (!seen.insert(run.state()).second) break;
      counts.states++;
      if (run.done()) {
        auto ending = run.ending();
        if (!endings.insert(run.outcome(ending)).second) break;
        counts.endings++;
        check(ending);
        if (::testing::Test::HasFailure()) return counts;  // one schedule is enough to read
        break;
      }
      auto choices = run.choices();
      for (std::size_t i = 1; i < choices.size(); i++) {
        open.push_back(prefix);
        open.back().push_back(choices[i]);
      }
      prefix.push_back(choices[0]);
      run.step(choices[0]);
    }
  }
  return counts;
}

}  // namespace weightfs::testing
