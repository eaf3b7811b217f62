#include "fs/control.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "fs/mount.h"
#include "store/base/threads.h"

namespace weightfs {

using control::Json;

namespace {

constexpr std::size_t kMostConnections = 64;
constexpr std::chrono::seconds kSendPatience{10};  // the end of the mount waits for answers under way

Result<std::string> text(const Json& request, const char* field) {
  auto found = request.find(field);
  if (found == request.end() || !found->is_string()) return Status(Code::kInvalid, std::string("missing: ") + field);
  return found->get<std::string>();
}

// A name, which comes percent-encoded.
Result<std::string> name(const Json& request, const char* field) {
  auto encoded = WFS_TRY(text(request, field));
  return percent_decode(encoded).with(field);
}
template <typename T>
Result<T> parsed(const Json& request, const char* field) {
  auto bytes = WFS_TRY(name(request, field));
  return T::parse(bytes);
}

// MODEL/VERSION[/FILE…], where VERSION may be "latest".
struct Target {
  ModelName model;
  std::string version;
  std::string file;
};
Result<Target> parse_target(std::string_view path) {
  auto slash = path.find('/');
  if (slash == path.npos) return Status(Code::kInvalid, "'" + std::string(path) + "': expected MODEL/VERSION");
  auto model = WFS_TRY(ModelName::parse(path.substr(0, slash)));
  auto rest = path.substr(slash + 1);
  auto next = rest.find('/');
  return Target{model, std::string(rest.substr(0, next)),
                next == rest.npos ? std::string() : std::string(rest.substr(next + 1))};
}

Result<Target> target_in(const Json& request, const char* field) {
  auto path = WFS_TRY(name(request, field));
  return parse_target(path);
}

Result<std::vector<Target>> targets(const Json& request) {
  auto found = request.find("paths");
  if (found == request.end() || !found->is_array()) return Status(Code::kInvalid, "missing: paths");
  std::vector<Target> out;
  for (const auto& path : *found) {
    if (!path.is_string()) return Status(Code::kInvalid, "paths: not a string");
    auto decoded = WFS_TRY(percent_decode(path.get<std::string>()));
    auto target = WFS_TRY(parse_target(decoded));
    out.push_back(std::move(target));
  }
  return out;
}

// The files at `target`: all of a version, those below a directory, or one.
Result<std::vector<std::uint32_t>> files_at(const VersionPtr& version, const Target& target) {
  std::vector<std::uint32_t> files;
  if (target.file.empty()) return files;
  const auto& all = version->manifest().files;
  for (std::uint32_t i = 0; i < all.size(); i++) {
    const auto& path = all[i].path.str();
    bool here = path == target.file || path.starts_with(target.file + "/");
    if (here && all[i].kind == FileKind::kFile) files.push_back(i);
  }
  if (files.empty()) return Status(Code::kNotFound, "no such file: " + target.file);
  return files;
}

}  // namespace

Result<std::unique_ptr<ControlServer>> ControlServer::start(const std::string& path, Mount& mount, Store& store) {
  Fd dir;
  sockaddr_un address = WFS_TRY(control::address_of(path, &dir));
  Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.valid()) return from_errno(errno, "socket");
  // The cache has one owner, who is us: nobody else listens here.
  WFS_TRY(posix::unlink_if_there(path));
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return from_errno(errno, "bind " + path);
  }
  if (::chmod(path.c_str(), 0600) != 0) return from_errno(errno, "chmod " + path);  // the directory is 0700
  if (::listen(listener.get(), 64) != 0) return from_errno(errno, "listen " + path);
  Fd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return from_errno(errno, "eventfd");
  return std::unique_ptr<ControlServer>(new ControlServer(path, std::move(listener), std::move(wake), mount, store));
}

ControlServer::ControlServer(std::string path, Fd listener, Fd wake, Mount& mount, Store& store)
    : path_(std::move(path)),
      listener_(std::move(listener)),
      wake_(std::move(wake)),
      mount_(mount),
      store_(store),
      thread_(start_thread("fs-control", [this](const std::stop_token&) { listen(); })) {}

