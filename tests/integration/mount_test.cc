// The filesystem over a real mount, on a store in memory.
#include <signal.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/time.h>

#include <future>

#include "fs/control_client.h"
#include "tests/integration/mount_fixture.h"

namespace weightfs {
namespace {

// --- reading

TEST_F(MountTest, AVersionIsADirectoryOfItsFiles) {
  auto weights = pattern(3 << 20 | 12345);
  store_.publish_files("m", "v1",
                       {{"config.json", "{}"},
                        {"model.safetensors", weights},
                        {"run.sh", "#!/bin/sh\n", FileKind::kFile, 0755},
                        {"sub/deep/x", "deep"},
                        {"empty", "", FileKind::kDirectory},
                        {"link", "", FileKind::kSymlink, 0777, "sub/deep/x"}});
  start();
  EXPECT_EQ(names(at("")), (std::vector<std::string>{"m"}));
  EXPECT_EQ(names(at("m")), (std::vector<std::string>{"latest", "v1"}));
  EXPECT_EQ(names(at("m/v1")),
            (std::vector<std::string>{"config.json", "empty", "link", "model.safetensors", "run.sh", "sub"}));
  EXPECT_EQ(read_all(at("m/v1/model.safetensors")), weights);
  EXPECT_EQ(read_all(at("m/latest/link")), "deep");
  EXPECT_EQ(names(at("m/v1/empty")), std::vector<std::string>{});
  struct stat st;
  ASSERT_EQ(::stat(at("m/v1/model.safetensors").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode, S_IFREG | 0444u);
  EXPECT_EQ(st.st_size, static_cast<off_t>(weights.size()));
  EXPECT_EQ(st.st_mtim.tv_sec, 1'764'595'745);
  EXPECT_EQ(st.st_mtim.tv_nsec, 123'456'789);
  EXPECT_EQ(st.st_uid, ::geteuid());
  ASSERT_EQ(::stat(at("m/v1/run.sh").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode, S_IFREG | 0555u);
  ASSERT_EQ(::stat(at("m/v1/sub").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode, S_IFDIR | 0555u);
  EXPECT_EQ(st.st_nlink, 3u);
  EXPECT_ERRNO(::stat(at("m/v1/none").c_str(), &st), ENOENT);
  EXPECT_ERRNO(::stat(at("m/v2").c_str(), &st), ENOENT);
  EXPECT_ERRNO(::stat(at("none").c_str(), &st), ENOENT);
}

TEST_F(MountTest, ABigListingIsCompleteAndHasEachNameOnce) {
  std::vector<FakeFile> files;
  for (int i = 0; i < 3000; i++) files.push_back({"file-" + std::to_string(i), "x"});
  store_.publish_files("m", "v1", files);
  start();
  auto listed = names(at("m/v1"));
  EXPECT_EQ(listed.size(), 3000u);
  EXPECT_EQ(std::unique(listed.begin(), listed.end()), listed.end());
  EXPECT_EQ(run_shell("ls -l | wc -l", nullptr, at("m/v1")), "3001\n");
}

TEST_F(MountTest, WhatIsNotHereYetIsFetchedAndNoWorkerWaits) {
  store_.set_warm(false);
  auto weights = pattern(1 << 20);
  store_.publish_files("m", "v1", {{"w", weights}, {"x", "other"}});
  start();
  store_.hold_reads(true);
  std::vector<std::future<std::string>> readers;
  for (int i = 0; i < 40; i++) {  // more than there are workers
    readers.push_back(std::async(std::launch::async, [&] { return read_all(at("m/v1/w")); }));
  }
  EXPECT_TRUE(eventually([&] { return store_.held_reads() > 0; }));
  EXPECT_EQ(names(at("m/v1")).size(), 2u);  // the mount answers meanwhile
  struct stat st;
  EXPECT_EQ(::stat(at("m/v1/x").c_str(), &st), 0);
  store_.hold_reads(false);
  for (auto& reader : readers) EXPECT_EQ(reader.get(), weights);
}

TEST_F(MountTest, PagesAreMappedPrivatelyAndShared) {
  auto weights = pattern(2 << 20);
  store_.publish_files("m", "v1", {{"w", weights}});
  start();
  auto path = at("m/v1/w");
  auto pid = child([&] {
    for (int flags : {MAP_PRIVATE, MAP_SHARED}) {
      int fd = ::open(path.c_str(), O_RDONLY);
      void* map = ::mmap(nullptr, weights.size(), PROT_READ, flags, fd, 0);
      if (map == MAP_FAILED) return 2;
      ::close(fd);
      if (std::memcmp(map, weights.data(), weights.size()) != 0) return 1;
      ::munmap(map, weights.size());
    }
    return 0;
  });
  EXPECT_EQ(wait_for(pid), 0);
}

TEST_F(MountTest, DirectReadsOfAnyAlignmentAreExact) {
  auto weights = pattern((1 << 20) + 777);
  store_.publish_files("m", "v1", {{"w", weights}});
  start();
  Fd fd(::open(at("m/v1/w").c_str(), O_RDONLY | O_DIRECT));
  ASSERT_TRUE(fd.valid());
  std::string piece(516 << 10, '\0');
  ASSERT_EQ(::pread(fd.get(), piece.data(), piece.size(), 4099), static_cast<ssize_t>(piece.size()));
  EXPECT_EQ(piece, weights.substr(4099, piece.size()));
  EXPECT_EQ(::pread(fd.get(), piece.data(), piece.size(), static_cast<off_t>(weights.size()) - 10), 10);
  void* map = ::mmap(nullptr, weights.size(), PROT_READ, MAP_PRIVATE, fd.get(), 0);
  EXPECT_NE(map, MAP_FAILED);
  ::munmap(map, weights.size());
}

TEST_F(MountTest, NothingInAVersionCanBeChanged) {
  store_.publish_files("m", "v1", {{"w", "bytes"}, {"d/x", "y"}});
  start();
  EXPECT_ERRNO(::open(at("m/v1/w").c_str(), O_WRONLY), EROFS);
  EXPECT_ERRNO(::open(at("m/v1/w").c_str(), O_RDWR), EROFS);
  EXPECT_ERRNO(::open(at("m/v1/w").c_str(), O_RDONLY | O_TRUNC), EROFS);
  EXPECT_ERRNO(::open(at("m/v1/new").c_str(), O_WRONLY | O_CREAT, 0644), EROFS);
  EXPECT_ERRNO(::truncate(at("m/v1/w").c_str(), 0), EROFS);
  EXPECT_ERRNO(::unlink(at("m/v1/w").c_str()), EROFS);
  EXPECT_ERRNO(::rmdir(at("m/v1/d").c_str()), EROFS);
  EXPECT_ERRNO(::rmdir(at("m/v1").c_str()), EROFS);
  EXPECT_ERRNO(::mkdir(at("m/v1/n").c_str(), 0755), EROFS);
  EXPECT_ERRNO(::rename(at("m/v1/w").c_str(), at("m/v1/w2").c_str()), EROFS);
  EXPECT_ERRNO(::rename(at("m/v1").c_str(), at("m/v2").c_str()), EROFS);
  EXPECT_ERRNO(::symlink("x", at("m/v1/l").c_str()), EROFS);
  EXPECT_ERRNO(::link(at("m/v1/w").c_str(), at("m/v1/l").c_str()), EROFS);
  EXPECT_ERRNO(::chmod(at("m/v1/w").c_str(), 0600), EROFS);
  EXPECT_ERRNO(::chown(at("m/v1/w").c_str(), 1, 1), EROFS);
  EXPECT_ERRNO(::utimensat(AT_FDCWD, at("m/v1/w").c_str(), nullptr, 0), EROFS);
  EXPECT_ERRNO(::setxattr(at("m/v1/w").c_str(), "user.x", "1", 1, 0), EROFS);
  EXPECT_ERRNO(::access(at("m/v1/w").c_str(), W_OK), EROFS);
  EXPECT_ERRNO(::unlink(at("m/latest").c_str()), EROFS);
  EXPECT_EQ(read_all(at("m/v1/w")), "bytes");
}

TEST_F(MountTest, ModelsAndTheRootHoldDirectoriesOnly) {
  store_.publish_files("m", "v1", {{"w", "bytes"}});
  start();
  EXPECT_ERRNO(::open(at("file").c_str(), O_WRONLY | O_CREAT, 0644), EPERM);
  EXPECT_ERRNO(::open(at("m/file").c_str(), O_WRONLY | O_CREAT, 0644), EPERM);
  EXPECT_ERRNO(::symlink("v1", at("m/stable").c_str()), EPERM);
  EXPECT_ERRNO(::mkdir(at("m/v1").c_str(), 0755), EEXIST);
  EXPECT_ERRNO(::rename(at("m").c_str(), at("n").c_str()), EPERM);
  EXPECT_ERRNO(::rmdir(at("m").c_str()), ENOTEMPTY);
  ASSERT_EQ(::mkdir(at("n").c_str(), 0755), 0);
  EXPECT_ERRNO(::mkdir(at("n/latest").c_str(), 0755), EINVAL);
  EXPECT_EQ(names(at("")), (std::vector<std::string>{"m", "n"}));
  EXPECT_EQ(::rmdir(at("n").c_str()), 0);
  EXPECT_EQ(names(at("")), (std::vector<std::string>{"m"}));
}

TEST_F(MountTest, LatestFollowsAndNewVersionsAppear) {
  store_.publish_files("m", "v1", {{"w", "one"}});
  start();
  EXPECT_EQ(read_all(at("m/latest/w")), "one");
  struct stat st;
  EXPECT_ERRNO(::stat(at("m/v2").c_str(), &st), ENOENT);
  store_.publish_files("m", "v2", {{"w", "two"}});
  EXPECT_EQ(read_all(at("m/v2/w")), "two");
  EXPECT_EQ(read_all(at("m/latest/w")), "two");
  EXPECT_EQ(posix::read_link(at("m/latest")).value_or(""), "v2");
  store_.publish_files("other", "v1", {{"w", "new model"}});
  EXPECT_EQ(read_all(at("other/v1/w")), "new model");
}

TEST_F(MountTest, ANamePublishedAgainIsAnotherInodeAndOpenHandlesReadOn) {
  store_.publish_files("m", "v1", {{"w", "one"}});
  start();
  struct stat before, after;
  Fd open_handle(::open(at("m/v1/w").c_str(), O_RDONLY));
  ASSERT_TRUE(open_handle.valid());
  ASSERT_EQ(::fstat(open_handle.get(), &before), 0);
  store_.remove_version("m", "v1");
  EXPECT_TRUE(eventually([&] { return ::stat(at("m/v1").c_str(), &after) != 0; }));
  EXPECT_EQ(errno, ENOENT);
  store_.publish_files("m", "v1", {{"w", "other"}});
  EXPECT_EQ(read_all(at("m/v1/w")), "other");
  ASSERT_EQ(::stat(at("m/v1/w").c_str(), &after), 0);
  EXPECT_NE(before.st_ino, after.st_ino);
  char bytes[8] = {};
  EXPECT_EQ(::pread(open_handle.get(), bytes, sizeof(bytes), 0), 3);
  EXPECT_STREQ(bytes, "one");
}

TEST_F(MountTest, WhatIsKnownIsShownAtOnceWhenTheBucketIsAway) {
  store_.publish_files("m", "v1", {{"w", "one"}});
  start();
  store_.set_down(true);
  store_.set_fresh(false);
  EXPECT_EQ(names(at("")), (std::vector<std::string>{"m"}));
  EXPECT_EQ(names(at("m")), (std::vector<std::string>{"latest", "v1"}));
  EXPECT_EQ(read_all(at("m/v1/w")), "one");
  EXPECT_EQ(read_all(at("m/latest/w")), "one");
  struct stat st;
  EXPECT_ERRNO(::stat(at("m/v2").c_str(), &st), EIO);          // nobody said that it is not there
  EXPECT_ERRNO(::stat(at("m/.v2.tmp").c_str(), &st), ENOENT);  // no version can have this name
}

TEST_F(MountTest, AStaleModelIsAskedForAndTheRequestCanBeInterrupted) {
  store_.publish_files("m", "v1", {{"w", "one"}});
  start();
  store_.set_fresh(false);
  store_.hold_refresh(true);
  auto path = at("m/v2");
  auto pid = child([&] {
    struct stat st;
    return ::stat(path.c_str(), &st) == 0 ? 1 : 0;
  });
  EXPECT_TRUE(eventually([&] { return store_.refreshes() > 0; }));
  EXPECT_EQ(read_all(at("m/v1/w")), "one");  // others go on, in the same directory
  ::kill(pid, SIGTERM);
  EXPECT_EQ(wait_for(pid), 128 + SIGTERM);
  store_.hold_refresh(false);
}

TEST_F(MountTest, AKilledReaderEndsAndAnAlarmDoesNotDisturbOne) {
  store_.set_warm(false);
  store_.publish_files("m", "v1", {{"w", pattern(1 << 20)}});
  start();
  store_.hold_reads(true);
  auto path = at("m/v1/w");
  auto reads = [&] {
    char byte;
    int fd = ::open(path.c_str(), O_RDONLY);
    return ::read(fd, &byte, 1) == 1 ? 0 : errno;
  };
  auto killed = child(reads);
  EXPECT_TRUE(eventually([&] { return store_.held_reads() > 0; }));
  ::kill(killed, SIGKILL);
  EXPECT_EQ(wait_for(killed), 128 + SIGKILL);
  auto alarmed = child([&] {
    struct sigaction action{};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, nullptr);
    itimerval timer{{0, 20000}, {0, 20000}};
    ::setitimer(ITIMER_REAL, &timer, nullptr);
    return reads();
  });
  EXPECT_TRUE(eventually([&] { return store_.held_reads() > 0; }));
  ::usleep(700'000);  // several alarms and looks at them; the reader must still be waiting
  int status = 0;
  EXPECT_EQ(::waitpid(alarmed, &status, WNOHANG), 0);
  store_.hold_reads(false);
  EXPECT_EQ(wait_for(alarmed), 0);
}

TEST_F(MountTest, APageFaultIsToldFromAReadAndOutlivesAnOutage) {
  store_.set_warm(false);
  store_.publish_files("m", "v1", {{"w", pattern(1 << 20)}});
  start();
  store_.set_down(true);
  auto path = at("m/v1/w");
  EXPECT_EQ(read_all(path), "cannot read: Input/output error");
  auto pid = child([&] {
    int fd = ::open(path.c_str(), O_RDONLY);
    auto* map = static_cast<volatile char*>(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, fd, 0));
    ::madvise(const_cast<char*>(map), 4096, MADV_RANDOM);
    return map[100] == 0 ? 0 : 0;
  });
  EXPECT_TRUE(eventually([&] { return store_.faults_read() > 0; }));
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, WNOHANG), 0);
  store_.set_down(false);
  EXPECT_EQ(wait_for(pid), 0);
}

TEST_F(MountTest, TheManifestIsFetchedWhenItIsNeeded) {
  store_.publish_files("m", "v1", {{"w", "one"}});
  start();
  store_.hide_manifests();
  EXPECT_EQ(run_shell("ls -l m | grep -c v1", nullptr, at("")), "2\n");  // needs none
  store_.set_down(true);
  EXPECT_EQ(names(at("m/v1")).front().substr(0, 4), "I/O ");
  store_.set_down(false);
  EXPECT_EQ(read_all(at("m/v1/w")), "one");
}

TEST_F(MountTest, ExtendedAttributesTellAndAreHidden) {
  store_.publish_files("m", "v1", {{"w", "12345"}});
  store_.publish_files("m", "v2", {{"w", "12345"}, {"x", "678"}});
  start();
  EXPECT_EQ(xattr(at("m/v2"), "state"), "committed");
  EXPECT_EQ(xattr(at("m/v2"), "version"), "m/v2");
  EXPECT_EQ(xattr(at("m/v2"), "parent"), "m/v1");
  EXPECT_EQ(xattr(at("m/v1"), "parent"), "No data available");
  EXPECT_EQ(xattr(at("m/v2"), "bytes"), "8");
  EXPECT_EQ(xattr(at("m/v2/x"), "bytes"), "3");
  EXPECT_EQ(xattr(at("m/v2/x"), "cached"), "3");
  EXPECT_EQ(xattr(at(""), "control"), session_->mount().control_socket());
  char list[64];
  EXPECT_EQ(::listxattr(at("m/v2").c_str(), list, sizeof(list)), 0);
  char small[2];
  EXPECT_ERRNO(::getxattr(at("m/v2").c_str(), "user.weightfs.state", small, sizeof(small)), ERANGE);
}

TEST_F(MountTest, DfShowsTheCache) {
  start();
  struct statvfs st;
  ASSERT_EQ(::statvfs(at("").c_str(), &st), 0);
  EXPECT_EQ(st.f_blocks * st.f_frsize, std::uint64_t{1} << 30);
  EXPECT_EQ((st.f_blocks - st.f_bfree) * st.f_frsize, std::uint64_t{80} << 20);
}

TEST_F(MountTest, SeekHoleAndDataAnswerAsForAFileWithoutHoles) {
  store_.publish_files("m", "v1", {{"w", pattern(10000)}});
  start();
  Fd fd(::open(at("m/v1/w").c_str(), O_RDONLY));
  EXPECT_EQ(::lseek(fd.get(), 5, SEEK_DATA), 5);
  EXPECT_EQ(::lseek(fd.get(), 5, SEEK_HOLE), 10000);
  EXPECT_ERRNO(::lseek(fd.get(), 10000, SEEK_DATA), ENXIO);
}

// --- removing, where it is allowed

TEST_F(MountTest, RmOfAVersionRemovesItForAllWhereTheMountAllowsIt) {
  store_.publish_files("m", "v1", {{"w", "one"}, {"d/x", "y"}});
  store_.publish_files("m", "v2", {{"w", "two"}});
  MountOptions options;
  options.allow_remove = true;
  std::vector<std::string> removed;
  options.remove_version = [&](const VersionRef& version, const CallOptions&) {
    removed.push_back(version.str());
    store_.remove_version(version.model.str(), version.version.str());
    return Status();
  };
  start(options);
  EXPECT_ERRNO(::rmdir(at("m/v1").c_str()), ENOTEMPTY);
  EXPECT_ERRNO(::rmdir(at("m/v1/d").c_str()), ENOTEMPTY);
  EXPECT_ERRNO(::open(at("m/v1/w").c_str(), O_WRONLY), EROFS);
  ASSERT_EQ(::unlink(at("m/v1/w").c_str()), 0);
  EXPECT_EQ(names(at("m/v1")), (std::vector<std::string>{"d"}));
  EXPECT_TRUE(removed.empty());  // so far it is only hidden here
  int status = 0;
  auto said = run_shell("rm -r v1", &status, at("m"));
  EXPECT_EQ(status, 0) << said;
  EXPECT_EQ(removed, (std::vector<std::string>{"m/v1"}));
  EXPECT_EQ(names(at("m")), (std::vector<std::string>{"latest", "v2"}));
  ASSERT_EQ(::mkdir(at("m/v1").c_str(), 0755), 0);  // the name is free
  write_all(at("m/v1/new"), "again");
  EXPECT_EQ(names(at("m/v1")), (std::vector<std::string>{"new"}));
}

TEST_F(MountTest, ARemovalThatTheBucketRefusesLeavesTheVersion) {
  store_.publish_files("m", "v1", {{"w", "one"}});
  MountOptions options;
  options.allow_remove = true;
  options.remove_version = [](const VersionRef&, const CallOptions&) {
    return Status(Code::kPermission, "read-only keys");
  };
  start(options);
  ASSERT_EQ(::unlink(at("m/v1/w").c_str()), 0);
  EXPECT_ERRNO(::rmdir(at("m/v1").c_str()), EACCES);
  struct stat st;
  EXPECT_EQ(::stat(at("m/v1").c_str(), &st), 0);
}

// --- the end

TEST_F(MountTest, UnmountEndsWithReadersWaitingAndFilesOpen) {
  store_.set_warm(false);
  store_.publish_files("m", "v1", {{"w", pattern(1 << 20)}});
  start();
  store_.hold_reads(true);
  Fd open_handle(::open(at("m/v1/w").c_str(), O_RDONLY));
  auto reader = std::async(std::launch::async, [&] { return read_all(at("m/v1/w")); });
  EXPECT_TRUE(eventually([&] { return store_.held_reads() > 0; }));
  session_->stop();
  EXPECT_EQ(reader.get().substr(0, 12), "cannot read:");
  char byte;
  EXPECT_LT(::pread(open_handle.get(), &byte, 1, 0), 0);
  EXPECT_FALSE(mount_at(session_->path()).has_value());
}

TEST_F(MountTest, UmountThroughTheSocketNamesWhoKeepsItBusy) {
  store_.publish_files("m", "v1", {{"w", "one"}});
  start();
  auto runner = std::async(std::launch::async, [&] { return session_->mount().run(); });
  auto ask = [&] {
    auto client = ControlClient::connect(session_->mount().control_socket());
    return client->call({{"op", "umount"}});
  };
  {
    Fd busy(::open(at("m/v1/w").c_str(), O_RDONLY));
    auto refused = ask();
    EXPECT_EQ(refused.code(), Code::kBusy);
    EXPECT_NE(refused.status().message().find(std::to_string(::getpid())), std::string::npos);
    EXPECT_EQ(read_all(at("m/v1/w")), "one");
  }
  // RELEASE comes some time after close.
  EXPECT_TRUE(eventually([&] { return ask().is_ok(); }));
  runner.get();
  EXPECT_FALSE(mount_at(session_->path()).has_value());
}

TEST_F(MountTest, RunEndsWhenSomebodyUnmounts) {
  start();
  auto runner = std::async(std::launch::async, [&] { return session_->mount().run(); });
  EXPECT_OK(unmount(session_->path(), false));
  runner.get();
  EXPECT_TRUE(told("shut down"));
}

TEST_F(MountTest, TheControlSocketAnswers) {
  store_.publish_files("m", "v 1", {{"w", "one"}});
  start();
  auto call = [&](const control::Json& request) {
    auto client = ControlClient::connect(session_->mount().control_socket());
    return client.is_ok() ? client->call(request) : Result<control::Json>(client.status());
  };
  struct stat st;
  ASSERT_EQ(::stat(session_->mount().control_socket().c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  auto status = call({{"op", "status"}});
  ASSERT_OK(status.status());
  EXPECT_EQ((*status)["mountpoint"], session_->path());
  EXPECT_EQ((*status)["pid"], ::getpid());
  auto log = call({{"op", "log"}, {"model", "m"}});
  ASSERT_OK(log.status());
  EXPECT_EQ((*log)["versions"][0]["name"], "v%201");
  EXPECT_EQ((*call({{"op", "wait"}, {"model", "m"}, {"version", "v%201"}}))["version"], "m%2Fv%201");
  EXPECT_EQ(call({{"op", "wait"}, {"model", "m"}, {"version", "v2"}, {"timeout", 0.05}}).code(), Code::kUnavailable);
  EXPECT_OK(call({{"op", "pin"}, {"paths", {"m%2Flatest"}}}).status());
  EXPECT_EQ(call({{"op", "pin"}, {"paths", {"m%2Fnone"}}}).code(), Code::kNotFound);
  EXPECT_EQ(call({{"op", "commit"}, {"version", 3}}).code(), Code::kInvalid);
  EXPECT_EQ(call({{"op", "nonsense"}}).code(), Code::kUnsupported);
  EXPECT_EQ(call(control::Json::array()).code(), Code::kInvalid);
  auto found = ControlClient::connect_for(at("m/v 1"));
  ASSERT_OK(found.status());
  EXPECT_EQ(found->second, "m%2Fv%201");
}

}  // namespace
}  // namespace weightfs
