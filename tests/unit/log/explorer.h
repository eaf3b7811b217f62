// Runs actors on one bucket in memory, one bucket call at a time, in every order there is.
//
// An actor is a function on its own host (its own ModelLogs and view of the bucket). Every call it makes of the bucket
// is a step: before each the scheduler decides who goes on. In addition, at most once in a schedule, the PUT of a log
// entry is lost, or its answer is, or it arrives at any later step; or an actor's host dies before one of its writes.
//
// Schedules that lead to the same state (same objects, and each actor has seen the same answers) have the same
// continuations, so each state is gone on from once: that is exhaustive, and takes time by states, not by schedules.
// Nor are orders told apart that differ only in when somebody reads what nobody can change (an entry of the log that is
// there, the time).
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "log_fixture.h"
#include "step_bucket.h"

namespace weightfs::testing {

// The objects of a bucket with their times, at a time.
struct World {
  struct Object {
    Bytes bytes;
    WallTime modified;
  };
  std::map<std::string, Object> objects;
  WallTime now{};
};
// Runs `fill` on an empty bucket.
World make_world(const std::function<void(ModelLogs& logs, Bucket& bucket, FakeClock& clock)>& fill);

struct Actor {
  std::string name;
  // Runs once a schedule. Ids that it draws from `logs` are the same each time.
  std::function<Status(ModelLogs& logs)> act;
  // Models whose logs it has read before the schedule begins.
  std::vector<ModelName> warm;
  std::vector<Twist> twists{Twist::kLostBefore, Twist::kLostAfter, Twist::kLate, Twist::kCrash};
};

struct Ending {
  MemoryObjects& objects;
  FakeClock& clock;
  std::vector<Status> results;  // of the actors
  std::vector<bool> crashed;
  bool faulted = false;  // a PUT's answer got lost
  std::string schedule;  // for messages: who made which call, in order
};

struct Explored {
  std::uint64_t states = 0, runs = 0, endings = 0, steps = 0;
};

// Every end that a complete schedule has (objects, results) is given to `check` once.
Explored explore(const World& world, const std::vector<Actor>& actors,
                 const std::function<void(Ending& ending)>& check);

}  // namespace weightfs::testing