ControlServer::~ControlServer() {
  stopping_.store(true);
  eventfd_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof(one));
  thread_.join();
  reap(true);
  posix::unlink_if_there(path_).ignore("a socket that nobody listens at is replaced by the next daemon");
}

// Accepts, and watches every client for hanging up.
void ControlServer::listen() {
  while (!stopping_.load()) {
    std::vector<pollfd> fds = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    std::vector<Connection*> watched;
    {
      MutexLock lock(mutex_);
      for (auto& connection : connections_) {
        if (connection->done.load() || connection->cancel->cancelled()) continue;
        fds.push_back({connection->socket.get(), POLLRDHUP, 0});
        watched.push_back(connection.get());
      }
    }
    // The time limit is for clients that are done: nothing wakes us for them.
    ::poll(fds.data(), fds.size(), 500);
    for (std::size_t i = 0; i < watched.size(); i++) {
      if ((fds[i + 2].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) watched[i]->cancel->cancel();
    }
    reap(false);
    if ((fds[1].revents & POLLIN) != 0) accept_one();
  }
}

void ControlServer::accept_one() {
  Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket.valid()) return;
  if (auto limited = control::limit_sends(socket.get(), kSendPatience); !limited.is_ok()) {
    spdlog::warn("control: {}", limited.message());
    return;
  }
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  MutexLock lock(mutex_);
  if (connections_.size() >= kMostConnections) return;  // hangs up
  auto* raw = connection.get();
  connections_.push_back(std::move(connection));
  raw->thread = start_thread("fs-command", [this, raw](const std::stop_token&) {
    serve(*raw);
    ::shutdown(raw->socket.get(), SHUT_RDWR);
    raw->done.store(true);
  });
}

void ControlServer::reap(bool all) {
  std::list<std::unique_ptr<Connection>> ended;  // joined without the lock
  {
    MutexLock lock(mutex_);
    for (auto at = connections_.begin(); at != connections_.end();) {
      auto next = std::next(at);
      if (all) {
        (*at)->cancel->cancel();
        ::shutdown((*at)->socket.get(), SHUT_RD);
      }
      if (all || (*at)->done.load()) ended.splice(ended.end(), connections_, at);
      at = next;
    }
  }
}

void ControlServer::serve(Connection& connection) {
  control::LineReader lines(connection.socket.get());
  auto line = lines.next();
  if (!line.is_ok()) return;
  auto request = Json::parse(*line, nullptr, false);
  Result<Json> result = Status(Code::kInvalid, "not a request");
  try {
    if (request.is_object()) result = answer(connection, request);
  } catch (const std::exception& error) {
    result = Status(Code::kInvalid, error.what());
  }
  Json last = result.is_ok() ? *result : control::failure(result.status());
  if (result.is_ok()) last["ok"] = true;
  control::send_line(connection.socket.get(), last).ignore("the client has gone");
}

Result<Json> ControlServer::answer(Connection& connection, const Json& request) {
  auto op = WFS_TRY(text(request, "op"));
  if (op == "status") return status();
  if (op == "stats") {
    Json counters;
    for (const auto& [key, value] : mount_.counters()) counters[key] = value;
    return counters;
  }
  if (op == "commit") return commit(connection, request);
  if (op == "publish") return publish(connection, request);
  if (op == "get") return get(connection, request);
  if (op == "warm") return warm(connection, request);
  if (op == "pin") return pin(connection, request, true);
  if (op == "unpin") return pin(connection, request, false);
  if (op == "wait") return wait(connection, request);
  if (op == "log") return log(connection, request);
  if (op == "models") {
    Json models = Json::array();
    auto known = WFS_TRY(store_.refresh_models({.cancel = connection.cancel}));
    for (const auto& model : known) {
      models.push_back(percent_encode(model.str()));
    }
    return Json{{"models", std::move(models)}};
  }
  if (op == "umount") return umount(request);
  return Status(Code::kUnsupported, "the daemon does not know '" + op + "': is it older than this command?");
}

namespace {

Progress progress_to(int socket) {
  return [socket](std::uint64_t done, std::uint64_t total) {
    control::send_line_if_read(socket, {{"progress", {{"done", done}, {"total", total}}}});
  };
}

}  // namespace

