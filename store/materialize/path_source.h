// Where the materializer learns how a version can be built. The store implements it on the models' logs.
#pragma once

#include <set>
#include <vector>

#include "store/materialize/meta.h"

namespace weightfs {

// Any thread may call, holding no lock.
class PathSource {
 public:
  virtual ~PathSource() = default;
  // The cheapest edges that build `target`: the first leads into it, each next into where the one before comes from;
  // the last is a full edge or comes from one of `sources`. Never `target` itself as a source. Looks at what is known;
  // blocks only to read another model's log for the first time. kNotFound: no path.
  virtual Result<std::vector<PathEdge>> path(const NodeRef& target, const std::set<NodeRef>& sources) = 0;
  // Models that a path to a version of `model` may run through: itself and, through parents, others.
  virtual std::vector<ModelName> related_models(const ModelName& model) = 0;
  // Reads what is new in the logs that `target`'s paths run through. Blocking.
  virtual Status refresh(const NodeRef& target, const CallOptions& options) = 0;
  // The record and manifest digest of a version; null when not known.
  virtual std::optional<Sha256> manifest_digest(const NodeRef& node) = 0;
};

}  // namespace weightfs
