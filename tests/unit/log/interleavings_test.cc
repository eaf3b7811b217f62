// Publishers, rm, gc, snapshots and holds of one model and of several, in every order of their bucket calls, with every
// commit's PUT lost or late and every host dying at every write. See explorer.h.
//
// All pairs run always; WEIGHTFS_ENUMERATE=all adds groups of three, and every twist of every actor (many minutes).
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "explorer.h"
#include "store/log/gc.h"

namespace weightfs {
namespace {

using namespace weightfs::testing;

const ModelName kBase = model_name("base"), kTune = model_name("tune");

// ---- The bucket they begin with
//
// base:  v1 ← v2 (removed) ← v3, and a cheap full edge to v3, so that gc may take v2 and its edges
// tune:  w1 ← base/v3, w2 ← w1
struct Numbers {
  std::uint64_t v1 = 1, v2 = 2, v3 = 3, w1 = 1, w2 = 2;
};
constexpr Numbers kAt;

NodeRef node(const ModelName& model, std::uint64_t number) { return {model, number}; }

void publish_now(ModelLogs& logs, Bucket& bucket, const ModelName& model, const PublishEntry& entry) {
  put_objects(bucket, model, entry);
  ASSERT_OK(publish(logs, model, id_of("first " + entry.version.str()), entry));
}

World first_world() {
  return make_world([](ModelLogs& logs, Bucket& bucket, FakeClock& clock) {
    publish_now(logs, bucket, kBase, publish_of("v1", {}, 1000));
    publish_now(logs, bucket, kBase, publish_of("v2", node(kBase, kAt.v1), 100));
    publish_now(logs, bucket, kBase, publish_of("v3", node(kBase, kAt.v2), 100));
    auto full = edge_of("full v3", {}, kAt.v3, 900);
    put_pack(bucket, kBase, full);
    ASSERT_OK(add_edge(logs, kBase, id_of("full"), full));
    ASSERT_OK(remove_version(logs, kBase, id_of("rm"), version_name("v2")));
    publish_now(logs, bucket, kTune, publish_of("w1", node(kBase, kAt.v3), 50));
    publish_now(logs, bucket, kTune, publish_of("w2", node(kTune, kAt.w1), 20));
    clock.advance(std::chrono::hours(48));  // so that neither grace nor holds protect anything of this
  });
}

bool everything() {
  const char* value = std::getenv("WEIGHTFS_ENUMERATE");
  return value != nullptr && std::string_view(value) == "all";
}

// ---- Actors

// With twists that the same code meets elsewhere left out, to save time.
Actor calmer(Actor actor) {
  if (!everything()) actor.twists = {Twist::kLostAfter, Twist::kCrash};
  return actor;
}

Actor publisher(const std::string& who, const ModelName& model, const std::string& version,
                std::optional<NodeRef> parent) {
  return {who,
          [=](ModelLogs& logs) -> Status {
            auto entry = publish_of(version, parent, 60);
            entry.edge.pack = id_of("pack of " + who);
            entry.manifest.digest = digest_of("manifest of " + who);
            WFS_TRY(logs.bucket().put(pack_object_key(model, entry.edge.pack, 0), to_bytes("p"), IfExists::kOverwrite));
            WFS_TRY(logs.bucket().put(manifest_key(model, entry.manifest.digest), to_bytes("m"), IfExists::kOverwrite));
            WFS_TRY(publish(logs, model, id_of("publish " + who), entry));
            return {};
          },
          parent && parent->model != model ? std::vector{model, parent->model} : std::vector{model}};
}

Actor remover(const std::string& who, const ModelName& model, const std::string& version) {
  return {who,
          [=](ModelLogs& logs) -> Status {
            WFS_TRY(remove_version(logs, model, id_of("remove " + who), version_name(version)));
            return {};
          },
          {model}};
}

// Without grace both phases run in one go, and what is being uploaded has no protection but the order of the log.
Actor collector(const std::string& who, const ModelName& model, Duration grace = Duration(0)) {
  return calmer({who,
                 [=](ModelLogs& logs) -> Status {
                   WFS_TRY(gc(logs, model, {.grace = grace, .progress = {}, .call = {}}));
                   return {};
                 },
                 {kBase, kTune}});
}

Actor snapshotter(const std::string& who, const ModelName& model) {
  return {who, [=](ModelLogs& logs) { return logs.get(model).write_snapshot_now(); }, {model}};
}

Actor holder(const std::string& who, const NodeRef& target) {
  return {who,
          [=](ModelLogs& logs) -> Status {
            WFS_TRY(hold(logs, target, kTune, id_of("child of " + who)));
            return {};
          },
          {target.model}};
}

Actor edge_maker(const std::string& who, const ModelName& model, std::optional<NodeRef> from, std::uint64_t to) {
  return {who,
          [=](ModelLogs& logs) -> Status {
            auto edge = edge_of("edge of " + who, from, to, 30);
            WFS_TRY(logs.bucket().put(pack_object_key(model, edge.pack, 0), to_bytes("p"), IfExists::kOverwrite));
            WFS_TRY(add_edge(logs, model, id_of("edge " + who), edge));
            return {};
          },
          from && from->model != model ? std::vector{model, from->model} : std::vector{model}};
}

// ---- What must hold whatever happened

// Bytes are there for every step of a path, and for the manifests of all versions on it.
void expect_readable(ModelLogs& logs, MemoryObjects& objects, const NodeRef& target, const std::set<NodeRef>& sources) {
  auto known = logs.known();
  auto path = cheapest_path(target, sources, known);
  ASSERT_TRUE(path) << target.model.str() << " " << target.number << " cannot be rebuilt";
  for (const auto& step : path->steps) {
    auto pack = pack_object_key(step.model, step.edge.pack, 0).str();
    EXPECT_TRUE(objects.has(pack)) << pack << ", edge " << step.entry << " of " << step.model.str();
    const auto* version = known(step.model)->version(step.edge.to);
    ASSERT_NE(version, nullptr);
    EXPECT_TRUE(objects.has(manifest_key(step.model, version->manifest.digest).str()))
        << "manifest of " << version->name.str();
  }
}

void expect_sound_log(ModelLogs& logs, MemoryObjects& objects, const ModelName& model) {
  auto fresh = logs.get(model).refresh();
  ASSERT_OK(fresh);
  auto state = *fresh;
  ASSERT_FALSE(state->broken) << state->broken->to_string();
  StateBuilder replay(model);
  std::set<std::string> ids;
  for (std::uint64_t n = 1; n <= state->head; n++) {
    auto bytes = objects.contents(log_entry_key(model, n).str());
    auto entry = parse_log_entry(bytes, model, n);
    ASSERT_OK(entry);
    ASSERT_OK(replay.apply(*entry, Sha256::of(bytes)));
    EXPECT_TRUE(ids.insert(entry->id).second) << "commit " << entry->id << " is there twice";
    if (std::holds_alternative<PublishEntry>(entry->body)) {
      auto so_far = StateBuilder(replay);
      auto after = std::move(so_far).build();
      EXPECT_NE(after->version(n), nullptr) << "entry " << n << " had no effect: a name was given twice";
    }
  }
  EXPECT_EQ(describe(*state), describe(*std::move(replay).build()));
  if (state->snapshot == 0) return;
  auto newest = parse_log_entry(objects.contents(log_entry_key(model, state->snapshot).str()), model, state->snapshot);
  EXPECT_TRUE(objects.has(std::get<SnapshotEntry>(newest->body).object.str())) << "the newest snapshot is gone";
}

void expect_all_readable(ModelLogs& logs, MemoryObjects& objects) {
  for (const auto& model : {kBase, kTune}) {
    auto state = logs.get(model).state();
    for (const auto* version : state->live_versions()) {
      NodeRef target{model, version->number};
      expect_readable(logs, objects, target, {});
      if (!version->parent) continue;
      auto parent = logs.get(version->parent->model).state()->version(version->parent->number);
      if (parent != nullptr && parent->removed == 0) expect_readable(logs, objects, target, {*version->parent});
    }
  }
}

// An actor that says it won is in the log, one that says it lost is not.
void expect_honest(const Ending& ending, const std::vector<Actor>& actors) {
  std::set<std::string> ids;
  for (const auto& key : ending.objects.keys()) {
    auto slash = key.find("/log/0");
    if (slash == std::string::npos) continue;
    auto model = model_name(key.substr(0, slash));
    auto number = std::stoull(key.substr(slash + 5));
    ids.insert(parse_log_entry(ending.objects.contents(key), model, number)->id);
  }
  for (std::size_t i = 0; i < actors.size(); i++) {
    const auto& who = actors[i].name;
    auto code = ending.results[i].code();
    if (ending.crashed[i] || code == Code::kUnavailable || code == Code::kInterrupted) {
      EXPECT_TRUE(ending.crashed[i] || ending.faulted) << who << " does not know, without a fault";
      continue;
    }
    EXPECT_TRUE(code == Code::kOk || code == Code::kExists || code == Code::kNotFound || code == Code::kBusy)
        << who << ": " << ending.results[i].to_string();
    for (const auto* kind : {"publish ", "remove ", "edge "}) {
      bool is_there = ids.contains(id_of(kind + who));
      EXPECT_TRUE(!is_there || code == Code::kOk) << who << " is in the log, but was told " << to_string(code);
    }
    if (code == Code::kOk) {
      bool is_commit = who.starts_with("publish") || who.starts_with("remove") || who.starts_with("edge");
      bool is_there = ids.contains(id_of("publish " + who)) || ids.contains(id_of("remove " + who)) ||
                      ids.contains(id_of("edge " + who));
      EXPECT_EQ(is_there, is_commit) << who;
    }
  }
}

using Check = std::function<void(const Ending& ending, ModelLogs& logs)>;

class InterleavingsTest : public ::testing::Test {
 protected:
  void run(const std::string& name, const std::vector<Actor>& actors, const Check& check = {}) {
    run_in(world_, name, actors, check);
  }
  void run_in(const World& world, const std::string& name, const std::vector<Actor>& actors, const Check& extra = {}) {
    if (HasFailure()) return;
    auto check = [&](Ending& ending) {
      SCOPED_TRACE(name + "\n" + ending.schedule);
      ModelLogs logs(ending.objects, ending.clock, nullptr, {.parallel = 1});
      for (const auto& model : {kBase, kTune}) expect_sound_log(logs, ending.objects, model);
      if (HasFailure()) return;
      expect_all_readable(logs, ending.objects);
      expect_honest(ending, actors);
      if (extra) extra(ending, logs);
      if (HasFailure()) return;
      // Later, gc runs to its end: what a live version needs is still there.
      ending.clock.advance(std::chrono::hours(49));
      for (int round = 0; round < 2; round++) {
        for (const auto& model : {kBase, kTune}) EXPECT_OK(gc(logs, model, {.grace = Duration(0), .call = {}}));
      }
      expect_all_readable(logs, ending.objects);
    };
    auto counts = explore(world, actors, check);
    fmt::print("{:<44} {:>7} states {:>7} runs {:>5} endings\n", name, counts.states, counts.runs, counts.endings);
    std::fflush(stdout);
    EXPECT_GT(counts.endings, 1u);
  }
  const World world_ = first_world();
  const NodeRef v1_ = node(kBase, kAt.v1), v2_ = node(kBase, kAt.v2), v3_ = node(kBase, kAt.v3);
};

void expect_one_winner(const Ending& ending, ModelLogs&) {
  auto won = std::count_if(ending.results.begin(), ending.results.end(), [](const Status& s) { return s.is_ok(); });
  EXPECT_LE(won, 1);
  if (!ending.faulted && std::count(ending.crashed.begin(), ending.crashed.end(), true) == 0) {
    EXPECT_EQ(won, 1);
  }
}

TEST_F(InterleavingsTest, TwoPublishersOfOneModel) {
  run("the same name", {publisher("publish a", kBase, "x", v3_), publisher("publish b", kBase, "x", v3_)},
      expect_one_winner);
  run("different names", {publisher("publish a", kBase, "x", v3_), publisher("publish b", kBase, "y", v1_)},
      [](const Ending& ending, ModelLogs&) {
        for (std::size_t i = 0; i < 2; i++)
          EXPECT_TRUE(ending.results[i].is_ok() || ending.faulted || ending.crashed[i]);
      });
  run("a name that is removed meanwhile", {publisher("publish a", kBase, "v3", v1_), remover("remove b", kBase, "v3")});
}

TEST_F(InterleavingsTest, PublisherAndRemover) {
  run("its parent", {publisher("publish a", kBase, "x", v3_), remover("remove b", kBase, "v3")});
  run("its own name", {publisher("publish a", kBase, "x", v3_), remover("remove b", kBase, "x")});
  run("two removers", {remover("remove a", kBase, "v3"), remover("remove b", kBase, "v3")}, expect_one_winner);
}

TEST_F(InterleavingsTest, PublisherAndGc) {
  run("on what gc takes", {publisher("publish a", kBase, "x", v2_), collector("gc b", kBase)});
  run("on what gc keeps", {publisher("publish a", kBase, "x", v3_), collector("gc b", kBase)});
  run("from nothing", {publisher("publish a", kBase, "x", {}), collector("gc b", kBase)});
}

// The collect entry was made yesterday; objects that are uploaded now are young.
TEST_F(InterleavingsTest, PublisherAndGcAfterTheGraceTime) {
  auto grace = std::chrono::hours(24);
  auto world = make_world([&](ModelLogs& logs, Bucket& bucket, FakeClock& clock) {
    for (const auto& [key, object] : world_.objects) {
      ASSERT_OK(bucket.put(ObjectKey::of(key), object.bytes, IfExists::kOverwrite));
    }
    clock.advance(std::chrono::hours(30));
    EXPECT_GT(gc(logs, kBase, {.grace = grace, .progress = {}, .call = {}})->count(GcItem::What::kCollected), 0u);
    clock.advance(std::chrono::hours(30));
  });
  run_in(world, "phase two", {publisher("publish a", kBase, "x", v3_), collector("gc b", kBase, grace)},
         [](const Ending& ending, ModelLogs&) {
           EXPECT_TRUE(ending.results[0].is_ok() || ending.faulted || ending.crashed[0]);
         });
  run_in(world, "phase two, on what goes", {publisher("publish a", kBase, "x", v2_), collector("gc b", kBase, grace)});
  run_in(world, "phase two, twice", {collector("gc a", kBase, grace), collector("gc b", kBase, grace)});
  run_in(world, "phase two and rm", {remover("remove a", kBase, "v1"), collector("gc b", kBase, grace)});
}

TEST_F(InterleavingsTest, GcAndTheOthers) {
  run("rm", {collector("gc a", kBase), remover("remove b", kBase, "v1")});
  run("rm of the parent of another model", {collector("gc a", kBase), remover("remove b", kBase, "v3")});
  run("gc", {collector("gc a", kBase), collector("gc b", kBase)});
  run("snapshot", {collector("gc a", kBase), snapshotter("snapshot b", kBase)});
  run("an edge from what goes", {collector("gc a", kBase), edge_maker("edge b", kBase, v2_, kAt.v3)});
  run("a full edge", {collector("gc a", kBase), edge_maker("edge b", kBase, {}, kAt.v1)});
  run("a hold on what goes", {collector("gc a", kBase), holder("hold b", v2_)});
}

TEST_F(InterleavingsTest, Snapshots) {
  run("publish", {snapshotter("snapshot a", kBase), publisher("publish b", kBase, "x", v3_)});
  run("rm", {snapshotter("snapshot a", kBase), remover("remove b", kBase, "v1")});
  run("snapshot", {snapshotter("snapshot a", kBase), snapshotter("snapshot b", kBase)});
  run("hold", {snapshotter("snapshot a", kBase), holder("hold b", v2_)});
}

TEST_F(InterleavingsTest, AcrossModels) {
  run("gc of the parent's model, parent goes",
      {calmer(publisher("publish a", kTune, "x", v2_)), collector("gc b", kBase)});
  run("gc of the parent's model, parent lives",
      {calmer(publisher("publish a", kTune, "x", v3_)), collector("gc b", kBase)});
  run("gc of the child's model", {calmer(publisher("publish a", kTune, "x", v3_)), collector("gc b", kTune)});
  run("rm of the parent", {publisher("publish a", kTune, "x", v3_), remover("remove b", kBase, "v3")});
  run("same name, parents elsewhere",
      {publisher("publish a", kTune, "x", v3_), publisher("publish b", kTune, "x", v1_)}, expect_one_winner);
  run("each on the other",
      {publisher("publish a", kTune, "x", v3_), publisher("publish b", kBase, "y", node(kTune, kAt.w2))});
  run("publish in the parent's model",
      {publisher("publish a", kTune, "x", v3_), publisher("publish b", kBase, "y", v3_)});
  run("snapshot of the parent's model", {publisher("publish a", kTune, "x", v3_), snapshotter("snapshot b", kBase)});
  run("rm of the last child, gc of the parent", {remover("remove a", kTune, "w1"), collector("gc b", kBase)});
  run("a skip edge across, gc of its start",
      {calmer(edge_maker("edge a", kTune, v2_, kAt.w2)), collector("gc b", kBase)});
}

// Nothing of tune needs base/v3 any more but one edge, which one gc takes while the other looks.
TEST_F(InterleavingsTest, TwoGcAcrossModels) {
  auto world = make_world([&](ModelLogs& logs, Bucket& bucket, FakeClock& clock) {
    for (const auto& [key, object] : world_.objects) {
      ASSERT_OK(bucket.put(ObjectKey::of(key), object.bytes, IfExists::kOverwrite));
    }
    auto full = edge_of("full w2", {}, kAt.w2, 40);
    put_pack(bucket, kTune, full);
    ASSERT_OK(add_edge(logs, kTune, id_of("full w2"), full));
    ASSERT_OK(remove_version(logs, kTune, id_of("rm w1"), version_name("w1")));
    ASSERT_OK(remove_version(logs, kBase, id_of("rm v3"), version_name("v3")));
    clock.advance(std::chrono::hours(48));
  });
  run_in(world, "gc of both", {collector("gc a", kBase), collector("gc b", kTune)});
  run_in(world, "publish on what one gc takes",
         {publisher("publish a", kTune, "x", node(kTune, kAt.w1)), collector("gc b", kTune)});
}

TEST_F(InterleavingsTest, Triples) {
  // One small group always; the others on demand.
  run("three of one name", {publisher("publish a", kBase, "x", v3_), publisher("publish b", kBase, "x", v1_),
                            remover("remove c", kBase, "x")});
  if (!everything()) return;
  run("publish, rm, gc",
      {publisher("publish a", kBase, "x", v2_), remover("remove b", kBase, "v3"), collector("gc c", kBase)});
  run("publish, gc, gc", {publisher("publish a", kBase, "x", v2_), collector("gc b", kBase), collector("gc c", kBase)});
  run("publish, snapshot, gc",
      {publisher("publish a", kBase, "x", v2_), snapshotter("snapshot b", kBase), collector("gc c", kBase)});
  run("publish across, gc, gc",
      {publisher("publish a", kTune, "x", v2_), collector("gc b", kBase), collector("gc c", kTune)});
  run("publish across, rm, gc",
      {publisher("publish a", kTune, "x", v3_), remover("remove b", kBase, "v3"), collector("gc c", kBase)});
}

}  // namespace
}  // namespace weightfs