Result<Json> ControlServer::status() {
  auto usage = store_.cache().usage();
  Json drafts = Json::array();
  for (const auto& draft : store_.drafts().list()) {
    auto state = draft->status();
    drafts.push_back({{"version", percent_encode(draft->model().str() + "/" + draft->name())},
                      {"state", to_string(state.state)},
                      {"text", state.text()},
                      {"writers", draft->writers()}});
  }
  return Json{{"mountpoint", mount_.mountpoint()},
              {"bucket", store_.bucket().url()},
              {"pid", ::getpid()},
              {"weightfs", WEIGHTFS_VERSION},
              {"read_only", store_.options().read_only},
              {"models", store_.models().size()},
              {"passthrough", mount_.dispatch().reads().passthrough().state()},
              {"cache_dir", store_.cache().dir()},
              {"cache",
               {{"quota", usage.quota},
                {"flat_bytes", usage.flat_bytes},
                {"draft_bytes", usage.draft_bytes},
                {"blob_bytes", usage.blob_bytes},
                {"disk_free", usage.disk_free}}},
              {"drafts", std::move(drafts)}};
}

Result<Json> ControlServer::commit(Connection& connection, const Json& request) {
  auto target = WFS_TRY(target_in(request, "version"));
  if (!target.file.empty()) return Status(Code::kInvalid, "a draft is committed by its directory, MODEL/VERSION");
  auto draft = store_.drafts().find(target.model, target.version);
  auto what = target.model.str() + "/" + target.version;
  if (!draft || draft->status().state == DraftState::kCommitted) {
    auto found = store_.find_version(target.model, target.version, {.cancel = connection.cancel});
    if (found.code() == Code::kNotFound) return Status(Code::kNotFound, what + ": no such draft; mkdir makes one");
    auto version = WFS_TRY(std::move(found).with(what));
    return Json{{"version", percent_encode(what)}, {"number", version->node().number}, {"already", true}};
  }
  struct Wait {
    Mutex mutex;
    CondVar changed;
    std::optional<Result<PublishResult>> result GUARDED_BY(mutex);
  };
  auto wait = std::make_shared<Wait>();
  store_.drafts().commit(draft, [wait](Result<PublishResult> result) {
    {
      MutexLock lock(wait->mutex);
      wait->result.emplace(std::move(result));
    }
    wait->changed.notify_all();
  });
  MutexLock lock(wait->mutex);
  while (!wait->result) {
    // A client that hangs up stops waiting, not the commit.
    if (connection.cancel->cancelled()) return Status(Code::kInterrupted, what + ": the commit goes on");
    wait->changed.wait_until(wait->mutex, std::chrono::steady_clock::now() + std::chrono::milliseconds(200));
  }
  auto published = WFS_TRY(std::move(*wait->result).with(what));
  return control::to_json(published);
}

Result<Json> ControlServer::publish(Connection& connection, const Json& request) {
  auto source = WFS_TRY(text(request, "source"));
  auto version = WFS_TRY(parsed<VersionRef>(request, "version"));
  ParentChoice parent;
  parent.none = request.value("no_parent", false);
  if (request.contains("parent")) parent.named = WFS_TRY(parsed<VersionRef>(request, "parent"));
  CallOptions options{.deadline = std::chrono::hours(24), .cancel = connection.cancel};
  auto published = WFS_TRY(store_.publish(source, version, parent, progress_to(connection.socket.get()), options));
  return control::to_json(published);
}

Result<Json> ControlServer::get(Connection& connection, const Json& request) {
  auto target = WFS_TRY(target_in(request, "version"));
  auto dest = WFS_TRY(text(request, "dest"));
  CallOptions options{.deadline = std::chrono::hours(24), .cancel = connection.cancel};
  auto version = WFS_TRY(store_.find_version(target.model, target.version, options));
  WFS_TRY(store_.get(version, dest, progress_to(connection.socket.get()), options));
  return Json{{"version", percent_encode(target.model.str() + "/" + version->record().name.str())},
              {"plain_bytes", version->record().plain_bytes}};
}

