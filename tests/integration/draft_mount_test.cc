// Drafts over a real mount: what writers do, and what the draft is told of it.
#include <linux/fs.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <filesystem>

#include "fs/control_client.h"
#include "tests/integration/mount_fixture.h"

namespace weightfs {
namespace {

class DraftMountTest : public MountTest {
 protected:
  // A model with a draft in it, mounted.
  void start_draft(const std::string& name = "d") {
    start();
    ASSERT_EQ(::mkdir(at("m").c_str(), 0755), 0);
    ASSERT_EQ(::mkdir(at("m/" + name).c_str(), 0755), 0);
  }
  DraftPtr draft(const std::string& name = "d") { return store_.drafts().find(*ModelName::parse("m"), name); }
  // Commits through the attribute, and waits until it is a version (RELEASE of the last handle comes a little late).
  void commit(const std::string& name = "d") {
    auto path = at("m/" + name);
    ASSERT_TRUE(eventually([&] { return draft(name)->writers() == 0; }));
    ASSERT_EQ(::setxattr(path.c_str(), "user.weightfs.commit", "1", 1, 0), 0) << std::strerror(errno);
    ASSERT_TRUE(eventually([&] { return xattr(path, "state") == "committed"; }));
  }
};

TEST_F(DraftMountTest, WhatIsWrittenIsReadBackAndBecomesAVersion) {
  start_draft();
  auto weights = pattern(3 << 20);
  ASSERT_EQ(::mkdir(at("m/d/sub").c_str(), 0700), 0);
  write_all(at("m/d/sub/w"), weights);
  write_all(at("m/d/config.json"), "{}");
  EXPECT_EQ(read_all(at("m/d/sub/w")), weights);
  EXPECT_EQ(names(at("m/d")), (std::vector<std::string>{"config.json", "sub"}));
  EXPECT_EQ(names(at("m")), (std::vector<std::string>{"d"}));
  EXPECT_EQ(xattr(at("m/d"), "state").substr(0, 5), "draft");
  EXPECT_EQ(xattr(at("m/d"), "bytes"), std::to_string(weights.size() + 2));
  EXPECT_EQ(xattr(at("m/d"), "version"), "m/d");
  commit();
  EXPECT_EQ(read_all(at("m/d/sub/w")), weights);
  EXPECT_ERRNO(::open(at("m/d/sub/w").c_str(), O_WRONLY), EROFS);
  EXPECT_ERRNO(::mkdir(at("m/d/new").c_str(), 0755), EROFS);
  EXPECT_EQ(names(at("m")), (std::vector<std::string>{"d", "latest"}));
  struct stat st;
  ASSERT_EQ(::stat(at("m/d/sub").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode, S_IFDIR | 0555u);
}

TEST_F(DraftMountTest, HandlesThatAreOpenReadOnWhenItIsCommitted) {
  start_draft();
  write_all(at("m/d/w"), "bytes");
  Fd open_handle(::open(at("m/d/w").c_str(), O_RDONLY));
  auto status = run_shell("pwd >/dev/null; cat w", nullptr, at("m/d"));
  EXPECT_EQ(status, "bytes");
  Fd directory(::open(at("m/d").c_str(), O_RDONLY | O_DIRECTORY));
  commit();
  char bytes[8] = {};
  EXPECT_EQ(::pread(open_handle.get(), bytes, sizeof(bytes), 0), 5);
  EXPECT_STREQ(bytes, "bytes");
  // Who stands in the directory goes on seeing its files.
  Fd through(::openat(directory.get(), "w", O_RDONLY));
  ASSERT_TRUE(through.valid()) << std::strerror(errno);
  EXPECT_ERRNO(::openat(directory.get(), "new", O_WRONLY | O_CREAT, 0644), EROFS);
}

TEST_F(DraftMountTest, TheDraftIsToldWhatWritersDo) {
  start_draft();
  write_all(at("m/d/w"), "bytes");
  EXPECT_TRUE(eventually([&] { return told("released"); }));
  EXPECT_TRUE(told("create m/d"));
  EXPECT_TRUE(told("opened"));
  EXPECT_TRUE(told("flushed"));
  EXPECT_FALSE(told("flushed exiting"));
  EXPECT_EQ(read_all(at("m/d/w")), "bytes");
  auto count = store_.told().size();
  EXPECT_EQ(store_.told().size(), count);  // readers are none of its business
}

TEST_F(DraftMountTest, AWriterThatDiesIsToldFromOneThatCloses) {
  start_draft();
  auto path = at("m/d/w");
  auto pid = child([&] {
    int fd = ::open(path.c_str(), O_WRONLY | O_CREAT, 0644);
    if (::write(fd, "half", 4) != 4) return 1;
    ::kill(::getpid(), SIGKILL);
    return 0;
  });
  EXPECT_EQ(wait_for(pid), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return told("flushed exiting") && told("released"); }));
  EXPECT_FALSE(told("flushed"));
}

TEST_F(DraftMountTest, CommitIsRefusedWhileAFileIsOpenForWriting) {
  start_draft();
  Fd writer(::open(at("m/d/w").c_str(), O_WRONLY | O_CREAT, 0644));
  ASSERT_TRUE(writer.valid());
  EXPECT_ERRNO(::setxattr(at("m/d").c_str(), "user.weightfs.commit", "1", 1, 0), EBUSY);
  EXPECT_OK(writer.close());
  commit();
}

TEST_F(DraftMountTest, ARenameFromATemporaryNamePublishes) {
  start_draft(".d.tmp");
  write_all(at("m/.d.tmp/w"), "bytes");
  ASSERT_TRUE(eventually([&] { return draft(".d.tmp")->writers() == 0; }));
  ASSERT_EQ(::rename(at("m/.d.tmp").c_str(), at("m/d").c_str()), 0);
  EXPECT_TRUE(eventually([&] { return xattr(at("m/d"), "state") == "committed"; }));
  EXPECT_EQ(read_all(at("m/d/w")), "bytes");
  EXPECT_EQ(names(at("m")), (std::vector<std::string>{"d", "latest"}));
  ASSERT_EQ(::mkdir(at("m/tmp-e").c_str(), 0755), 0);
  EXPECT_ERRNO(::rename(at("m/tmp-e").c_str(), at("m/d").c_str()), EEXIST);
  EXPECT_ERRNO(::rename(at("m/tmp-e").c_str(), at("m/latest").c_str()), ENOTDIR);  // the kernel's: it is a symlink
  ASSERT_EQ(::mkdir(at("n").c_str(), 0755), 0);
  EXPECT_ERRNO(::rename(at("m/tmp-e").c_str(), at("n/e").c_str()), EXDEV);
  EXPECT_EQ(::rmdir(at("m/tmp-e").c_str()), 0);
}

TEST_F(DraftMountTest, WhilePublishingNothingChanges) {
  start_draft();
  write_all(at("m/d/w"), "bytes");
  ASSERT_TRUE(eventually([&] { return draft()->writers() == 0; }));
  store_.hold_commits(true);
  ASSERT_EQ(::setxattr(at("m/d").c_str(), "user.weightfs.commit", "1", 1, 0), 0);
  EXPECT_EQ(xattr(at("m/d"), "state"), "publishing");
  EXPECT_ERRNO(::open(at("m/d/w").c_str(), O_WRONLY), EROFS);
  EXPECT_ERRNO(::open(at("m/d/x").c_str(), O_WRONLY | O_CREAT, 0644), EROFS);
  EXPECT_ERRNO(::unlink(at("m/d/w").c_str()), EROFS);
  EXPECT_ERRNO(::rename(at("m/d/w").c_str(), at("m/d/x").c_str()), EROFS);
  EXPECT_ERRNO(::truncate(at("m/d/w").c_str(), 1), EROFS);
  EXPECT_ERRNO(::chmod(at("m/d/w").c_str(), 0600), EROFS);
  EXPECT_ERRNO(::setxattr(at("m/d/w").c_str(), "user.x", "1", 1, 0), EROFS);
  EXPECT_EQ(read_all(at("m/d/w")), "bytes");
  store_.hold_commits(false);
  EXPECT_TRUE(eventually([&] { return xattr(at("m/d"), "state") == "committed"; }));
}

TEST_F(DraftMountTest, AFailedCommitLeavesAWritableDraftThatSaysWhy) {
  start_draft();
  write_all(at("m/d/w"), "bytes");
  ASSERT_TRUE(eventually([&] { return draft()->writers() == 0; }));
  store_.set_down(true);
  ASSERT_EQ(::setxattr(at("m/d").c_str(), "user.weightfs.commit", "1", 1, 0), 0);
  EXPECT_TRUE(eventually([&] { return xattr(at("m/d"), "state") == "failed: the bucket is out of reach"; }));
  write_all(at("m/d/w"), "more bytes");
  store_.set_down(false);
  commit();
  EXPECT_EQ(read_all(at("m/d/w")), "more bytes");
}

TEST_F(DraftMountTest, NamesMoveAsOnALocalDisk) {
  start_draft();
  ASSERT_EQ(::mkdir(at("m/d/a").c_str(), 0755), 0);
  ASSERT_EQ(::mkdir(at("m/d/b").c_str(), 0755), 0);
  write_all(at("m/d/a/x"), "x");
  write_all(at("m/d/a/y"), "y");
  EXPECT_EQ(::rename(at("m/d/a/x").c_str(), at("m/d/b/z").c_str()), 0);
  EXPECT_EQ(read_all(at("m/d/b/z")), "x");
  EXPECT_ERRNO(::renameat2(AT_FDCWD, at("m/d/a/y").c_str(), AT_FDCWD, at("m/d/b/z").c_str(), RENAME_NOREPLACE), EEXIST);
  EXPECT_EQ(::renameat2(AT_FDCWD, at("m/d/a/y").c_str(), AT_FDCWD, at("m/d/b/z").c_str(), RENAME_EXCHANGE), 0);
  EXPECT_EQ(read_all(at("m/d/a/y")), "x");
  EXPECT_EQ(read_all(at("m/d/b/z")), "y");
  EXPECT_EQ(::rename(at("m/d/a/y").c_str(), at("m/d/b/z").c_str()), 0);  // over the other
  EXPECT_EQ(read_all(at("m/d/b/z")), "x");
  EXPECT_EQ(::rename(at("m/d/b").c_str(), at("m/d/c").c_str()), 0);
  EXPECT_EQ(read_all(at("m/d/c/z")), "x");
  EXPECT_ERRNO(::rmdir(at("m/d/c").c_str()), ENOTEMPTY);
  EXPECT_ERRNO(::rmdir(at("m/d").c_str()), ENOTEMPTY);
  EXPECT_EQ(::unlink(at("m/d/c/z").c_str()), 0);
  EXPECT_EQ(::rmdir(at("m/d/c").c_str()), 0);
  EXPECT_EQ(::rmdir(at("m/d/a").c_str()), 0);
  EXPECT_EQ(::rmdir(at("m/d").c_str()), 0);
  EXPECT_TRUE(told("remove d"));
  EXPECT_EQ(names(at("m")), std::vector<std::string>{});
  EXPECT_EQ(static_cast<FakeStore&>(store_).drafts().list().size(), 0u);
}

TEST_F(DraftMountTest, LinksAreKeptAndNeverFollowedOut) {
  start_draft();
  ASSERT_EQ(::symlink("/etc", at("m/d/out").c_str()), 0);
  ASSERT_EQ(::symlink("w", at("m/d/in").c_str()), 0);
  write_all(at("m/d/w"), "bytes");
  EXPECT_EQ(posix::read_link(at("m/d/out")).value_or(""), "/etc");
  EXPECT_EQ(read_all(at("m/d/in")), "bytes");
  ASSERT_EQ(::link(at("m/d/w").c_str(), at("m/d/hard").c_str()), 0);
  struct stat a, b;
  ASSERT_EQ(::stat(at("m/d/w").c_str(), &a), 0);
  ASSERT_EQ(::stat(at("m/d/hard").c_str(), &b), 0);
  EXPECT_EQ(a.st_ino, b.st_ino);
  EXPECT_EQ(b.st_nlink, 2u);
  ASSERT_EQ(::mkdir(at("m/e").c_str(), 0755), 0);
  EXPECT_ERRNO(::link(at("m/d/w").c_str(), at("m/e/hard").c_str()), EXDEV);
  EXPECT_ERRNO(::rename(at("m/d/w").c_str(), at("m/e/w").c_str()), EXDEV);
  EXPECT_ERRNO(::mkfifo(at("m/d/fifo").c_str(), 0644), EPERM);
}

TEST_F(DraftMountTest, AFileUnlinkedWhileOpenLivesOnAndItsSpaceIsGivenBack) {
  start_draft();
  auto before = store_.charged();
  auto bytes = pattern(1 << 20);
  {
    Fd fd(::open(at("m/d/w").c_str(), O_RDWR | O_CREAT, 0644));
    ASSERT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    EXPECT_GE(store_.charged(), before + (1 << 20));
    ASSERT_EQ(::unlink(at("m/d/w").c_str()), 0);
    struct stat st;
    ASSERT_EQ(::fstat(fd.get(), &st), 0);
    EXPECT_EQ(st.st_size, 1 << 20);
    char byte;
    EXPECT_EQ(::pread(fd.get(), &byte, 1, 77), 1);
    EXPECT_EQ(byte, bytes[77]);
  }
  EXPECT_TRUE(eventually([&] { return store_.charged() == before; })) << store_.charged() - before;
}

TEST_F(DraftMountTest, SpaceIsChargedForWhatIsWrittenNotForHoles) {
  start_draft();
  Fd fd(::open(at("m/d/w").c_str(), O_RDWR | O_CREAT, 0644));
  ASSERT_EQ(::ftruncate(fd.get(), 1 << 30), 0);
  EXPECT_LT(store_.charged(), 1 << 20);
  store_.set_quota(static_cast<std::uint64_t>(store_.charged()) + (2 << 20));
  auto bytes = pattern(1 << 20);
  EXPECT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 5 << 20), 1 << 20);
  EXPECT_EQ(::pwrite(fd.get(), bytes.data(), bytes.size(), 5 << 20), 1 << 20);  // again: no growth
  EXPECT_LT(store_.charged(), 2 << 20);
  std::string more(4 << 20, 'x');
  auto written = ::pwrite(fd.get(), more.data(), more.size(), 100 << 20);
  EXPECT_LT(written, 2 << 20);  // short, then the error
  EXPECT_ERRNO(::pwrite(fd.get(), more.data(), more.size(), (100 << 20) + std::max<off_t>(written, 0)), ENOSPC);
  EXPECT_TRUE(told("failed no space"));
  EXPECT_EQ(::ftruncate(fd.get(), 0), 0);
  EXPECT_LT(store_.charged(), 1 << 16);
}

