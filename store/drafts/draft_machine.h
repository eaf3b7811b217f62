// The life of a draft as a pure state machine: events and the time come in, actions go out; no I/O, no thread, no
// clock. Its owner holds one lock around every call, tells it every event, then asks decide() and does what it says.
//
//   state        event                                             next          function
//   -----------  ------------------------------------------------  ------------  -------------------------------
//   open         a file is opened, written, changed, released      open          open_writer wrote begin_change
//                                                                                end_change released
//   open         a handle closed by its process's end, a writer's  interrupted   released  writer_failed
//                error, a writer that ended badly                                process_ended
//   (restart)    any record without a commit under way             interrupted   interrupt
//   open         complete, at rest, done (rule 3)                  publishing    checked  decide
//   open,        renamed from a temporary to a final name (rule    publishing    renamed  decide
//   interrupted  2), no handle open for writing
//   open,        commit (rule 1), no handle open for writing       publishing    ask  decide
//   interrupted,
//   failed
//   failed       changed, or renamed                               open or       begin_change  open_writer  renamed
//                                                                  interrupted
//   failed       out of reach before the commit, time to retry     publishing    decide
//   publishing   a change, and rule 3 began it: the job is         open          begin_change  open_writer
//                cancelled, its result void                                      renamed
//   publishing   about to send the commit, its id is durable       committing    enter_commit
//   publishing   the job failed                                    failed        finished
//   committing   it is in the log                                  committed     finished
//   committing   it is not and will not be (name taken, …)         failed        finished
//   committing   after a restart or an unknown outcome: it is not   publishing    not_committed
//   committing   nobody knows: asked again, with the same id       committing    finished  decide
//   (restart)    a record with a commit under way                  committing    resume_commit
//
// Outside, committing shows as publishing. "interrupted" is a flag that outlives publishing and failed: such a draft is
// never again published by rule 3. Uploads that run behind the writer belong to open; they have no state of their own.
//
// Rule 3, the settle rules:
//   complete  the check of this very generation (a count of changes) found nothing missing
//   at rest   no handle open for writing (until RELEASE), no bracket open, no change for the settle time
//   done      the process that made the directory did all the writing and has ended: the short settle time, counted
//             from its end or the last change, whichever is later; in every other case the long one
#pragma once

#include <sys/types.h>

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "store/base/clock.h"
#include "store/base/status.h"
#include "store/draft.h"

namespace weightfs {

// A process for as long as the machine is up: ids are used again, start times are not.
struct ProcessId {
  pid_t pid = 0;
  std::uint64_t start = 0;  // field 22 of /proc/PID/stat
  friend auto operator<=>(const ProcessId&, const ProcessId&) = default;
};

struct ProcessEnd {
  enum class How : std::uint8_t {
    kUnknown,  // it has ended, nobody can tell how
    kExited,   // `code`: its exit status
    kKilled,   // `code`: the signal
  };
  How how = How::kUnknown;
  int code = 0;
  bool badly() const { return how == How::kKilled || (how == How::kExited && code != 0); }
};

struct DraftTimes {
  Duration settle = std::chrono::seconds(1);
  Duration settle_live = std::chrono::seconds(30);
  Duration release_patience = std::chrono::milliseconds(500);  // RELEASE comes some time after close()
  Duration retry_first = std::chrono::seconds(1);              // doubled each time
  Duration retry_most = std::chrono::minutes(1);
};

enum class PublishTrigger : std::uint8_t { kSettled, kRenamed, kAsked };

struct DraftActions {
  // Look at the files (completeness.h), then tell checked(generation, …).
  std::optional<std::uint64_t> check;
  // Start the publish job; it ends with finished(attempt, …).
  struct Start {
    std::uint64_t attempt = 0;
    bool resumed = false;  // the commit may have been sent before
  };
  std::optional<Start> publish;
  bool cancel = false;           // the running job's result is void: make it stop
  std::optional<Status> refuse;  // answer those who asked for a commit
  // It was interrupted just now: find the name of this file (0: none), write it down, log it.
  std::optional<DraftInode> interrupted;
  std::optional<SteadyTime> wake;  // ask decide() again then
};

class DraftMachine {
 public:
  // As mkdir makes it: `creator` is the process, where it can be told.
  DraftMachine(DraftTimes times, bool final_name, std::optional<ProcessId> creator, SteadyTime now)
      : times_(times), final_name_(final_name), creator_(creator), last_change_(now) {}

  // After a restart, right after the constructor.
  void interrupt(std::string why);                             // without action: it is known already
  void resume_commit();                                        // the commit of an earlier run may have been sent
  void resume_wanted(PublishTrigger trigger, SteadyTime now);  // a publish asked for had begun, and not committed
  void resume_failed(std::string why);