Result<Json> ControlServer::warm(Connection& connection, const Json& request) {
  CallOptions options{.deadline = std::chrono::hours(24), .cancel = connection.cancel};
  std::uint64_t bytes = 0;
  auto wanted = WFS_TRY(targets(request));
  for (const auto& target : wanted) {
    auto version = WFS_TRY(store_.find_version(target.model, target.version, options));
    auto files = WFS_TRY(files_at(version, target));
    WFS_TRY(store_.warm(version, files, progress_to(connection.socket.get()), options));
    for (auto file : files) bytes += version->manifest().files[file].size;
    if (files.empty()) bytes += version->record().plain_bytes;
  }
  return Json{{"plain_bytes", bytes}};
}

Result<Json> ControlServer::pin(Connection& connection, const Json& request, bool pinned) {
  Json names = Json::array();
  auto wanted = WFS_TRY(targets(request));
  for (const auto& target : wanted) {
    if (!target.file.empty()) return Status(Code::kInvalid, "whole versions are pinned: MODEL/VERSION");
    auto version = WFS_TRY(store_.find_version(target.model, target.version, {.cancel = connection.cancel}));
    WFS_TRY(store_.set_pinned(version->node(), pinned));
    names.push_back(percent_encode(target.model.str() + "/" + version->record().name.str()));
  }
  return Json{{"versions", std::move(names)}};
}

Result<Json> ControlServer::wait(Connection& connection, const Json& request) {
  auto model = WFS_TRY(parsed<ModelName>(request, "model"));
  std::optional<VersionName> version, newer_than;
  if (request.contains("version")) version = WFS_TRY(parsed<VersionName>(request, "version"));
  if (request.contains("newer_than")) newer_than = WFS_TRY(parsed<VersionName>(request, "newer_than"));
  auto timeout = request.value("timeout", 0.0);  // 0: for ever
  auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(static_cast<std::int64_t>(timeout * 1000));
  auto found = [&](const ModelState& state) -> const VersionRecord* {
    if (version) return state.live(*version);
    const auto* newest = state.latest();
    if (newest == nullptr || !newer_than) return newest;
    const auto* old = state.live(*newer_than);
    return old != nullptr && newest->number > old->number ? newest : nullptr;
  };
  auto asked = SteadyTime{};
  while (true) {
    auto seen = mount_.dispatch().follower().changes();
    auto state = store_.model(model);
    if (const auto* record = state ? found(*state) : nullptr) {
      return Json{{"version", percent_encode(model.str() + "/" + record->name.str())}, {"number", record->number}};
    }
    auto now = std::chrono::steady_clock::now();
    if (connection.cancel->cancelled()) return Status(Code::kInterrupted, "interrupted");
    if (timeout > 0 && now >= end) return Status(Code::kUnavailable, model.str() + ": not there within the time given");
    // A model that nobody uses is not followed: ask.
    if (now - asked >= store_.options().poll) {
      asked = now;
      auto refreshed = store_.refresh_model(model, {.deadline = std::chrono::seconds(30), .cancel = connection.cancel});
      if (!refreshed.is_ok() && refreshed.code() == Code::kPermission) return std::move(refreshed).status();
      continue;
    }
    mount_.dispatch().follower().wait_for_change(seen, now + std::chrono::milliseconds(200));
  }
}

Result<Json> ControlServer::log(Connection& connection, const Json& request) {
  auto model = WFS_TRY(parsed<ModelName>(request, "model"));
  auto state = WFS_TRY(store_.refresh_model(model, {.cancel = connection.cancel}));
  Json removed = Json::array();  // as long as the log remembers them
  for (const auto& [number, version] : state->versions) {
    if (state->live(version.name) == &version) continue;
    removed.push_back({{"name", percent_encode(version.name.str())}, {"number", number}});
  }
  return Json{{"versions", control::to_json(*state)}, {"removed", std::move(removed)}};
}

Result<Json> ControlServer::umount(const Json& request) {
  auto report = WFS_TRY(mount_.unmount_if_idle(request.value("lazy", false)));
  return Json{{"published", report.published}, {"kept", report.kept}};
}

}  // namespace weightfs