TEST_F(DraftMountTest, PreallocationKeepsTheSizeAndHolesAreFound) {
  start_draft();
  Fd fd(::open(at("m/d/w").c_str(), O_RDWR | O_CREAT, 0644));
  ASSERT_EQ(::fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, 1 << 20), 0);
  struct stat st;
  ASSERT_EQ(::fstat(fd.get(), &st), 0);
  EXPECT_EQ(st.st_size, 0);
  ASSERT_EQ(::ftruncate(fd.get(), 4 << 20), 0);
  ASSERT_EQ(::pwrite(fd.get(), "x", 1, 3 << 20), 1);
  EXPECT_EQ(::lseek(fd.get(), 2 << 20, SEEK_DATA), 3 << 20);
  EXPECT_EQ(::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 << 20, 1 << 20), 0);
  EXPECT_ERRNO(::lseek(fd.get(), 2 << 20, SEEK_DATA), ENXIO);
}

TEST_F(DraftMountTest, SharedWritableMapsWriteAlsoAfterClose) {
  start_draft();
  auto path = at("m/d/w");
  auto pid = child([&] {
    int fd = ::open(path.c_str(), O_RDWR | O_CREAT, 0644);
    if (::ftruncate(fd, 1 << 20) != 0) return 1;
    auto* map = static_cast<char*>(::mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (map == MAP_FAILED) return 2;
    ::close(fd);  // numpy's memmap does: FLUSH comes before the stores
    for (int i = 0; i < (1 << 20); i += 4096) map[i] = static_cast<char>(i >> 12);
    return ::munmap(map, 1 << 20) == 0 ? 0 : 3;
  });
  EXPECT_EQ(wait_for(pid), 0);
  EXPECT_TRUE(eventually([&] { return draft()->writers() == 0; }));
  auto bytes = read_all(path);
  ASSERT_EQ(bytes.size(), 1u << 20);
  for (int i = 0; i < (1 << 20); i += 4096) ASSERT_EQ(bytes[i], static_cast<char>(i >> 12)) << i;
  // On the local disk, too: what is published is read there.
  EXPECT_EQ(read_all(draft()->root() + "/w"), bytes);
}

TEST_F(DraftMountTest, TheSaverOfSafetensorsRenamesBeforeItCloses) {
  start_draft();
  Fd fd(::open(at("m/d/.tmpAbCdEf").c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  ASSERT_TRUE(fd.valid());
  auto bytes = pattern(5 << 20);
  ASSERT_EQ(::ftruncate(fd.get(), 5 << 20), 0);
  ASSERT_EQ(::write(fd.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  ASSERT_EQ(::rename(at("m/d/.tmpAbCdEf").c_str(), at("m/d/model.safetensors").c_str()), 0);
  EXPECT_OK(fd.close());
  EXPECT_EQ(read_all(at("m/d/model.safetensors")), bytes);
  EXPECT_EQ(names(at("m/d")), (std::vector<std::string>{"model.safetensors"}));
  // Metadata comes after close: rsync, shutil, unzip.
  EXPECT_EQ(::chmod(at("m/d/model.safetensors").c_str(), 0644), 0);
  timespec times[2] = {{1000, 5}, {2000, 7}};
  EXPECT_EQ(::utimensat(AT_FDCWD, at("m/d/model.safetensors").c_str(), times, 0), 0);
  struct stat st;
  ASSERT_EQ(::stat(at("m/d/model.safetensors").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode, S_IFREG | 0644u);
  EXPECT_EQ(st.st_mtim.tv_sec, 2000);
  EXPECT_EQ(st.st_mtim.tv_nsec, 7);
}

TEST_F(DraftMountTest, AppendDirectAndTruncatingOpens) {
  start_draft();
  run_shell("printf one >> w; printf two >> w; cat w > copy; printf new > w", nullptr, at("m/d"));
  EXPECT_EQ(read_all(at("m/d/copy")), "onetwo");
  EXPECT_EQ(read_all(at("m/d/w")), "new");
  int status = 0;
  auto said = run_shell("dd if=/dev/zero of=direct bs=1M count=3 oflag=direct conv=fsync 2>&1", &status, at("m/d"));
  EXPECT_EQ(status, 0) << said;
  EXPECT_EQ(read_all(at("m/d/direct")), std::string(3 << 20, '\0'));
}

TEST_F(DraftMountTest, ARunningProgramCannotBeCutOff) {
  start_draft();
  auto program = read_all("/usr/bin/sleep");
  write_all(at("m/d/program"), program);
  ASSERT_EQ(::chmod(at("m/d/program").c_str(), 0755), 0);
  ASSERT_TRUE(eventually([&] { return draft()->writers() == 0; }));
  pid_t child = ::fork();
  if (child == 0) {
    ::execl(at("m/d/program").c_str(), "program", "60", nullptr);
    ::_exit(1);
  }
  auto runs = "/proc/" + std::to_string(child) + "/exe";
  EXPECT_TRUE(eventually([&] {
    std::error_code none;
    return std::filesystem::read_symlink(runs, none).filename() == "program";
  }));
  for (int flags : {O_WRONLY, O_RDWR | O_TRUNC, O_RDONLY | O_TRUNC}) {
    EXPECT_ERRNO(::open(at("m/d/program").c_str(), flags), ETXTBSY);
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(read_all(at("m/d/program")), program);
}

TEST_F(DraftMountTest, SyncsAndLocksWork) {
  start_draft();
  Fd fd(::open(at("m/d/w").c_str(), O_RDWR | O_CREAT, 0644));
  EXPECT_EQ(::write(fd.get(), "x", 1), 1);
  EXPECT_EQ(::fsync(fd.get()), 0);
  EXPECT_EQ(::fdatasync(fd.get()), 0);
  EXPECT_EQ(::flock(fd.get(), LOCK_EX | LOCK_NB), 0);
  Fd other(::open(at("m/d/w").c_str(), O_RDONLY));
  EXPECT_ERRNO(::flock(other.get(), LOCK_EX | LOCK_NB), EAGAIN);
  Fd directory(::open(at("m/d").c_str(), O_RDONLY | O_DIRECTORY));
  EXPECT_EQ(::fsync(directory.get()), 0);
  Fd model(::open(at("m").c_str(), O_RDONLY | O_DIRECTORY));
  EXPECT_EQ(::fsync(model.get()), 0);
  EXPECT_ERRNO(::open(at("m/d").c_str(), O_TMPFILE | O_RDWR, 0600), EOPNOTSUPP);
  EXPECT_ERRNO(::ioctl(fd.get(), FICLONE, other.get()), EOPNOTSUPP);
}

TEST_F(DraftMountTest, AttributesOfUsersAreTheLocalFiles) {
  start_draft();
  write_all(at("m/d/w"), "x");
  auto path = at("m/d/w");
  bool local = ::setxattr((draft()->root() + "/w").c_str(), "user.probe", "1", 1, 0) == 0;
  if (local) {
    ASSERT_EQ(::setxattr(path.c_str(), "user.mine", "value", 5, 0), 0) << std::strerror(errno);
    char value[16];
    EXPECT_EQ(::getxattr(path.c_str(), "user.mine", value, sizeof(value)), 5);
    EXPECT_EQ(::removexattr(path.c_str(), "user.mine"), 0);
  } else {
    EXPECT_ERRNO(::setxattr(path.c_str(), "user.mine", "value", 5, 0), EOPNOTSUPP);
  }
  constexpr std::string_view kAcl("\2\0\0\0\1\0\6\0\xff\xff\xff\xff\4\0\4\0\xff\xff\xff\xff\x20\0\4\0\xff\xff\xff\xff",
                                  28);
  EXPECT_ERRNO(::setxattr(path.c_str(), "system.posix_acl_access", kAcl.data(), kAcl.size(), 0), EOPNOTSUPP);
  EXPECT_ERRNO(::setxattr(at("m/d").c_str(), "user.weightfs.state", "x", 1, 0), EPERM);
  ASSERT_EQ(::setxattr(at("m/d").c_str(), "user.weightfs.parent", "base/step 1", 11, 0), 0);
  EXPECT_EQ(xattr(at("m/d"), "parent"), "base/step 1");
  EXPECT_ERRNO(::setxattr(at("m/d").c_str(), "user.weightfs.parent", "nonsense", 8, 0), EINVAL);
  EXPECT_EQ(::removexattr(at("m/d").c_str(), "user.weightfs.parent"), 0);
  EXPECT_EQ(xattr(at("m/d"), "parent"), "No data available");
}

TEST_F(DraftMountTest, FilesAreCopiedOutOfVersionsAndWithinDrafts) {
  auto weights = pattern(2 << 20);
  store_.publish_files("m", "v1", {{"w", weights}, {"d/x", "x"}});
  start();
  int status = 0;
  auto said =
      run_shell("cp -r m/v1 m/v2 && cp m/v2/w m/v2/again && cp -a m/v1 m/v3 && mv m/v3 m/v4 && cmp m/v4/w m/v1/w",
                &status, at(""));
  EXPECT_EQ(status, 0) << said;
  EXPECT_EQ(read_all(at("m/v2/w")), weights);
  EXPECT_EQ(read_all(at("m/v2/again")), weights);
  EXPECT_EQ(read_all(at("m/v4/d/x")), "x");
}

TEST_F(DraftMountTest, ToolsRemoveADraft) {
  start_draft();
  for (int i = 0; i < 40; i++) write_all(at("m/d/f" + std::to_string(i)), "x");
  int status = 0;
  auto said = run_shell("mkdir -p d/a/b && touch d/a/b/c && rm -r d && rmdir ../m", &status, at("m"));
  EXPECT_EQ(status, 0) << said;
  EXPECT_EQ(store_.drafts().list().size(), 0u);
  EXPECT_EQ(names(at("")), std::vector<std::string>{});
}

TEST_F(DraftMountTest, ModesOfWritersAreKept) {
  start_draft();
  Fd fd(::open(at("m/d/secret").c_str(), O_WRONLY | O_CREAT, 0600));
  ASSERT_EQ(::mkdir(at("m/d/sub").c_str(), 0700), 0);
  struct stat st;
  ASSERT_EQ(::stat(at("m/d/secret").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode, S_IFREG | 0600u);
  ASSERT_EQ(::stat(at("m/d/sub").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode, S_IFDIR | 0700u);
}

TEST_F(DraftMountTest, WritingClearsTheBitsThatRunAFileAsAnother) {
  start_draft();
  write_all(at("m/d/x"), "#!");
  ASSERT_EQ(::chmod(at("m/d/x").c_str(), 06755), 0);
  struct stat st;
  ASSERT_EQ(::stat(at("m/d/x").c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 06755u);
  write_all(at("m/d/x"), "#!/bin/sh");
  EXPECT_TRUE(eventually([&] { return ::stat(at("m/d/x").c_str(), &st) == 0 && (st.st_mode & 07777) == 0755u; }));
}

TEST_F(DraftMountTest, ManyFilesNeedFewDescriptors) {
  start_draft();
  for (int i = 0; i < 400; i++) write_all(at("m/d/f" + std::to_string(i)), "x");
  EXPECT_EQ(names(at("m/d")).size(), 400u);
  auto& inodes = session_->mount().dispatch().inodes();
  EXPECT_GT(inodes.drafts(), 400u);
  session_->mount().dispatch().follower().set_most_draft_inodes(50);
  EXPECT_TRUE(eventually([&] {
    struct stat st;
    ::stat(at("m/d/none").c_str(), &st);
    return inodes.drafts() < 60;
  })) << inodes.drafts();
  EXPECT_EQ(read_all(at("m/d/f0")), "x");
}

TEST_F(DraftMountTest, CommitThroughTheControlSocket) {
  start_draft();
  write_all(at("m/d/w"), "bytes");
  ASSERT_TRUE(eventually([&] { return draft()->writers() == 0; }));
  auto client = ControlClient::connect_for(at("m/d"));
  ASSERT_OK(client.status());
  auto result = client->first.call({{"op", "commit"}, {"version", client->second}});
  ASSERT_OK(result.status());
  EXPECT_EQ((*result)["version"], "m%2Fd");
  EXPECT_EQ((*result)["plain_bytes"], 5);
  auto again = ControlClient::connect_for(at("m/d"));
  EXPECT_OK(again->first.call({{"op", "commit"}, {"version", "m%2Fd"}}).status());
  auto missing = ControlClient::connect_for(at("m/d"));
  EXPECT_EQ(missing->first.call({{"op", "commit"}, {"version", "m%2Fnone"}}).code(), Code::kNotFound);
}

}  // namespace
}  // namespace weightfs
