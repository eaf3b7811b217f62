#include "store/drafts/draft_machine.h"

#include <fmt/format.h>

#include <algorithm>

namespace weightfs {
namespace {

std::string_view plural(std::uint64_t count) { return count == 1 ? "" : "s"; }

std::string seconds(Duration duration) { return fmt::format("{:g} s", static_cast<double>(duration.count()) / 1000); }

void sooner(std::optional<SteadyTime>& wake, SteadyTime at) { wake = wake ? std::min(*wake, at) : at; }

}  // namespace

// After a restart.

void DraftMachine::interrupt(std::string why) { interrupted_ = std::move(why); }

void DraftMachine::resume_commit() {
  phase_ = Phase::kCommitting;
  firm_ = true;
  attempt_++;
  retry_at_ = last_change_;
}

void DraftMachine::resume_wanted(PublishTrigger trigger, SteadyTime now) {
  (trigger == PublishTrigger::kAsked ? want_asked_ : want_rename_) = true;
  not_before_ = now;
  asked_until_ = now + times_.release_patience;
}

void DraftMachine::resume_failed(std::string why) {
  phase_ = Phase::kFailed;
  failure_ = std::move(why);
}

// Writers.

Status DraftMachine::give_way() {
  switch (phase_) {
    case Phase::kRemoved:
      return {Code::kNotFound, "the draft is removed"};
    case Phase::kCommitted:
      return {Code::kReadOnly, "committed versions do not change"};
    case Phase::kCommitting:
      return {Code::kReadOnly, "it is being published"};
    case Phase::kPublishing:
      if (firm_) return {Code::kReadOnly, "it is being published"};
      void_attempt();
      return {};
    case Phase::kOpen:
    case Phase::kFailed:
      return {};
  }
  return {};
}

void DraftMachine::void_attempt() {
  attempt_++;
  phase_ = Phase::kOpen;
  cancel_ = job_;
}

void DraftMachine::note_writer(std::optional<ProcessId> who) {
  if (!who || !creator_ || *who != *creator_) others_wrote_ = true;
}

void DraftMachine::touch(SteadyTime now) {
  last_change_ = std::max(last_change_, now);
  generation_++;
  if (phase_ == Phase::kFailed) phase_ = Phase::kOpen;
  failure_.clear();
  retry_at_.reset();
  retries_ = 0;
  if (want_rename_) not_before_ = last_change_ + times_.settle;
}

Status DraftMachine::begin_change(std::optional<ProcessId> who, SteadyTime now) {
  WFS_TRY(give_way());
  note_writer(who);
  touch(now);
  brackets_++;
  return {};
}

void DraftMachine::end_change(SteadyTime now) {
  WFS_CHECK(brackets_ > 0);
  brackets_--;
  touch(now);
}

Status DraftMachine::open_writer(WriterHandle handle, DraftInode inode, std::optional<ProcessId> who, SteadyTime now) {
  WFS_TRY(give_way());
  note_writer(who);
  touch(now);
  handles_[handle] = Handle{.inode = inode};
  return {};
}

void DraftMachine::wrote(std::optional<ProcessId> who, SteadyTime now) {
  note_writer(who);
  wrote_back(now);
}

void DraftMachine::wrote_back(SteadyTime now) {
  // With a handle open nothing is published. Were it otherwise, what the job has read may be half of this write.
  if (phase_ == Phase::kPublishing) void_attempt();
  if (phase_ == Phase::kOpen || phase_ == Phase::kFailed) touch(now);
}

void DraftMachine::writer_failed(DraftInode inode, const std::string& why) {
  if (phase_ == Phase::kOpen || phase_ == Phase::kFailed) {
    interrupt_now("a writer got an error: " + why, inode, ++tick_);
  }
}

void DraftMachine::flushed(WriterHandle handle, bool exiting) {
  auto found = handles_.find(handle);
  if (found == handles_.end()) return;
  found->second.flushed = true;
  found->second.exiting = exiting;
  found->second.flush_at = ++tick_;
}

void DraftMachine::released(WriterHandle handle, SteadyTime now) {
  auto found = handles_.find(handle);
  if (found == handles_.end()) return;
  Handle closed = found->second;
  handles_.erase(found);
  touch(now);
  if (!closed.flushed) {
    interrupt_now("its writer died while it was opening it", closed.inode, ++tick_);
  } else if (closed.exiting) {
    interrupt_now("its writer died, or ended without closing it", closed.inode, closed.flush_at);
  }
}

void DraftMachine::process_ended(ProcessId process, ProcessEnd end, const std::string& name, SteadyTime now) {
  if (creator_ && process == *creator_) {
    creator_ended_ = true;
    ended_at_ = now;
  }
  if (!end.badly() || (phase_ != Phase::kOpen && phase_ != Phase::kFailed)) return;
  auto how = end.how == ProcessEnd::How::kKilled ? fmt::format("was killed by signal {}", end.code)
                                                 : fmt::format("ended with status {}", end.code);
  interrupt_now(fmt::format("its writer {} (process {}) {}", name, process.pid, how), 0, 0);
}

// `when`: the tick of the flush that tells. A rename that came later still publishes what there is.
void DraftMachine::interrupt_now(std::string why, DraftInode inode, std::uint64_t when) {
  if (when > renamed_at_) want_rename_ = false;
  if (phase_ == Phase::kFailed && trigger_ == PublishTrigger::kSettled) retry_at_.reset();
  if (interrupted_) return;  // the first reason is the cause
  interrupted_ = std::move(why);
  tell_interrupted_ = inode;
}

// The directory's name.

Status DraftMachine::hold() {
  WFS_TRY(give_way());
  brackets_++;
  return {};
}

void DraftMachine::renamed(bool final_name, SteadyTime now) {
  bool was_final = std::exchange(final_name_, final_name);
  bool repaired = phase_ == Phase::kFailed && !interrupted_;
  if (phase_ == Phase::kFailed) phase_ = Phase::kOpen;
  failure_.clear();
  retry_at_.reset();
  retries_ = 0;
  if (!final_name) {
    want_rename_ = false;
    if (std::exchange(want_asked_, false)) refuse_ = Status(Code::kInvalid, "it was given a temporary name");
    return;
  }
  last_change_ = std::max(last_change_, now);
  if (was_final && !repaired && !want_rename_) return;
  want_rename_ = true;
  renamed_at_ = ++tick_;
  not_before_ = now;
}

Status DraftMachine::may_remove() const {
  if (phase_ == Phase::kPublishing || phase_ == Phase::kCommitting) return {Code::kBusy, "it is being published"};
  if (phase_ == Phase::kCommitted) return {Code::kReadOnly, "it is committed"};
  if (phase_ == Phase::kRemoved) return {Code::kNotFound, "it is removed"};
  return {};
}

// Publishing.

Status DraftMachine::ask(SteadyTime now) {
  switch (phase_) {
    case Phase::kRemoved:
      return {Code::kNotFound, "the draft is removed"};
    case Phase::kCommitted:
      return {};
    case Phase::kPublishing:
      firm_ = true;
      return {};
    case Phase::kCommitting:
      if (retry_at_) retry_at_ = now;
      return {};
    case Phase::kOpen:
    case Phase::kFailed:
      break;
  }
  if (given_up_) return {Code::kInterrupted, "shutting down; the draft is kept"};
  if (!final_name_) return {Code::kInvalid, "its name is a temporary one: rename it, that publishes it, too"};
  bool seem_closed = std::all_of(handles_.begin(), handles_.end(), [](auto& h) { return h.second.flushed; });
  if (!seem_closed) {
    return {Code::kBusy, fmt::format("{} file{} in it open for writing", handles_.size(), plural(handles_.size()))};
  }
  if (!want_asked_) asked_until_ = now + times_.release_patience;
  want_asked_ = true;
  return {};
}

void DraftMachine::checked(std::uint64_t generation, std::vector<std::string> missing) {
  if (checking_ == generation) checking_.reset();
  if (generation != generation_) return;  // changed meanwhile
  checked_ = generation;
  missing_ = std::move(missing);
}

Status DraftMachine::enter_commit(std::uint64_t attempt) {
  bool current = attempt == attempt_ && (phase_ == Phase::kPublishing || phase_ == Phase::kCommitting);
  if (!current)
    return {Code::kInterrupted, "given up before the commit: the draft was changed, or the store shuts down"};
  phase_ = Phase::kCommitting;
  log_read_ = true;
  return {};
}

void DraftMachine::not_committed(std::uint64_t attempt) {
  if (attempt != attempt_ || phase_ != Phase::kCommitting || log_read_) return;
  phase_ = Phase::kPublishing;
  firm_ = true;
}

void DraftMachine::leave_commit(std::uint64_t attempt) {
  if (attempt == attempt_ && phase_ == Phase::kCommitting) phase_ = Phase::kPublishing;
}

void DraftMachine::finished(std::uint64_t attempt, const Status& result, SteadyTime now) {
  job_ = cancel_ = false;
  if (result.is_ok()) {  // whatever we thought of the attempt: it is in the log
    phase_ = Phase::kCommitted;
    return;
  }
  if (attempt != attempt_ || phase_ == Phase::kRemoved) return;
  bool vague = result.code() == Code::kUnavailable || result.code() == Code::kInterrupted ||
               (!log_read_ && result.code() != Code::kExists);
  if (phase_ == Phase::kCommitting && vague) {
    retry_at_ = next_try(now);
  } else {
    fail(result, now);
  }
}

void DraftMachine::fail(const Status& why, SteadyTime now) {
  phase_ = Phase::kFailed;
  failure_ = why.message();
  // kBusy: gc took what it was about to name; the next try makes it again.
  bool may_pass = why.code() == Code::kUnavailable || why.code() == Code::kInterrupted || why.code() == Code::kBusy;
  bool by_itself = trigger_ == PublishTrigger::kRenamed || (trigger_ == PublishTrigger::kSettled && !interrupted_);
  if (may_pass && by_itself) retry_at_ = next_try(now);
}

SteadyTime DraftMachine::next_try(SteadyTime now) {
  auto wait = times_.retry_first * (1 << std::min(retries_++, 16));
  return now + std::min<Duration>(wait, times_.retry_most);
}

void DraftMachine::give_up() {
  given_up_ = true;
  if (phase_ == Phase::kPublishing) {
    // Kept for the next run, which goes on with what was asked for.
    if (firm_) (trigger_ == PublishTrigger::kRenamed ? want_rename_ : want_asked_) = true;
    void_attempt();
  }
  cancel_ = job_;
}

bool DraftMachine::under_way(SteadyTime now) const {
  auto copy = *this;
  auto next = copy.decide(now);
  return job_ || checking_ || next.publish || next.check;
}

std::optional<PublishTrigger> DraftMachine::asked_for() const {
  bool busy = phase_ == Phase::kPublishing && firm_;
  if (want_asked_ || (busy && trigger_ != PublishTrigger::kRenamed)) return PublishTrigger::kAsked;
  if (want_rename_ || busy) return PublishTrigger::kRenamed;
  return std::nullopt;
}

// Decisions.

void DraftMachine::start(DraftActions& actions, PublishTrigger trigger) {
  bool resumed = phase_ == Phase::kCommitting;
  if (!resumed) {
    phase_ = Phase::kPublishing;
    trigger_ = trigger;
    firm_ = trigger != PublishTrigger::kSettled;
    attempt_++;
  }
  want_rename_ = want_asked_ = false;
  retry_at_.reset();
  job_ = true;
  log_read_ = false;
  actions.publish = DraftActions::Start{attempt_, resumed};
}

DraftActions DraftMachine::decide(SteadyTime now) {
  DraftActions actions;
  actions.cancel = std::exchange(cancel_, false);
  actions.interrupted = std::exchange(tell_interrupted_, std::nullopt);
  actions.refuse = std::exchange(refuse_, std::nullopt);
  if (phase_ == Phase::kRemoved || phase_ == Phase::kCommitted || phase_ == Phase::kPublishing || given_up_) {
    return actions;
  }
  if (job_) return actions;  // of an attempt that is void: it shall end first
  if (retry_at_) {
    if (now >= *retry_at_) {
      start(actions, trigger_);
    } else {
      sooner(actions.wake, *retry_at_);
    }
  }
  if (phase_ == Phase::kCommitting || phase_ == Phase::kPublishing) return actions;
  if (want_asked_ || want_rename_) {
    decide_wanted(actions, now);
  } else if (phase_ == Phase::kOpen) {
    decide_settled(actions, now);
  }
  return actions;
}

void DraftMachine::decide_wanted(DraftActions& actions, SteadyTime now) {
  if (want_asked_) {
    if (idle()) return start(actions, want_rename_ ? PublishTrigger::kRenamed : PublishTrigger::kAsked);
    if (now >= asked_until_) {
      want_asked_ = false;
      actions.refuse = Status(
          Code::kBusy, fmt::format("{} file{} in it open for writing", handles_.size(), plural(handles_.size())));
    } else {
      sooner(actions.wake, asked_until_);
    }
  } else if (idle()) {
    if (now >= not_before_ || hurry_) return start(actions, PublishTrigger::kRenamed);
    sooner(actions.wake, not_before_);
  }
}

bool DraftMachine::about_to_commit() const {
  if (phase_ == Phase::kPublishing || phase_ == Phase::kCommitting) return true;
  if (phase_ != Phase::kOpen || !idle()) return false;
  if (want_asked_ || want_rename_) return true;
  bool incomplete = checked_ == generation_ && !missing_.empty();
  return final_name_ && !interrupted_ && !incomplete && by_creator_alone() && creator_ended_ && generation_ > 1;
}

SteadyTime DraftMachine::settle_due() const {
  if (by_creator_alone() && creator_ended_) return std::max(last_change_, ended_at_) + times_.settle;
  return last_change_ + times_.settle_live;
}

void DraftMachine::decide_settled(DraftActions& actions, SteadyTime now) {
  if (!final_name_ || interrupted_ || !idle()) return;
  bool hurry = hurry_ && by_creator_alone() && creator_ended_;
  auto due = hurry ? now : settle_due();
  auto check_at = hurry ? now : std::min({last_change_ + times_.settle, last_change_ + times_.settle_live, due});
  if (checked_ != generation_) {
    if (checking_ == generation_) return;  // checked() comes
    if (now < check_at) return sooner(actions.wake, check_at);
    checking_ = generation_;
    actions.check = generation_;
    return;
  }
  if (!missing_.empty()) return;  // until something changes
  if (now >= due) return start(actions, PublishTrigger::kSettled);
  sooner(actions.wake, due);
}

// What people read.

std::string DraftMachine::waiting_for(SteadyTime now) const {
  if (!handles_.empty()) {
    return fmt::format("{} file{} open for writing", handles_.size(), plural(handles_.size()));
  }
  if (want_asked_ || want_rename_) return "about to be published";
  if (!final_name_) return "its name is a temporary one: rename it, that publishes it";
  if (checked_ != generation_) return "being written";
  if (!missing_.empty()) {
    std::string text;
    for (std::size_t i = 0; i < missing_.size() && i < 3; i++) text += (i ? "; " : "") + missing_[i];
    if (missing_.size() > 3) text += fmt::format("; and {} more", missing_.size() - 3);
    return text;
  }
  auto left = std::chrono::ceil<std::chrono::seconds>(std::max(settle_due() - now, SteadyTime::duration::zero()));
  bool ended = by_creator_alone() && creator_ended_;
  return fmt::format("complete; published in {} s unless it changes ({} after {})", left.count(),
                     seconds(ended ? times_.settle : times_.settle_live),
                     ended ? "its writer's end" : "the last change");
}

DraftStatus DraftMachine::status(SteadyTime now) const {
  DraftStatus out;
  switch (phase_) {
    case Phase::kPublishing:
    case Phase::kCommitting:
      out.state = DraftState::kPublishing;
      return out;
    case Phase::kCommitted:
      out.state = DraftState::kCommitted;
      return out;
    case Phase::kFailed:
      out.state = DraftState::kFailed;
      out.reason = failure_ + (retry_at_ ? " (it is tried again)" : "");
      return out;
    case Phase::kOpen:
    case Phase::kRemoved:
      break;
  }
  out.state = interrupted_ && !want_asked_ && !want_rename_ ? DraftState::kInterrupted : DraftState::kOpen;
  out.reason = out.state == DraftState::kInterrupted ? *interrupted_ : waiting_for(now);
  return out;
}

std::string_view to_string(DraftState state) {
  switch (state) {
    case DraftState::kOpen:
      return "draft";
    case DraftState::kInterrupted:
      return "interrupted";
    case DraftState::kPublishing:
      return "publishing";
    case DraftState::kCommitted:
      return "committed";
    case DraftState::kFailed:
      return "failed";
  }
  return "";
}

std::string DraftStatus::text() const {
  std::string out(to_string(state));
  return reason.empty() ? out : out + ": " + reason;
}

}  // namespace weightfs
