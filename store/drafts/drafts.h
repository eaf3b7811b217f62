// Makes the drafts of a cache: what they need from the store, and what they give to the one who publishes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "store/base/clock.h"
#include "store/bucket/bucket.h"
#include "store/draft.h"
#include "store/drafts/writers.h"
#include "store/uploads.h"

namespace weightfs {

// A draft to be published. Nobody writes to its files meanwhile, or what is made of them is not committed.
struct DraftSource {
  std::string id;    // of the draft
  std::string root;  // the directory with its files
  ModelName model;
  std::string name;  // a legal VersionName
  ParentChoice parent;
  std::string spool_dir;  // for packs on their way; kept for the next try
  // An earlier try, maybe of an earlier process, may have sent the commit: the log is to be asked for commit_id first.
  // When it has it the files may be in the cache already, in part or all.
  bool resumed = false;
  // To be called when the log has been read and does not have commit_id: from then on errors are what they say.
  std::function<void()> not_committed;
  // To be called right before the first request that can make the version exist. It makes commit_id durable. False:
  // send nothing, return kInterrupted. After true the draft cannot be changed until the outcome is known.
  std::function<bool()> before_commit;
  std::shared_ptr<DraftUploads> uploads;  // what was made of it behind its writers; may be null
};

// What uploads behind the writers of a draft ask about it.
struct DraftWants {
  std::string name;
  ParentChoice parent;
  bool wait = false;  // an older draft of the model is about to be committed
};

// Publishes; the files stay in the draft (see DraftsOptions::take_over). On a thread of the drafts, which may take as
// long as it needs as long as it makes progress, and returns soon when options.cancel is cancelled. The same commit_id
// comes again after a try that failed.
//   OK              it is in the log and known to the store
//   kUnavailable    out of reach. After before_commit: nobody knows the outcome; it is tried again, `resumed`
//   kInterrupted    cancelled. After before_commit: as kUnavailable
//   any other code  it is not in the log under this commit_id, and will not come there by what has been sent. Of a
//                   resumed one that is believed only after not_committed or before_commit, or with kExists
using PublishDraft = std::function<Result<PublishResult>(const DraftSource& source, const std::string& commit_id,
                                                         const Progress& progress, const CallOptions& options)>;

struct DraftsOptions {
  Cache* cache = nullptr;  // outlives the drafts, as do all that the functions refer to
  Clock* clock = nullptr;  // null: the system's
  Duration settle = std::chrono::seconds(1);
  Duration settle_live = std::chrono::seconds(30);
  bool read_only = false;  // drafts of earlier runs are listed, nothing is made or published
  // A daemon: publish by the settle rules, go on with commits of an earlier run. Otherwise only what is asked for.
  bool automatic = true;
  PublishDraft publish;
  // Begins uploads behind the writers of a draft; empty: none, everything is sent at the commit. `wants` may be called
  // for as long as the uploads live.
  std::function<std::shared_ptr<DraftUploads>(const DraftSource& source, std::function<DraftWants()> wants)> uploads;
  bool close_waits = true;  // close() of a writable file waits for its upload
  // Moves the files of a committed draft into the cache, before its folder is removed. On the publishing thread, no
  // lock held, when the draft's state is kCommitted already: so nobody sees a folder with half of them. May be empty.
  std::function<void(const std::string& root, const PublishResult& result)> take_over;
  // A live version has that name, as known now. Called with no lock held; looks at memory only, as the others do.
  std::function<bool(const ModelName&, std::string_view)> is_live;
  std::function<std::optional<VersionRef>(const ModelName&)> newest;  // what a draft builds on; may be empty
  std::function<void(const std::string& id)> changed;                 // committed, failed, interrupted, or gone
  std::size_t publishers = 2;                                         // publishes at a time

  // For tests.
  std::function<Result<std::unique_ptr<ProcessWatcher>>(ProcessWatcher::Ended)> watcher;  // empty: the system's
  bool timer = true;  // false: nothing happens by time alone, but by DraftManager::run_due
};

// Opens the drafts that the cache has records of and starts the threads. See Drafts and store/drafts/manager.h.
Result<std::unique_ptr<Drafts>> make_drafts(DraftsOptions options);

}  // namespace weightfs
