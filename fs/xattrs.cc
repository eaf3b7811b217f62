#include "fs/xattrs.h"

#include <dirent.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <thread>

namespace weightfs {
namespace {

constexpr std::string_view kOurs = "user.weightfs.";
constexpr std::string_view kUser = "user.";

struct Sizes {
  std::uint64_t bytes = 0, allocated = 0;
};

// Of everything below `directory`, which this closes. What cannot be read counts nothing.
void add_up(Fd directory, Sizes& sizes) {
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(directory.get()), ::closedir);
  if (!dir) return;
  int fd = directory.release();
  while (const auto* entry = ::readdir(dir.get())) {
    std::string_view name = entry->d_name;
    struct stat st;
    if (name == "." || name == ".." || ::fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (S_ISREG(st.st_mode)) {
      sizes.bytes += static_cast<std::uint64_t>(st.st_size);
      sizes.allocated += static_cast<std::uint64_t>(st.st_blocks) * 512;
    } else if (S_ISDIR(st.st_mode)) {
      Fd below(::openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (below.valid()) add_up(std::move(below), sizes);
    }
  }
}

Sizes sizes_of(const DraftNode& node) {
  Sizes sizes;
  struct stat st;
  if (::fstat(node.path.get(), &st) != 0) return sizes;
  if (S_ISDIR(st.st_mode)) {
    Fd directory(::openat(node.path.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory.valid()) add_up(std::move(directory), sizes);
  } else {
    sizes = {static_cast<std::uint64_t>(st.st_size), static_cast<std::uint64_t>(st.st_blocks) * 512};
  }
  return sizes;
}

bool is_top(const DraftNode& node) { return node.relative_path().empty(); }

}  // namespace

OrErrno<std::string> Xattrs::of_draft(const DraftNode& node, std::string_view field) {
  const auto& draft = *node.draft;
  if (field == "state") return draft.status().text();
  if (field == "version") return draft.model().str() + "/" + draft.name();
  if (field == "parent") {
    auto parent = draft.parent();
    if (!parent) return answer::kNoData;
    return parent->str();
  }
  if (field == "bytes") return std::to_string(sizes_of(node).bytes);
  if (field == "cached") return std::to_string(sizes_of(node).allocated);
  return answer::kNoData;
}

OrErrno<std::string> Xattrs::of_version(const VersionNode& node, std::string_view field) {
  if (field == "state") return std::string("committed");
  if (field == "version") return node.ref.model.str() + "/" + node.name.str();
  bool top = node.file == VersionTree::kTop;
  if (field == "cached") {
    return std::to_string(top ? store_.cache().cached_bytes(node.ref.model.str(), node.ref.number)
                              : store_.cached_bytes(node.ref, node.file));
  }
  if (field == "bytes" && !top) return std::to_string(node.tree()->entry(node.file).size);
  auto state = store_.model(node.ref.model);
  const auto* record = state ? state->version(node.ref.number) : nullptr;
  if (record == nullptr) return answer::kNoData;
  if (field == "bytes") return std::to_string(record->plain_bytes);
  if (field == "parent" && record->parent && record->parent_version) {
    return record->parent->model.str() + "/" + record->parent_version->str();
  }
  return answer::kNoData;
}

OrErrno<std::string> Xattrs::ours(const NodePtr& node, std::string_view field) {
  if (field == "control" && !control_.empty()) return control_;
  if (field == "bucket") return store_.bucket().url();
  if (node->kind == NodeKind::kVersion) return of_version(static_cast<VersionNode&>(*node), field);
  if (node->kind == NodeKind::kDraft) {
    auto& draft = static_cast<DraftNode&>(*node);
    auto version = tree_.successor(draft);
    return version ? of_version(*version, field) : of_draft(draft, field);
  }
  return answer::kNoData;
}

void Xattrs::get(Request request, const NodePtr& node, const std::string& name, std::size_t size) {
  if (name.starts_with(kOurs)) {
    auto value = ours(node, std::string_view(name).substr(kOurs.size()));
    if (auto* error = std::get_if<Errno>(&value)) return request.fail(*error);
    return request.xattr(std::get<std::string>(value), size);
  }
  // The kernel asks for security.capability before each write.
  if (node->kind != NodeKind::kDraft || !name.starts_with(kUser)) {
    return request.fail(name.starts_with("system.") ? answer::kUnsupported : answer::kNoData);
  }
  auto path = proc_path(static_cast<DraftNode&>(*node).path.get());
  std::string value(size, '\0');
  ssize_t length = ::getxattr(path.c_str(), name.c_str(), size == 0 ? nullptr : value.data(), size);
  if (length < 0) return request.fail(Errno::last());
  if (size == 0) value.resize(static_cast<std::size_t>(length));
  request.xattr(std::string_view(value).substr(0, static_cast<std::size_t>(length)), size);
}

void Xattrs::list(Request request, const NodePtr& node, std::size_t size) {
  if (node->kind != NodeKind::kDraft) return request.xattr("", size);
  auto path = proc_path(static_cast<DraftNode&>(*node).path.get());
  std::string names(65536, '\0');  // the kernel's own limit
  ssize_t length = ::listxattr(path.c_str(), names.data(), names.size());
  if (length < 0) return request.fail(Errno::last());
  std::string shown;
  for (std::size_t at = 0; at < static_cast<std::size_t>(length);) {
    std::string_view name = names.c_str() + at;
    at += name.size() + 1;
    if (name.starts_with(kUser) && !name.starts_with(kOurs)) shown.append(name).push_back('\0');
  }
  request.xattr(shown, size);
}

void Xattrs::set(Request request, const NodePtr& node, const std::string& name, const std::string& value, int flags) {
  if (name == "user.weightfs.commit") return commit(std::move(request), node);
  if (node->kind == NodeKind::kVersion) return request.fail(answer::kReadOnly);
  if (node->kind != NodeKind::kDraft) return request.fail(answer::kNotPermitted);
  auto& draft = static_cast<DraftNode&>(*node);
  if (name == "user.weightfs.parent") return set_parent(std::move(request), draft, value);
  if (name.starts_with(kOurs)) return request.fail(answer::kNotPermitted);
  if (!name.starts_with(kUser)) return request.fail(answer::kUnsupported);  // cp -a and rsync -A go on without
  auto path = proc_path(draft.path.get());
  Change change(*draft.draft, request.caller().tid);
  if (!change.allowed()) return request.fail(change.status(), draft.full_path());
  if (::setxattr(path.c_str(), name.c_str(), value.data(), value.size(), flags) != 0) {
    return request.fail(Errno::last());
  }
  change.end();
  request.ok();
}

void Xattrs::set_parent(Request request, const DraftNode& node, const std::string& value) {
  if (!is_top(node)) return request.fail(answer::kInvalid);
  ParentChoice choice;
  if (value == "-") {
    choice.none = true;
  } else if (!value.empty()) {
    auto parent = VersionRef::parse(value);
    if (!parent.is_ok()) return request.fail(parent.status(), node.full_path());
    choice.named = *parent;
  }
  auto set = node.draft->set_parent(choice);
  if (!set.is_ok()) return request.fail(set, node.full_path());
  request.ok();
}

void Xattrs::commit(Request request, const NodePtr& node) {
  if (node->kind == NodeKind::kVersion) return request.ok();  // it is committed
  if (node->kind != NodeKind::kDraft) return request.fail(answer::kNotPermitted);
  auto& draft = static_cast<DraftNode&>(*node);
  if (draft.draft->status().state == DraftState::kCommitted) return request.ok();
  if (!is_top(draft)) return request.fail(answer::kInvalid);
  // Starts it; user.weightfs.state tells how it went. What is wrong from the start is known on this thread.
  auto what = draft.full_path();
  auto early = std::make_shared<std::optional<Status>>();  // this thread's alone
  store_.drafts().commit(draft.draft,
                         [early, what, caller = std::this_thread::get_id()](const Result<PublishResult>& result) {
                           if (result.is_ok()) return;
                           if (std::this_thread::get_id() == caller) {
                             *early = result.status();
                           } else {
                             spdlog::error("commit {}: {}", what, result.status().message());
                           }
                         });
  if (*early) return request.fail(**early, what);
  request.ok();
}

void Xattrs::remove(Request request, const NodePtr& node, const std::string& name) {
  if (node->kind == NodeKind::kVersion) return request.fail(answer::kReadOnly);
  if (node->kind != NodeKind::kDraft) return request.fail(answer::kNotPermitted);
  auto& draft = static_cast<DraftNode&>(*node);
  if (name == "user.weightfs.parent") return set_parent(std::move(request), draft, "");
  if (!name.starts_with(kUser) || name.starts_with(kOurs)) {
    return request.fail(name.starts_with("system.") ? answer::kUnsupported : answer::kNoData);
  }
  Change change(*draft.draft, request.caller().tid);
  if (!change.allowed()) return request.fail(change.status(), draft.full_path());
  if (::removexattr(proc_path(draft.path.get()).c_str(), name.c_str()) != 0) return request.fail(Errno::last());
  change.end();
  request.ok();
}

}  // namespace weightfs