  // Writers. `who`: nullopt where the process cannot be told. See Draft for what each means.
  Status begin_change(std::optional<ProcessId> who, SteadyTime now);
  void end_change(SteadyTime now);
  Status open_writer(WriterHandle handle, DraftInode inode, std::optional<ProcessId> who, SteadyTime now);
  void wrote(std::optional<ProcessId> who, SteadyTime now);
  void wrote_back(SteadyTime now);  // the kernel did, for a process we know by its handle
  void writer_failed(DraftInode inode, const std::string& why);
  void flushed(WriterHandle handle, bool exiting);
  void released(WriterHandle handle, SteadyTime now);
  // `name`: of the program, for the message.
  void process_ended(ProcessId process, ProcessEnd end, const std::string& name, SteadyTime now);
  DraftInode inode_of(WriterHandle handle) const {
    auto found = handles_.find(handle);
    return found == handles_.end() ? 0 : found->second.inode;
  }
  int writers() const { return static_cast<int>(handles_.size()); }

  // The directory's name.
  // Brackets a change of the record (name, parent): as begin_change, but nobody wrote.
  Status hold();
  void unhold() { brackets_--; }
  void renamed(bool final_name, SteadyTime now);
  Status may_remove() const;                   // kBusy while it publishes
  void remove() { phase_ = Phase::kRemoved; }  // while held; afterwards nothing happens any more

  // A commit asked for. OK: it is under way, joined, or done already. kBusy, kInvalid as Drafts::commit.
  Status ask(SteadyTime now);

  // What the owner found or did.
  void checked(std::uint64_t generation, std::vector<std::string> missing);
  void describe_interruption(std::string why) { interrupted_ = std::move(why); }
  Status enter_commit(std::uint64_t attempt);  // kInterrupted: stop, nothing may be sent any more
  void not_committed(std::uint64_t attempt);   // of a resumed one: what was sent before is not in the log
  void leave_commit(std::uint64_t attempt);    // its id could not be made durable: nothing was sent
  // OK, or why not. In committing, kUnavailable and kInterrupted mean that nobody knows.
  void finished(std::uint64_t attempt, const Status& result, SteadyTime now);

  // Shutting down: what is done and complete need not wait for the settle time. give_up(): start nothing any more and
  // void what may still be voided.
  void hurry() { hurry_ = true; }
  void give_up();
  // A check or a job runs, or would be started by decide().
  bool under_way(SteadyTime now) const;

  DraftActions decide(SteadyTime now);

  DraftStatus status(SteadyTime now) const;
  // It is on its way to the log, or will be soon: its writer has ended, or it is being committed.
  bool about_to_commit() const;
  bool interrupted() const { return interrupted_.has_value(); }
  bool committing() const { return phase_ == Phase::kCommitting; }
  bool job_running() const { return job_; }
  // What a restart must know: a publish that somebody asked for is under way or wanted.
  std::optional<PublishTrigger> asked_for() const;
  const std::string& interruption() const { return *interrupted_; }
  const std::string& failure() const { return failure_; }

 private:
  enum class Phase : std::uint8_t { kOpen, kPublishing, kCommitting, kFailed, kCommitted, kRemoved };
  struct Handle {
    DraftInode inode = 0;
    bool flushed = false;        // at least once
    bool exiting = false;        // the last time
    std::uint64_t flush_at = 0;  // tick of the last time
  };

  bool idle() const { return handles_.empty() && brackets_ == 0; }
  bool by_creator_alone() const { return creator_ && !others_wrote_; }
  SteadyTime settle_due() const;
  Status give_way();  // frees the draft for a change, or kReadOnly
  void note_writer(std::optional<ProcessId> who);
  void touch(SteadyTime now);
  void interrupt_now(std::string why, DraftInode inode, std::uint64_t when);
  void void_attempt();
  void fail(const Status& why, SteadyTime now);
  SteadyTime next_try(SteadyTime now);
  void start(DraftActions& actions, PublishTrigger trigger);
  void decide_wanted(DraftActions& actions, SteadyTime now);
  void decide_settled(DraftActions& actions, SteadyTime now);
  std::string waiting_for(SteadyTime now) const;

  const DraftTimes times_;
  bool final_name_;
  const std::optional<ProcessId> creator_;
  bool creator_ended_ = false;
  SteadyTime ended_at_{};
  bool others_wrote_ = false;

  std::map<WriterHandle, Handle> handles_;
  int brackets_ = 0;
  SteadyTime last_change_;
  std::uint64_t generation_ = 1;  // of the contents
  std::optional<std::uint64_t> checking_;
  std::optional<std::uint64_t> checked_;  // the generation that missing_ is about
  std::vector<std::string> missing_;

  Phase phase_ = Phase::kOpen;
  PublishTrigger trigger_ = PublishTrigger::kSettled;  // what began the attempt
  bool firm_ = false;                                  // it does not give way to changes
  std::uint64_t attempt_ = 0;
  bool job_ = false;       // a publish job runs, be its result void or not
  bool cancel_ = false;    // tell it
  bool log_read_ = false;  // the job has seen the log, or has sent the commit: it can tell what is not in it
  bool want_rename_ = false, want_asked_ = false;
  std::uint64_t renamed_at_ = 0;  // tick
  SteadyTime not_before_{};       // of what a rename wants
  SteadyTime asked_until_{};
  std::optional<SteadyTime> retry_at_;
  int retries_ = 0;

  std::optional<std::string> interrupted_;
  std::optional<DraftInode> tell_interrupted_;
  std::optional<Status> refuse_;
  std::string failure_;
  std::uint64_t tick_ = 0;  // orders flushes and renames
  bool hurry_ = false, given_up_ = false;
};

}  // namespace weightfs
