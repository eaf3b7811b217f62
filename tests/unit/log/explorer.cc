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

  std::vector<Choice> choices(bool twists) const {
    std::vector<Choice> out;
    for (std::size_t i = 0; i < hosts_.size(); i++) {
      if (!hosts_[i]->fiber->done()) out.push_back({i, Twist::kNone});
    }
    for (std::size_t i = 0; i < hosts_.size(); i++) {
      if (hosts_[i]->bucket->late) out.push_back({hosts_.size() + i, Twist::kNone});
    }
    if (!twists || twisted_) return out;
    for (std::size_t i = 0; i < hosts_.size(); i++) {
      const auto& host = *hosts_[i];
      if (host.fiber->done()) continue;
      const auto& next = host.bucket->next;
      bool commits = next.op == BucketOp::kPut && next.if_exists == IfExists::kFail;
      if (commits) {
        for (auto twist : {Twist::kLostBefore, Twist::kLostAfter, Twist::kLate}) out.push_back({i, twist});
      }
      if (is_write(next.op)) out.push_back({i, Twist::kCrash});  // dying before a read is dying before the write
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

  Xxh128 state() const {
    History all;
    for (const auto& key : objects_->keys()) {
      all.add(key);
      all.add(objects_->contents(key));
    }
    for (const auto& host : hosts_) {
      all.add(host->history.digest().bytes);
      all.add((host->fiber->done() ? 1u : 0u) + (host->bucket->late ? 2u : 0u));
    }
    all.add(now());
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
              *bucket, run.clock_, nullptr,
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

  std::uint64_t now() const { return static_cast<std::uint64_t>(clock_.now().time_since_epoch().count()); }

  // What the call is going to answer, by what it looks at.
  void remember(Host& host, Twist twist) {
    host.history.add(host.bucket->next.str());
    host.history.add(static_cast<std::uint64_t>(twist));
    host.history.add(now());
    if (host.bucket->next.op == BucketOp::kList) {
      for (const auto& key : objects_->keys()) host.history.add(key);
    } else if (objects_->has(host.bucket->next.key)) {
      host.history.add(objects_->contents(host.bucket->next.key));
    }
  }

  FakeClock clock_;
  std::shared_ptr<MemoryObjects> objects_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::vector<std::pair<Choice, std::string>> schedule_;
  bool twisted_ = false, faulted_ = false;
};

}  // namespace

World make_world(const std::function<void(ModelLogs&, Bucket&, FakeClock&)>& fill) {
  FakeClock clock;
  MemoryBucket bucket(clock);
  int drawn = 0;
  ModelLogs logs(bucket, clock, nullptr,
                 {.parallel = 1, .new_id = [&drawn] { return id_of("world " + std::to_string(drawn++)); }});
  fill(logs, bucket, clock);
  World world;
  for (const auto& key : bucket.objects().keys()) {
    auto info = bucket.objects().head(ObjectKey::of(key));
    world.objects[key] = {bucket.objects().contents(key), info->modified};
  }
  world.now = clock.wall();
  return world;
}

Explored explore(const World& world, const std::vector<Actor>& actors, const std::function<void(Ending& ending)>& check,
                 bool faults) {
  Explored counts;
  std::set<Xxh128> seen;
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
        counts.endings++;
        auto ending = run.ending();
        check(ending);
        if (::testing::Test::HasFailure()) return counts;  // one schedule is enough to read
        break;
      }
      auto choices = run.choices(faults);
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
