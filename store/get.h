// A version's files written into an ordinary directory: the reverse of publish.
#pragma once

#include <functional>
#include <string>

#include "store/materialize/versions.h"

namespace weightfs {

// Blocking. `dest_dir` is made when missing. Resumable: a file that is there and right is kept, a partial one
// (NAME.weightfs-partial beside it) goes on where its blocks are right. A file appears under its name whole, fsynced,
// with its mode and time; nothing outside `dest_dir` is written, whatever the names and links in the version. kExists:
// something else is in the way of a name.
Status get_version(Versions& versions, const VersionPtr& version, const std::string& dest_dir, const Progress& progress,
                   const CallOptions& options);

}  // namespace weightfs
