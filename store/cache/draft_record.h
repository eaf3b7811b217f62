// A draft's record as JSON: in its sidecar drafts/<id>/draft.json and in the index. Strings are percent-encoded, for
// names are bytes.
#pragma once

#include "store/cache/cache.h"

namespace weightfs {

constexpr std::uint64_t kMaxDraftRecordBytes = 8 << 20;

bool is_draft_id(std::string_view text);  // 32 lower-case hex digits
Bytes encode_draft_record(const DraftRecord& record);
// kCorrupt for anything that encode does not make; kUnsupported: made by a newer weightfs.
Result<DraftRecord> decode_draft_record(ByteSpan bytes);

}  // namespace weightfs
